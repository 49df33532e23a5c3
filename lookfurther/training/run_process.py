"""Finds the process that trains in a run folder by its lock, and sends it a signal."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

from lookfurther.errors import ConfigError

MAX_LOCK_BYTES = 10_000


def request_checkpoint(folder: Path) -> int:
    """Signal the run in a folder to save a checkpoint after its current step; returns its pid."""
    no_run = ConfigError(f"no run is in progress in {folder}: there is nothing to save")
    try:
        with (folder / "lock").open("rb") as lock:
            if not _is_locked(lock.fileno()):
                raise no_run
            pid = _signalable_process(folder, lock.read(MAX_LOCK_BYTES))
            if not _has_file_open(pid, lock.fileno()):
                raise ConfigError(
                    f"process {pid}, which {folder}/lock names, does not hold it: run this command"
                    " where the run was started, such as in its container"
                )
            os.kill(pid, signal.SIGUSR1)
    except (FileNotFoundError, NotADirectoryError, ProcessLookupError):
        raise no_run from None
    except OSError as error:
        raise ConfigError(f"the run in {folder} cannot be reached: {error.strerror}") from None
    return pid


def _is_locked(descriptor: int) -> bool:
    """Whether a process holds the lock; the lock file remains after the process has ended."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _signalable_process(folder: Path, lock_content: bytes) -> int:
    """The process id in a lock file, if that process can receive the signal."""
    match _parse_json(lock_content):
        case {"pid": int(pid), "host": str(host), **rest} if pid > 0:
            if host != socket.gethostname():
                raise ConfigError(f"the run in {folder} is on {host}: run this command there")
            if rest.get("checkpoint_signal") is not True:
                raise ConfigError(
                    f"process {pid} trains in {folder} outside its main thread, where no signal"
                    " reaches the run: wait for its next checkpoint"
                )
            return pid
    raise ConfigError(f"{folder}/lock does not name a process: wait for its next checkpoint")


def _parse_json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _has_file_open(pid: int, descriptor: int) -> bool:
    """Whether a process has the lock file open; True if the system has no /proc.

    The id may belong to another process: the lock may be from another container, or forged.
    """
    descriptors = Path(f"/proc/{pid}/fd")
    if not Path("/proc/self/fd").is_dir():
        return True
    lock = os.fstat(descriptor)
    for entry in descriptors.iterdir() if descriptors.is_dir() else ():
        try:
            status = entry.stat()
        except FileNotFoundError:  # closed in the meantime
            continue
        if (status.st_dev, status.st_ino) == (lock.st_dev, lock.st_ino):
            return True
    return False
