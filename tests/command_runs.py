"""Commands of `lookfurther` for tests: in this process, and in another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lookfurther.cli.main import main

ROOT = Path(__file__).parents[1]
TINY_SETTINGS = {
    "env": "CartPole-v1",
    "actor.lanes": "4",
    "replay.capacity": "1000",
    "replay.learning_starts": "100",
    "network.hidden": "16",
    "learner.agent-items": "16",
    "learner.samples-per-insert": "4",
    "run.threads": "1",
    "run.precision": "float32",
    "run.log-period": "100",
    "run.checkpoint-minutes": "0",
}


def tiny_train_args(folder: Path, *args: str, **changed: str) -> list[str]:
    """Arguments of a short run; `changed` settings are written as in `config.replace`."""
    given = {name.replace("__", ".").replace("_", "-"): value for name, value in changed.items()}
    settings = TINY_SETTINGS | given | {"run.folder": str(folder)}
    options = [w for name, value in settings.items() for w in (f"--{name}", *value.split())]
    return ["train", "no-demos", "--scale", "small", *options, *args]


def start_process(*args: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """Start the command in a new process and session."""
    code, pipe = "from lookfurther.__main__ import *", subprocess.PIPE
    command = [sys.executable, "-c", code, *args]
    return subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )


def run_failing_command(args: list[str], capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Return the exit code of a command and its one-line error."""
    code = main(args)
    err = capfd.readouterr().err
    assert err.endswith("\n")
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    assert err.startswith("lookfurther: ")
    return code, err.removeprefix("lookfurther: ").rstrip("\n")


CARTPOLE = ["--env", "CartPole-v1"]
