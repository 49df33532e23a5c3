"""A look at HDF5 files by a process with bounds, before this one opens them (F12).

A file whose headers lead back to themselves makes the HDF5 library go round for ever, or take all
the memory there is. Nobody can stop it from outside but by ending its process: so another process
goes first, with little memory and little time, and is asked again for every file.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lookfurther.processes import helper_environment, python_command

MEMORY = 2**31  # bytes of addresses
SECONDS = 60.0
SLICE = 2**24  # bytes read at once
FREE, RATIO = 2**26, 300  # bytes a file may always hold, and more for each byte of its own
CODE = "from lookfurther.demos.guard import serve; serve()"


class Guard:
    """The process that goes first, started when it is first needed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._owner = 0  # a fork must not share the pipes of its parent
        self._lock = threading.Lock()

    def check(self, path: Path) -> None:
        """A ValueError where the file cannot be walked through within bounds."""
        with self._lock:
            answer = self._ask(str(path.absolute()))
            if answer is None:
                self.stop()
        if answer is None:
            bounds = f"{MEMORY >> 30} GiB and {SECONDS:g} seconds"
            raise ValueError(f"{path.name} cannot be read within {bounds}: it is damaged")
        if answer:
            raise ValueError(answer)

    def _ask(self, path: str) -> str | None:
        """What the process says of a file: nothing where it is sound; None: it did not answer."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(path) + "\n")
            process.stdin.flush()
            if select.select([process.stdout], [], [], SECONDS)[0]:
                line = process.stdout.readline()
                return json.loads(line) if line else None
        return None

    def _started(self) -> subprocess.Popen[str]:
        alive = self._process is not None and self._process.poll() is None
        if not alive or self._owner != os.getpid():
            self.stop()
            self._owner = os.getpid()
            self._process = subprocess.Popen(
                python_command("-c", CODE),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=helper_environment(),
            )
        assert self._process is not None
        return self._process

    def stop(self) -> None:
        """End the process, if it is this one's."""
        if self._process is not None and self._owner == os.getpid():
            self._process.kill()
            self._process.communicate()
        self._process = None


GUARD = Guard()
atexit.register(GUARD.stop)


def serve() -> None:
    """Answer for every path on the standard input."""
    with contextlib.suppress(ImportError):  # not everywhere; the time is bounded in any case
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for line in sys.stdin:
        print(json.dumps(_said(json.loads(line))), flush=True)


def _said(path: str) -> str:
    """Why a file cannot be read, or nothing."""
    import h5py

    try:
        with h5py.File(path, "r") as file:
            for thing in _things(file):
                _touch(thing)
    except Exception as error:  # whatever the library makes of it
        return f"{type(error).__name__}: {error}".replace("\n", " ")
    return ""


def _things(group: Any) -> Iterator[Any]:
    """Every group and array in the file; links to elsewhere are not followed."""
    import h5py

    yield group
    for name in group:
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            continue
        inner = group[name]
        if isinstance(inner, h5py.Group):
            yield from _things(inner)
        else:
            yield inner


def _touch(thing: Any) -> None:
    """Go where reading would go."""
    import h5py

    for name in thing.attrs:
        thing.attrs.get_id(name).get_storage_size()
    if not isinstance(thing, h5py.Dataset):
        return
    if thing.chunks is not None and len(thing.chunks) != thing.ndim:
        raise ValueError(f"{thing.name} of shape {thing.shape} is in pieces of {thing.chunks}")
    if thing.id.get_create_plist().get_nfilters():  # read piece by piece, and unpacked by us
        for i in range(thing.id.get_num_chunks()):
            thing.id.get_chunk_info(i)
    elif thing.ndim and thing.nbytes <= FREE + RATIO * thing.file.id.get_filesize():
        rows = max(1, SLICE * len(thing) // max(1, thing.nbytes))
        for low in range(0, len(thing), rows):
            thing[low : low + rows]
