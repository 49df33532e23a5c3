"""One process that steps lanes, from both ends: `Worker` in the run, `work` in the process."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, NamedTuple, NoReturn

import cloudpickle
import numpy as np

from lookfurther.envs.sync import Lanes, blank
from lookfurther.errors import EnvironmentFault, LookFurtherError
from lookfurther.system.processes import safe_import_path
from lookfurther.types import Spec

CLOSE_TIMEOUT = 5.0  # seconds for a process to close its environments
START_TIMEOUT = 120.0  # seconds, or more: imports and the first environment
POLL_PERIOD = 1.0  # seconds between two checks that a process is alive
# Meant for the run, but a terminal and some process managers send them to the workers too.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Failure(NamedTuple):
    """An error on its way out of a worker, with the traceback of its cause as text."""

    error: LookFurtherError
    cause: str


class WorkerTraceback(Exception):
    """The cause of a fault, as the worker saw it."""


class WorkerLost(Exception):
    """A worker process that has died or hangs."""


class Shared(NamedTuple):
    """What all workers of a run have in common."""

    memory: Any  # holds `lane_record(spec)` for every lane
    spec: Spec
    task: bytes  # the blueprint and `spec`, pickled
    seed: int


class Worker:
    """The run's end: the process that steps the lanes low ... high - 1, and its replacements."""

    def __init__(self, shared: Shared, low: int, high: int) -> None:
        self.low, self.high, self.lanes = low, high, slice(low, high)
        self.failures = 0  # processes lost without a good step between them
        self.fault = ""  # how the process was lost
        self._shared = shared
        self._records = np.frombuffer(shared.memory, lane_record(shared.spec))[self.lanes]
        self._process: SpawnProcess | None = None
        self._pipe: Connection | None = None

    def start(self, after: np.ndarray | None = None) -> None:
        """Start a process; given the last episode of each lane, it begins the next ones."""
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        memory, _, task, seed = self._shared
        arguments = (there, memory, task, range(self.low, self.high), seed, after)
        process = context.Process(target=work, args=arguments)
        # No exception may separate the start from its record.
        with safe_import_path(), _signals_blocked():
            process.start()
            self._process, self._pipe, self.fault = process, here, ""
        there.close()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def ask(self, command: str, argument: Any = None) -> None:
        """Send a command; if the process is dead, `answer` reports it."""
        assert self._pipe is not None
        with contextlib.suppress(OSError):
            self._pipe.send((command, argument))

    def answer(self, timeout: float) -> Any:
        """The answer to the last command, or WorkerLost.

        A process that completes no step of an environment for `timeout` seconds is killed; 0 waits
        forever.
        """
        if self.fault:
            raise WorkerLost(self.fault)
        assert self._pipe is not None
        try:
            self._wait(timeout)
            answer = self._pipe.recv()
        except (EOFError, OSError):
            self._lose("died")
        if isinstance(answer, Failure):
            raise answer.error from (WorkerTraceback(answer.cause) if answer.cause else None)
        return answer

    def _wait(self, timeout: float) -> None:
        """Return when there is an answer to read, or the end of the pipe.

        This counts pauses, not the clock: time in which the whole run was suspended is no hang.
        """
        assert self._pipe is not None
        assert self._process is not None
        pause = min(POLL_PERIOD, timeout / 4) if timeout else POLL_PERIOD
        progress, idle = int(self._records["progress"][0]), 0.0
        while not self._pipe.poll(pause):
            if not self._process.is_alive():  # its own children may keep the pipe open
                self._lose("died")
            idle = idle + pause if progress == self._records["progress"][0] else 0.0
            progress = int(self._records["progress"][0])
            if timeout and idle >= timeout:
                self._lose(f"has not completed a step in {timeout:g} seconds")

    def _lose(self, how: str) -> NoReturn:
        """Make sure that the process is gone, and raise WorkerLost."""
        assert self._process is not None
        if how == "died":
            self._process.join(CLOSE_TIMEOUT)
            how = f"died (exit code {self._process.exitcode})"
        self.fault = f"the process of lanes {self.low} to {self.high - 1} {how}"
        self.kill()
        raise WorkerLost(self.fault)

    def kill(self) -> None:
        """End the process at once, also one that hangs or is stopped."""
        if self._process is not None and self._pipe is not None:
            self._pipe.close()
            self._process.kill()
            self._process.join(CLOSE_TIMEOUT)

    def leave(self) -> None:
        """Let the process close its environments and end."""
        if self._pipe is not None:
            self._pipe.close()

    def join(self, deadline: float) -> None:
        """Wait until the process has ended, and kill it at `deadline` of the monotonic clock."""
        if self._process is not None:
            self._process.join(max(0.0, deadline - time.monotonic()))
            if self._process.is_alive():
                self.kill()


def lane_record(spec: Spec) -> np.dtype:
    """All that a lane shares between the run and its worker."""
    step = blank(spec, 1)._asdict().items()
    fields = [(name, x.dtype, x.shape[1:]) for name, x in step]
    counts = ("action", "episode", "dropped_episodes", "restarts", "progress")
    return np.dtype(fields + [(name, np.int64, ()) for name in counts], align=True)


def work(
    pipe: Connection,
    memory: Any,
    task: bytes,
    numbers: range,
    seed: int,
    after: np.ndarray | None,
) -> None:
    """Serve the lanes `numbers` until the pipe closes."""
    _end_with_parent()
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    try:
        blueprint, spec = cloudpickle.loads(task)
        records = np.frombuffer(memory, lane_record(spec))[numbers.start : numbers.stop]

        def count() -> None:
            records["progress"][0] += 1

        with contextlib.closing(Lanes(blueprint, numbers, seed, count)) as lanes:
            if lanes.spec != spec:
                low, high = numbers.start, numbers.stop - 1
                raise EnvironmentFault(f"lanes {low} to {high} are {lanes.spec}, not {spec}")
            pipe.send(None if after is None else serve(lanes, records, "reset", after))
            while True:
                pipe.send(serve(lanes, records, *pipe.recv()))
    except (EOFError, ConnectionError):
        return  # the run has closed the pipe, or is gone
    except LookFurtherError as error:
        pipe.send(Failure(error, _text(error.__cause__)))
    except Exception as error:
        pipe.send(Failure(EnvironmentFault(f"a worker failed: {error!r}"), _text(error)))


def serve(lanes: Lanes, records: np.ndarray, command: str, argument: Any) -> Any:
    """Execute a command; a Step goes to the shared memory, anything else back by the pipe."""
    answer = None
    if command == "state":
        return lanes.state()
    if command == "restore":
        step, answer = lanes.restore(argument)
    elif command == "reset":
        step = lanes.reset(argument)
    elif command == "truncate":
        step = lanes.truncate(argument)
    else:
        lanes.send(records["action"])
        step = lanes.recv()
    for name, x in step._asdict().items():
        records[name] = x
    records["episode"] = lanes.episodes
    records["dropped_episodes"][0], records["restarts"][0] = lanes.dropped_episodes, lanes.restarts
    return answer


def _end_with_parent() -> None:
    """Let Linux kill this process when the run is gone, even if it hangs or is stopped."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    if parent is not None and os.getppid() != parent.pid:  # it ended before the call
        os._exit(1)


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Hold signals back, here and in a process started now, until that one is ready for them."""
    resource_tracker.ensure_running()  # its own start would let the signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _text(error: BaseException | None) -> str:
    return "".join(traceback.format_exception(error)) if error else ""
