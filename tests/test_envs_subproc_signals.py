"""Worker processes end with their run, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.process_group import (
    session_processes,
    stop_at_numpy,
    wait_until_gone,
    wait_until_stopped,
)

pytestmark = pytest.mark.usefixtures("no_processes_left")


ROOT = Path(__file__).parents[1]


SCRIPT = """
import os, signal, sys
import numpy as np
from tests.faulty_envs import make_lanes, play_actions

if __name__ == "__main__":
    signals = []
    if "term" in sys.argv:
        signal.signal(signal.SIGTERM, lambda *_: signals.append(True))
    envs = make_lanes("CartPole-v1", 4, processes=2)
    envs.reset()
    if "stopped" in sys.argv:
        os.kill(envs._workers[0].pid, signal.SIGSTOP)
    print("ready", flush=True)
    while not signals and "leave" not in sys.argv:
        play_actions(envs, np.zeros((10, 4), int))
    play_actions(envs, np.zeros((10, 4), int))
"""


@contextmanager
def run_script(
    folder: Path, mode: str, env: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    script = folder / "script.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(script), mode],
        env=env or os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A process started in the background may ignore interrupts, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        yield process
    finally:  # after a failed test too
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def wait_until_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


@pytest.mark.parametrize(
    ("mode", "number", "code"),
    [
        ("interrupt", signal.SIGINT, -signal.SIGINT),  # Ctrl-C goes to all processes
        ("term", signal.SIGTERM, 0),  # goes to all: the run handles it and can still step
        ("leave", None, 0),  # a script that ends without close()
    ],
)
def test_run_ends_with_its_workers(tmp_path: Path, mode, number, code):
    with run_script(tmp_path, mode) as process:
        wait_until_ready(process)
        if number:
            os.killpg(process.pid, number)
        _, errors = process.communicate()
        assert process.returncode == code, errors
        assert errors.count("Traceback") == (mode == "interrupt"), errors
        wait_until_gone(process.pid)


def test_starting_workers_ignore_interrupt(tmp_path: Path):
    """The signal arrives during their imports, before they can ignore it themselves."""
    with run_script(tmp_path, "interrupt", stop_at_numpy(tmp_path)) as process:
        wait_until_stopped(process, 2)
        os.killpg(process.pid, signal.SIGINT)
        os.killpg(process.pid, signal.SIGCONT)
        _, errors = process.communicate()
        assert errors.count("Traceback") == 1, errors
        wait_until_gone(process.pid)


@pytest.mark.parametrize("mode", ["interrupt", "stopped"])
def test_workers_do_not_outlive_killed_run(tmp_path: Path, mode: str):
    """Not even a stopped one."""
    with run_script(tmp_path, mode) as process:
        wait_until_ready(process)
        # the run, multiprocessing's resource tracker, two workers
        assert len(session_processes(process.pid)) == 4
        process.kill()
        process.wait()
        wait_until_gone(process.pid)
