"""A helper process with little memory and CPU time, which reads files that others made.

A library that parses a hostile file can loop forever or take all memory, and only the end of its
process stops it. So functions of ours that call such a library run in another process. Its limits
grow with the size of the file. Its answer is JSON, and arrays no larger than the caller allows.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from lookfurther.system.processes import python_command, subprocess_environment

RESPONSE_BYTES = 2**24  # bytes of arrays in one answer, about
FREE_BYTES, MAX_EXPANSION = (
    2**25,
    300,
)  # bytes any file may unpack to, and more for each byte of its own
BASE_MEMORY = 2**26  # bytes a call may take for any file; RATIO more for each byte of the file ...
MAX_MEMORY = 2**31  # ... up to this
BASE_CPU_SECONDS, BYTES_PER_CPU_SECOND = (
    2,
    2**20,
)  # CPU seconds of a call for any file, and bytes of a file for one more
BASE_WALL_SECONDS = (
    60.0  # seconds for an answer, and ten for each CPU second: only a stopped process takes it
)
MAX_HEADER_BYTES = 2**20  # bytes
FUNCTION_PACKAGE = "lookfurther.demos.sandboxed."  # whose functions may be called
SERVER_CODE = "from lookfurther.demos.sandbox import serve; serve()"
# Threads and Arrow's own allocator reserve addresses that they do not use, the latter 1 GiB.
SERVER_VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}


class SandboxTask(NamedTuple):
    """A call of a function of ours on a file."""

    function: str  # "module:name", the module without PACKAGE
    arguments: tuple[Any, ...]  # as JSON has them
    file_name: str  # the name of the file or folder, for messages
    file_bytes: int  # its bytes
    max_array_bytes: int = 0  # bytes of arrays in the answer

    @property
    def memory_limit(self) -> int:
        return min(BASE_MEMORY + MAX_EXPANSION * self.file_bytes, MAX_MEMORY)

    @property
    def cpu_seconds(self) -> int:
        """CPU time."""
        return BASE_CPU_SECONDS + math.ceil(self.file_bytes / BYTES_PER_CPU_SECOND)


class SandboxResult(NamedTuple):
    """What a function returned."""

    value: Any
    arrays: list[np.ndarray]


class Sandbox:
    """The helper process, started when it is first needed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0  # a fork must not share the pipes of its parent
        self._lock = threading.Lock()

    def call(self, task: SandboxTask) -> SandboxResult:
        """The answer; a ValueError where there is none within the limits."""
        with self._lock:
            process = self._running_process()
            timer = threading.Timer(BASE_WALL_SECONDS + 10 * task.cpu_seconds, process.kill)
            timer.start()
            try:
                return self._exchange(process, task)
            except _ReadError as error:
                raise ValueError(str(error)) from None
            except (OSError, EOFError):
                self.stop()
                limits = f"{task.memory_limit >> 20} MiB and {task.cpu_seconds} seconds of CPU time"
                raise ValueError(
                    f"{task.file_name} cannot be read within {limits}: it is damaged"
                ) from None
            except BaseException:  # the rest of the answer would be taken for the next one
                self.stop()
                raise
            finally:
                timer.cancel()

    def _exchange(self, process: subprocess.Popen[bytes], task: SandboxTask) -> SandboxResult:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(
            json.dumps([*task, task.memory_limit, task.cpu_seconds]).encode() + b"\n"
        )
        process.stdin.flush()
        line = process.stdout.readline(MAX_HEADER_BYTES)
        if not line.endswith(b"\n"):
            raise EOFError
        header = json.loads(line)
        if "error" in header:
            raise _ReadError(header["error"])
        kinds = [(np.dtype(kind), tuple(shape)) for kind, shape in header["arrays"]]
        if sum(kind.itemsize * math.prod(shape) for kind, shape in kinds) > task.max_array_bytes:
            raise EOFError
        return SandboxResult(
            header["value"], [_receive_array(process.stdout, *kind) for kind in kinds]
        )

    def _running_process(self) -> subprocess.Popen[bytes]:
        alive = self._process is not None and self._process.poll() is None
        if not alive or self._owner != os.getpid():
            self.stop()
            self._owner = os.getpid()
            self._process = subprocess.Popen(
                python_command("-c", SERVER_CODE),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=subprocess_environment() | SERVER_VARIABLES,
            )
        assert self._process is not None
        return self._process

    def stop(self) -> None:
        """End the helper process, if it is this process's own."""
        if self._process is not None and self._owner == os.getpid():
            self._process.kill()
            with contextlib.suppress(OSError):  # what was not yet written to it
                self._process.communicate()
        self._process = None


SANDBOX = Sandbox()
atexit.register(SANDBOX.stop)


class _ReadError(Exception):
    """The helper process says why a file cannot be read."""


def file_size(path: Path) -> int:
    """The bytes of a file; a ValueError where it is a device, a pipe or not there."""
    if not path.is_file():
        raise ValueError(f"{path.name} is not a file")
    return path.stat().st_size


def _receive_array(pipe: IO[bytes], dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    array = np.empty(shape, dtype)
    rest = array.reshape(-1).view(np.uint8).data
    while len(rest):
        count = pipe.readinto(rest)  # type: ignore[attr-defined]
        if not count:
            raise EOFError
        rest = rest[count:]
    return array


def serve() -> None:
    """Run the calls that come on the standard input."""
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    for line in sys.stdin.buffer:
        function, arguments, *_, memory, seconds = json.loads(line)
        module, _, name = function.partition(":")
        arrays: list[np.ndarray] = []
        try:
            call = getattr(importlib.import_module(FUNCTION_PACKAGE + module), name)
            with _resource_limits(memory, seconds):
                value, arrays = call(*arguments)
            header: dict[str, Any] = {"value": value}
            header["arrays"] = [[array.dtype.str, array.shape] for array in arrays]
        except Exception as error:  # whatever a library makes of a file
            header = {"error": _error_text(error, memory)}
        pipe.write(json.dumps(header).encode() + b"\n")
        for array in arrays:
            pipe.write(np.ascontiguousarray(array).data)
        pipe.flush()
        if "error" in header and header["error"].startswith("MemoryError"):
            return  # what it had taken is gone with it


def _error_text(error: Exception, memory: int) -> str:
    if isinstance(error, MemoryError):
        return f"MemoryError: it needs more than {memory >> 20} MiB"
    return " ".join(f"{type(error).__name__}: {str(error)[:500]}".split())


@contextlib.contextmanager
def _resource_limits(memory: int, seconds: int) -> Iterator[None]:
    """Bound what is taken from here on: bytes of addresses and CPU seconds.

    The process ends when its time is over. Without `resource` (Windows) and without /proc (macOS,
    which does not bound addresses), only the caller's time is bounded.
    """
    try:
        import resource
    except ImportError:
        yield
        return
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(
        resource.RLIMIT_CPU, (_lower_limit(math.ceil(time.process_time()) + seconds, most), most)
    )
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    with contextlib.suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        taken = pages * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (_lower_limit(taken + memory, most), most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _lower_limit(soft: int, hard: int) -> int:
    return soft if hard < 0 else min(soft, hard)  # -1: no limit
