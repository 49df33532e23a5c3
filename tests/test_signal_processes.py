"""Signals and closed terminals end runs in other processes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lookfurther import preset
from lookfurther.config import Config, flatten_settings
from lookfurther.training.monitoring.metrics import read_metrics
from tests.process_group import wait_until_gone
from tests.training_runs import newest_checkpoint, tiny_config

pytestmark = pytest.mark.timeout(120)  # a failure here hangs
ROOT = Path(__file__).parents[1]
HANGING_RUN_SCRIPT = """
import sys
from functools import partial
from pathlib import Path
from lookfurther import preset, train
from tests.faulty_envs import Hanging
from tests.training_runs import tiny_config

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    settings = {"environment__processes": 2, "environment__worker_timeout": 0.0}
    config = tiny_config(folder / "run", env="hanging", **settings)
    train(config, env=partial(Hanging, folder / "hung"))
"""


@contextlib.contextmanager
def start_process(*words: str, **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A Python process in its own session, which is killed at the end."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm", "PYTHONUTF8": "1"}
    running = subprocess.Popen(
        [sys.executable, *words], env=environment, start_new_session=True, **options
    )
    try:
        yield running
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()


def wait_for_file(file: Path, running: subprocess.Popen[bytes]) -> None:
    while not file.exists():
        assert running.poll() is None
        time.sleep(0.05)


@pytest.mark.slow
def test_second_signal_ends_hanging_run_and_workers(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(HANGING_RUN_SCRIPT)
    with start_process(str(tmp_path / "script.py"), str(tmp_path)) as running:
        wait_for_file(tmp_path / "hung", running)
        running.send_signal(signal.SIGTERM)
        running.send_signal(signal.SIGINT)
        assert running.wait() in (128 + signal.SIGTERM, 128 + signal.SIGINT)
        wait_until_gone(running.pid)


@pytest.mark.slow
def test_closed_terminal_saves_checkpoint(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / "run", run__steps=100_000_000)
    words = [word for name, value in differing_settings(config) for word in (f"--{name}", *value)]
    terminal, process_end = pty.openpty()
    set_terminal = partial(fcntl.ioctl, process_end, termios.TIOCSCTTY, 0)
    command = ("-m", "lookfurther", "train", "no-demos", *words)
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), process_end)
    with start_process(*command, preexec_fn=set_terminal, **streams) as running:
        os.close(process_end)
        metrics = tmp_path / "run" / "metrics.jsonl"
        while not metrics.exists() or not read_metrics(metrics):
            assert os.read(terminal, 65536)  # unread output would block the run
        os.close(terminal)
        assert running.wait() == 0
        wait_until_gone(running.pid)
    assert newest_checkpoint(tmp_path / "run").metadata["step"] >= 100


def differing_settings(config: Config) -> list[tuple[str, list[str]]]:
    """The settings that differ from the preset, as command-line options."""
    defaults = flatten_settings(preset("no-demos"))
    changed = {k: v for k, v in flatten_settings(config).items() if v != defaults[k]}
    return [
        (k, [str(x) for x in (v if isinstance(v, tuple | list) else [v])])
        for k, v in changed.items()
    ]
