"""The processes of a session, such as a command and its subprocesses."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]

# Python imports sitecustomize first. The command itself, which leads its session, continues.
STOP_AT_NUMPY_MODULE = """
import os, signal, sys

class Stop:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy":
            os.kill(os.getpid(), signal.SIGSTOP)

if os.getsid(0) != os.getpid():
    sys.meta_path.insert(0, Stop())
"""


def process_states(session_id: int) -> dict[int, str]:
    """The state of each living process of a session, without zombies."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            except OSError:
                continue  # it has just exited
            if int(session) == session_id and state != "Z":
                found[int(entry.name)] = state
    return found


def session_processes(session_id: int) -> list[int]:
    return list(process_states(session_id))


def wait_until_gone(session_id: int) -> None:
    """Wait until the session has no processes; the time limit of the test applies."""
    while session_processes(session_id):
        time.sleep(0.05)


def stop_at_numpy(folder: Path) -> dict[str, str]:
    """Environment variables that stop a command's subprocesses when they import NumPy."""
    (folder / "sitecustomize.py").write_text(STOP_AT_NUMPY_MODULE)
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}


def wait_until_stopped(process: subprocess.Popen[str], count: int) -> None:
    """Wait until `count` subprocesses of this process have stopped."""
    while list(process_states(process.pid).values()).count("T") < count:
        assert process.poll() is None
        time.sleep(0.005)
