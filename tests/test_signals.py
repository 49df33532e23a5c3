"""How a run handles signals, and environments that hang or raise anything."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lookfurther import train
from lookfurther.config import Config, replace
from lookfurther.envs import subproc
from lookfurther.errors import EnvironmentFault
from lookfurther.training import signals as signals_module
from lookfurther.training.actors import ActorPool
from lookfurther.training.monitoring.metrics import read_metrics
from lookfurther.training.signals import CheckpointSignal, StopRequested, StopSignals
from lookfurther.types import END, FIRST
from tests.faulty_envs import Acting, Counting, Dying
from tests.training_runs import newest_checkpoint, tiny_config

pytestmark = pytest.mark.timeout(120)  # a failure here hangs


@pytest.fixture(autouse=True)
def _no_time_and_nothing_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(signals_module, "STEP_TIMEOUT", 0.0)
    monkeypatch.setattr(subproc, "CLOSE_TIMEOUT", 0.0)
    yield
    assert multiprocessing.active_children() == []


def hang_forever() -> None:
    while True:
        time.sleep(60)


# Signals without a run


@pytest.mark.parametrize("wait", [hang_forever, threading.Event().wait])
def test_hanging_environment_is_interrupted_by_signal(wait: Callable[[], None]) -> None:
    with StopSignals(lambda: True) as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(StopRequested):
            wait()
        assert signals.received_signal == "SIGTERM"


def test_only_environment_code_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watcher checks repeatedly, and finds an environment only at its tenth check."""
    monkeypatch.setattr(signals_module, "RETRY_PERIOD", 0.0)
    checks, found = [], threading.Event()

    def in_environment() -> bool:
        checks.append(threading.current_thread() is threading.main_thread())
        found.set() if len(checks) == 10 else None
        return len(checks) == 10  # no longer when the main thread checks

    with StopSignals(in_environment) as signals:
        os.kill(os.getpid(), signal.SIGINT)
        found.wait()
        while not any(checks):
            time.sleep(0)
    assert signals.received_signal == "SIGINT"


def test_sighup_stops_run_unless_ignored() -> None:
    with StopSignals() as signals:
        signal.raise_signal(signal.SIGHUP)
        assert signals.received_signal == "SIGHUP"
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as signals:
            signal.raise_signal(signal.SIGHUP)
            assert signals.received_signal is None
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, previous)


def test_checkpoint_signal_sets_request() -> None:
    previous = signal.getsignal(signal.SIGUSR1)
    with CheckpointSignal() as request:
        assert not request.is_requested
        signal.raise_signal(signal.SIGUSR1)
        assert request.is_requested
    assert signal.getsignal(signal.SIGUSR1) is previous


# Runs


def assert_resumes(config: Config, env: Callable[[], Any] = Counting) -> None:
    """Check that the run saved a checkpoint and can be resumed from it."""
    step = newest_checkpoint(Path(config.run.folder)).metadata["step"]
    longer = replace(config, run__steps=step + 40, environment__processes=0)
    assert train(longer, env=env, resume=True).step == step + 40


class UnexpectedError(BaseException):
    """Neither a SystemExit nor a KeyboardInterrupt."""


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), UnexpectedError("odd")])
def test_any_environment_exception_saves_checkpoint(tmp_path: Path, error: BaseException) -> None:
    def throw() -> None:
        raise error

    config = tiny_config(tmp_path / "run", env="acting")
    with pytest.raises(type(error)) as caught:
        train(config, env=partial(Acting, throw, 40))
    assert caught.value is error
    assert newest_checkpoint(tmp_path / "run").metadata["step"] >= 4 * 39
    assert_resumes(config)


def test_exit_during_evaluation_keeps_training_episodes(tmp_path: Path) -> None:
    """The environments of training are unchanged: all their episodes continue."""
    built = []

    def env() -> Counting:
        built.append(None)
        is_evaluation = len(built) > 1 + 4  # the first one is for the spaces
        return Acting(sys.exit, 1) if is_evaluation else Counting()

    config = tiny_config(tmp_path / "run", env="acting", run__evaluate_period=200)
    with pytest.raises(SystemExit):
        train(config, env=env)
    saved = newest_checkpoint(tmp_path / "run")
    assert saved.metadata["step"] == 200
    assert len(saved.files["envs"]["0.episode"]) == 4
    assert_resumes(config)


@pytest.mark.parametrize("processes", [0, 2])
def test_sigterm_stops_run_with_hanging_environment(tmp_path: Path, processes: int) -> None:
    """The environment sends the signal itself and never returns; no timeout applies."""
    run, once = os.getpid(), tmp_path / "once"
    once.touch()

    def act() -> None:
        with contextlib.suppress(FileNotFoundError):
            once.unlink()  # a second signal would end the process at once
            os.kill(run, signal.SIGTERM)
        hang_forever()

    config = tiny_config(
        tmp_path / "run", env="acting",
        environment__processes=processes, environment__worker_timeout=0.0,
    )  # fmt: skip
    summary = train(config, env=partial(Acting, act, 40))
    assert summary.stop_reason == "SIGTERM"
    saved = newest_checkpoint(tmp_path / "run")
    assert saved.metadata["step"] == summary.step >= 4 * 39
    assert not saved.files["envs"]  # an interrupted step cannot be continued
    assert_resumes(config)


def test_stopped_worker_does_not_block_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker stops after its last step, and a signal arrives while its state is awaited."""
    real, stopped = ActorPool.state, []

    def state(self: ActorPool) -> Any:
        if not stopped:
            envs: Any = self.groups[0].envs
            stopped.append(envs._workers[0].pid)
            os.kill(stopped[0], signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGTERM)
        return real(self)

    monkeypatch.setattr(ActorPool, "state", state)
    config = tiny_config(
        tmp_path / "run", env="counting", run__steps=200,
        environment__processes=2, environment__worker_timeout=0.0,
    )  # fmt: skip
    assert train(config, env=Counting).step == 200
    with pytest.raises(ProcessLookupError):
        os.kill(stopped[0], 0)
    assert_resumes(config)


def test_run_continues_after_worker_is_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The episodes in progress in its lanes are never sampled."""
    (tmp_path / "once").touch()

    def die() -> None:
        with contextlib.suppress(FileNotFoundError):
            (tmp_path / "once").unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    config = tiny_config(
        tmp_path / "run", env="acting", environment__processes=2, run__log_period=40
    )
    assert train(config, env=partial(Acting, die, 42)).stop_reason == "done"
    out = capsys.readouterr().out
    assert out.count("warning: ") == 1
    assert " died (exit code -9) and is replaced\n" in out
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [row["workers_replaced"] for row in rows][0::9] == [0, 1]
    assert rows[-1]["dropped_episodes"] == 2
    replay = newest_checkpoint(tmp_path / "run").files["agent_replay"]
    marks, mass = replay["marks"][:, :, 0], replay["mass"].sum(-1)
    cut = 0
    for lane in range(4):
        begins = (marks[lane] & FIRST).nonzero().flatten().tolist()
        for begin, end in pairwise(begins):
            if not marks[lane, end - 1] & END:  # the episode was dropped
                cut += 1
                assert not mass[lane, begin:end].any()
    assert cut == 2


def test_repeated_worker_deaths_stop_with_checkpoint(tmp_path: Path) -> None:
    config = tiny_config(
        tmp_path / "run", env="dying", environment__processes=1, environment__max_failures=2
    )
    with pytest.raises(EnvironmentFault, match=r"died \(exit code 9\): failure 2 in a row"):
        train(config, env=partial(Dying, at=1))
    assert_resumes(config)


def test_checkpoint_request_saves_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = partial(os.kill, os.getpid(), signal.SIGUSR1)
    train(tiny_config(tmp_path / "run", env="acting"), env=partial(Acting, request, 30))
    out = capsys.readouterr().out
    first, last = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert last == "step_000000000400"
    assert f"checkpoint saved on request at step {int(first[5:])}\n" in out
