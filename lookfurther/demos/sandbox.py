"""A subprocess with limits on memory and CPU time, which reads files from other people.

A library that parses a hostile file can loop without end or take all memory, and cannot be
interrupted. So the functions of `demos.sandboxed`, which call such libraries, run in a subprocess.
Its limits grow with the size of the file. Its response is JSON, and arrays no larger than the
caller allows.
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

RESPONSE_BYTES = 2**24  # of arrays in one response, about
# A file of n bytes may unpack to FREE_BYTES + MAX_EXPANSION * n bytes. Reading it may take
# BASE_MEMORY + MAX_EXPANSION * n bytes of memory, at most MAX_MEMORY, and
# BASE_CPU_SECONDS + n / BYTES_PER_CPU_SECOND seconds of CPU time.
FREE_BYTES = 2**25
MAX_EXPANSION = 300
BASE_MEMORY = 2**26
MAX_MEMORY = 2**31
BASE_CPU_SECONDS = 2
BYTES_PER_CPU_SECOND = 2**20
BASE_WALL_SECONDS = 60.0  # plus ten per CPU second: only a stopped process takes that long
MAX_HEADER_BYTES = 2**20
FUNCTION_PACKAGE = "lookfurther.demos.sandboxed."  # the functions that a task may call
SERVER_CODE = "from lookfurther.demos.sandbox import run_tasks; run_tasks()"
# Threads and Arrow's allocator reserve addresses that they do not use (Arrow: 1 GiB).
SERVER_VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}


class SandboxTask(NamedTuple):
    """A function call that reads a file."""

    function: str  # "module:name" in FUNCTION_PACKAGE
    arguments: tuple[Any, ...]  # must be JSON
    file_name: str  # of the file or folder, for messages
    file_bytes: int
    max_array_bytes: int = 0  # in the response

    @property
    def memory_limit(self) -> int:
        return min(BASE_MEMORY + MAX_EXPANSION * self.file_bytes, MAX_MEMORY)

    @property
    def cpu_seconds(self) -> int:
        return BASE_CPU_SECONDS + math.ceil(self.file_bytes / BYTES_PER_CPU_SECOND)


class SandboxResult(NamedTuple):
    """The return value of a function."""

    value: Any
    arrays: list[np.ndarray]


class Sandbox:
    """The subprocess, started at the first call."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0  # a fork must not share the pipes of its parent
        self._lock = threading.Lock()

    def call(self, task: SandboxTask) -> SandboxResult:
        """Run a task; a ValueError if it fails or exceeds its limits."""
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
            except BaseException:  # the rest of the response would be read as the next one
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
        layouts = [(np.dtype(dtype), tuple(shape)) for dtype, shape in header["arrays"]]
        num_bytes = sum(dtype.itemsize * math.prod(shape) for dtype, shape in layouts)
        if num_bytes > task.max_array_bytes:
            raise EOFError
        return SandboxResult(
            header["value"], [_receive_array(process.stdout, *layout) for layout in layouts]
        )

    def _running_process(self) -> subprocess.Popen[bytes]:
        is_alive = self._process is not None and self._process.poll() is None
        if not is_alive or self._owner != os.getpid():
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
        """End the subprocess if this process started it."""
        if self._process is not None and self._owner == os.getpid():
            self._process.kill()
            with contextlib.suppress(OSError):  # of input that was not written yet
                self._process.communicate()
        self._process = None


SANDBOX = Sandbox()
atexit.register(SANDBOX.stop)


class _ReadError(Exception):
    """The reason from the subprocess why it cannot read a file."""


def file_size(path: Path) -> int:
    """The size of a file in bytes; a ValueError if it is a device, a pipe or missing."""
    if not path.is_file():
        raise ValueError(f"{path.name} is not a file")
    return path.stat().st_size


def _receive_array(pipe: IO[bytes], dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    array = np.empty(shape, dtype)
    remaining = array.reshape(-1).view(np.uint8).data
    while len(remaining):
        count = pipe.readinto(remaining)  # type: ignore[attr-defined]
        if not count:
            raise EOFError
        remaining = remaining[count:]
    return array


def run_tasks() -> None:
    """Run the tasks from the standard input, in the subprocess."""
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # so that libraries do not print into the response
    for line in sys.stdin.buffer:
        function, arguments, *_, memory, seconds = json.loads(line)
        module, _, name = function.partition(":")
        arrays: list[np.ndarray] = []
        try:
            run_task = getattr(importlib.import_module(FUNCTION_PACKAGE + module), name)
            with _resource_limits(memory, seconds):
                value, arrays = run_task(*arguments)
            header: dict[str, Any] = {"value": value}
            header["arrays"] = [[array.dtype.str, array.shape] for array in arrays]
        except Exception as error:  # libraries may raise anything for a hostile file
            header = {"error": _error_text(error, memory)}
        pipe.write(json.dumps(header).encode() + b"\n")
        for array in arrays:
            pipe.write(np.ascontiguousarray(array).data)
        pipe.flush()
        if "error" in header and header["error"].startswith("MemoryError"):
            return  # ending the process frees its memory


def _error_text(error: Exception, memory: int) -> str:
    if isinstance(error, MemoryError):
        return f"MemoryError: it needs more than {memory >> 20} MiB"
    return " ".join(f"{type(error).__name__}: {str(error)[:500]}".split())


@contextlib.contextmanager
def _resource_limits(memory: int, seconds: int) -> Iterator[None]:
    """Limit the address space and the CPU seconds from here on.

    The process ends when its time is over. Without `resource` (Windows) and without /proc (macOS,
    which does not limit addresses), only the timer of the caller applies.
    """
    try:
        import resource
    except ImportError:
        yield
        return
    _, hard_limit = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(
        resource.RLIMIT_CPU,
        (_lower_limit(math.ceil(time.process_time()) + seconds, hard_limit), hard_limit),
    )
    _, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
    with contextlib.suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        used = pages * resource.getpagesize()
        resource.setrlimit(
            resource.RLIMIT_AS, (_lower_limit(used + memory, hard_limit), hard_limit)
        )
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard_limit, hard_limit))


def _lower_limit(soft: int, hard: int) -> int:
    return soft if hard < 0 else min(soft, hard)  # -1: no limit
