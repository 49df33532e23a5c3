"""Atomic writes: a file or folder is complete or absent, also after a crash or a power cut."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TEMPORARY_PREFIX = ".writing-"


@contextmanager
def atomic_replace(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to `path` that replaces it if the block succeeds.

    The block writes a file there, or makes a folder. Files inside a folder must be synced by the
    block. A folder replaces only an empty or absent one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{path.name}.{os.getpid()}")
    try:
        yield temporary
        sync_to_disk(temporary)
        os.replace(temporary, path)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            temporary.unlink(missing_ok=True)
    sync_to_disk(path.parent)


def exchange_paths(first: Path, second: Path) -> None:
    """Swap two files or folders at once: at any time, each path is one of the two.

    Python has no function for it, so this is renameat2 of Linux.
    """
    current_dir, rename_exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        raise OSError(errno.ENOSYS, "this system cannot swap folders")
    names = os.fsencode(first), os.fsencode(second)
    if renameat2(current_dir, names[0], current_dir, names[1], rename_exchange):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(first))
    sync_to_disk(first.parent)


def write_text(path: Path, text: str) -> None:
    """Replace a file by this text, atomically."""
    with atomic_replace(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def sync_to_disk(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
