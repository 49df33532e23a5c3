"""The processes of a session, such as a command and what it has started."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path


def members(group: int) -> list[int]:
    """The living processes of a session, zombies left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            except OSError:
                continue  # it has just ended
            if int(session) == group and state != "Z":
                found.append(int(entry.name))
    return found


def wait_until_gone(group: int) -> None:
    """Return when the session is empty; the time limit catches what never ends."""
    while members(group):
        time.sleep(0.05)


def wait_for_imports(process: subprocess.Popen[str]) -> int:
    """Return a process that this one has started, when it has come as far as loading NumPy."""
    while True:
        assert process.poll() is None
        for pid in members(process.pid):
            if _begun(pid) != _begun(process.pid) and _imports(pid):
                return pid
        time.sleep(0.005)


def _begun(pid: int) -> bytes:
    """The command line of a process; for a moment a new one has that of the process it is of.

    And its memory, with all that is imported there.
    """
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""  # it has just ended


def _imports(pid: int) -> bool:
    """Whether a process has come as far as loading NumPy."""
    try:
        return "_multiarray_umath" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False  # it has just ended
