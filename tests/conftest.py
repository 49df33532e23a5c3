"""Settings for all tests.

One thread: small tensors gain nothing from more, and threads that outnumber the cores wait for one
another. No GPU: `run.device auto` would use it and round differently; `benchmarks.gpu` tests it.
SIGINT is handled: a shell's background jobs ignore it, and so would the processes of the tests.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

# Before torch is imported, here and in subprocesses.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from lookfurther.demos.catalog import DemoSet
    from tests.recorder_servers import ServerThread

settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def recorder_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for the sets of a recorder whose clock does not wait."""
    from tests.recorder_pages import isolate_recorder  # needs the extra `record`

    isolate_recorder(tmp_path, monkeypatch)
    return tmp_path


@pytest.fixture
def datasets_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of datasets, and a single process."""
    from lookfurther.system import processes

    folder = tmp_path / "datasets"
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder))
    monkeypatch.setattr(processes, "count_cores", lambda: 1)
    return folder


@pytest.fixture
def few_retimed_games(monkeypatch: pytest.MonkeyPatch) -> None:
    """The games of tests are simple, so a search over waits need not keep many."""
    from lookfurther.demos import retime

    monkeypatch.setattr(retime, "MAX_GAMES", 4)


@pytest.fixture(scope="session")
def balance_demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of two CartPole episodes, which tests only read."""
    from tests.training_runs import save_balance_demos

    return save_balance_demos(tmp_path_factory.mktemp("demos"))


@pytest.fixture(scope="session")
def breakout_demos() -> DemoSet:
    """Two short games of random play."""
    from tests.evaluation_samples import random_play  # needs the extra `atari`

    return random_play(0)


@pytest.fixture
def recorder_server() -> Iterator[ServerThread]:
    """A recorder's server on a source that counts."""
    from tests.recorder_servers import CountingSource, ServerThread  # needs the extra `record`

    with closing(ServerThread(CountingSource())) as server:
        yield server


@pytest.fixture
def no_processes_left() -> Iterator[None]:
    """No worker process and no shared memory remain after the test."""
    yield
    assert multiprocessing.active_children() == []
    assert list(Path("/dev/shm").glob(f"*-{os.getpid()}-*")) == []
