"""The processes of a session, such as a command and what it has started."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]

# Python runs a module of this name first. The command itself, which leads its session, goes on.
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
    """The living processes of a session, zombies left out, each with its state."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            except OSError:
                continue  # it has just ended
            if int(session) == session_id and state != "Z":
                found[int(entry.name)] = state
    return found


def session_processes(session_id: int) -> list[int]:
    return list(process_states(session_id))


def wait_until_gone(session_id: int) -> None:
    """Return when the session is empty; the time limit of the test catches what never ends."""
    while session_processes(session_id):
        time.sleep(0.05)


def stop_at_numpy(folder: Path) -> dict[str, str]:
    """Environment variables with which what a command starts stops where it imports NumPy."""
    (folder / "sitecustomize.py").write_text(STOP_AT_NUMPY_MODULE)
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}


def wait_until_stopped(process: subprocess.Popen[str], count: int) -> None:
    """Return when `count` of the processes that this one has started have stopped."""
    while list(process_states(process.pid).values()).count("T") < count:
        assert process.poll() is None
        time.sleep(0.005)
