"""`lookfurther checkpoint RUN` finds the run by its lock and requests a checkpoint."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from lookfurther import config
from lookfurther.cli.main import main
from lookfurther.training.run_dir import RunDir

CONFIG = config.replace(config.Config(), env="CartPole-v1", demos=("a",))


def error_of_request(folder: Path, capfd: pytest.CaptureFixture[str]) -> str:
    """The one line that the failing command prints."""
    assert main(["checkpoint", str(folder)]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err.removeprefix("lookfurther: ").strip()


def test_checkpoint_command_signals_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with RunDir.open(tmp_path, CONFIG, resume=False) as run:
        assert main(["checkpoint", str(tmp_path)]) == 0
        assert run.checkpoint_signal.is_requested
    expected = f"checkpoint requested: process {os.getpid()} saves it after its current step\n"
    assert capfd.readouterr() == (expected, "")


def test_checkpoint_command_without_run_prints_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    RunDir.open(tmp_path / "ended", CONFIG, resume=False).close()
    for name in ("none", "file", "ended"):
        folder = tmp_path / name
        assert error_of_request(folder, capfd) == (
            f"no run is in progress in {folder}: there is nothing to save"
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"host": "elsewhere"}, "is on elsewhere: run this command there"),
        ({"pid": os.getppid()}, "does not hold it: run this command where the run was started"),
        ({"pid": 2**22 + 1}, "does not hold it: run this command where the run was started"),
        ({"pid": -1}, "does not name a process"),
        ({"pid": 0}, "does not name a process"),
        ({"pid": "1"}, "does not name a process"),
        ({"checkpoint_signal": False}, "outside its main thread"),
    ],
)
def test_only_lock_holder_receives_signal(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
    message: str,
) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(os, "kill", lambda *arguments: sent.append(arguments))
    with RunDir.open(tmp_path, CONFIG, resume=False):
        holder = json.loads((tmp_path / "lock").read_text())
        assert holder["host"] == socket.gethostname()
        (tmp_path / "lock").write_text(json.dumps(holder | change))
        assert message in error_of_request(tmp_path, capfd)
    assert sent == []


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 9000])
def test_lock_without_process_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], content: str
) -> None:
    with RunDir.open(tmp_path, CONFIG, resume=False):
        (tmp_path / "lock").write_text(content)
        assert "does not name a process" in error_of_request(tmp_path, capfd)


def test_run_outside_main_thread_takes_no_signal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    previous, runs = signal.getsignal(signal.SIGUSR1), []
    thread = threading.Thread(target=lambda: runs.append(RunDir.open(tmp_path, CONFIG, False)))
    thread.start()
    thread.join()
    assert "outside its main thread" in error_of_request(tmp_path, capfd)
    runs[0].close()
    assert signal.getsignal(signal.SIGUSR1) is previous
