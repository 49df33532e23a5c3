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

from lookfurther.envs.sync import SyncEnvs, zero_step
from lookfurther.errors import EnvironmentFault, LookFurtherError
from lookfurther.system.processes import safe_import_path
from lookfurther.types import Spec

CLOSE_TIMEOUT = 5.0  # seconds for a process to close its environments
START_TIMEOUT = 120.0  # seconds, or more: imports and the first environment
POLL_PERIOD = 1.0  # seconds between two checks that a process is alive
# Meant for the run, but a terminal and some process managers send them to the workers too.
IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
PR_SET_PDEATHSIG = 1  # linux/prctl.h


class WorkerFailure(NamedTuple):
    """An error on its way out of a worker, with the traceback of its cause as text."""

    error: LookFurtherError
    cause: str


class WorkerTraceback(Exception):
    """The cause of a fault, as the worker saw it."""


class WorkerLost(Exception):
    """A worker process that has died or hangs."""


class WorkerSetup(NamedTuple):
    """What all workers of a run have in common."""

    memory: Any  # holds `lane_record(spec)` for every lane
    spec: Spec
    pickled_factory: bytes  # the blueprint and `spec`, pickled
    seed: int


class Worker:
    """The run's end: the process that steps the lanes low ... high - 1, and its replacements."""

    def __init__(self, setup: WorkerSetup, low: int, high: int) -> None:
        self.low, self.high, self.lane_slice = low, high, slice(low, high)
        self.consecutive_failures = 0  # processes lost without a good step between them
        self.fault = ""  # how the process was lost
        self._setup = setup
        self._records = np.frombuffer(setup.memory, lane_dtype(setup.spec))[self.lane_slice]
        self._process: SpawnProcess | None = None
        self._pipe: Connection | None = None

    def start(self, previous_episodes: np.ndarray | None = None) -> None:
        """Start a process; given the last episode of each lane, it begins the next ones."""
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        memory, _, task, seed = self._setup
        arguments = (there, memory, task, range(self.low, self.high), seed, previous_episodes)
        process = context.Process(target=run_worker, args=arguments)
        # No exception may separate the start from its record.
        with safe_import_path(), _block_signals():
            process.start()
            self._process, self._pipe, self.fault = process, here, ""
        there.close()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def send_command(self, command: str, argument: Any = None) -> None:
        """Send a command; if the process is dead, `answer` reports it."""
        assert self._pipe is not None
        with contextlib.suppress(OSError):
            self._pipe.send((command, argument))

    def receive_answer(self, timeout: float) -> Any:
        """The answer to the last command, or WorkerLost.

        A process that completes no step of an environment for `timeout` seconds is killed; 0 waits
        forever.
        """
        if self.fault:
            raise WorkerLost(self.fault)
        assert self._pipe is not None
        try:
            self._wait_for_answer(timeout)
            answer = self._pipe.recv()
        except (EOFError, OSError):
            self._raise_lost("died")
        if isinstance(answer, WorkerFailure):
            raise answer.error from (WorkerTraceback(answer.cause) if answer.cause else None)
        return answer

    def _wait_for_answer(self, timeout: float) -> None:
        """Return when there is an answer to read, or the end of the pipe.

        This counts pauses, not the clock: time in which the whole run was suspended is no hang.
        """
        assert self._pipe is not None
        assert self._process is not None
        pause = min(POLL_PERIOD, timeout / 4) if timeout else POLL_PERIOD
        progress, idle = int(self._records["progress"][0]), 0.0
        while not self._pipe.poll(pause):
            if not self._process.is_alive():  # its own children may keep the pipe open
                self._raise_lost("died")
            idle = idle + pause if progress == self._records["progress"][0] else 0.0
            progress = int(self._records["progress"][0])
            if timeout and idle >= timeout:
                self._raise_lost(f"has not completed a step in {timeout:g} seconds")

    def _raise_lost(self, how: str) -> NoReturn:
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

    def request_exit(self) -> None:
        """Let the process close its environments and end."""
        if self._pipe is not None:
            self._pipe.close()

    def join(self, deadline: float) -> None:
        """Wait until the process has ended, and kill it at `deadline` of the monotonic clock."""
        if self._process is not None:
            self._process.join(max(0.0, deadline - time.monotonic()))
            if self._process.is_alive():
                self.kill()


def lane_dtype(spec: Spec) -> np.dtype:
    """All that a lane shares between the run and its worker."""
    step = zero_step(spec, 1)._asdict().items()
    fields = [(name, x.dtype, x.shape[1:]) for name, x in step]
    counts = ("action", "episode", "dropped_episodes", "restarts", "progress")
    return np.dtype(fields + [(name, np.int64, ()) for name in counts], align=True)


def run_worker(
    pipe: Connection,
    memory: Any,
    pickled_factory: bytes,
    lane_indices: range,
    seed: int,
    previous_episodes: np.ndarray | None,
) -> None:
    """Serve the lanes `numbers` until the pipe closes."""
    _die_with_parent()
    for number in IGNORED_SIGNALS:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED_SIGNALS)
    try:
        blueprint, spec = cloudpickle.loads(pickled_factory)
        records = np.frombuffer(memory, lane_dtype(spec))[lane_indices.start : lane_indices.stop]

        def count() -> None:
            records["progress"][0] += 1

        with contextlib.closing(SyncEnvs(blueprint, lane_indices, seed, count)) as lanes:
            if lanes.spec != spec:
                low, high = lane_indices.start, lane_indices.stop - 1
                raise EnvironmentFault(f"lanes {low} to {high} are {lanes.spec}, not {spec}")
            pipe.send(
                None
                if previous_episodes is None
                else execute_command(lanes, records, "reset", previous_episodes)
            )
            while True:
                pipe.send(execute_command(lanes, records, *pipe.recv()))
    except (EOFError, ConnectionError):
        return  # the run has closed the pipe, or is gone
    except LookFurtherError as error:
        pipe.send(WorkerFailure(error, _format_traceback(error.__cause__)))
    except Exception as error:
        pipe.send(
            WorkerFailure(EnvironmentFault(f"a worker failed: {error!r}"), _format_traceback(error))
        )


def execute_command(envs: SyncEnvs, records: np.ndarray, command: str, argument: Any) -> Any:
    """Execute a command; a Step goes to the shared memory, anything else back by the pipe."""
    answer = None
    if command == "state":
        return envs.state()
    if command == "restore":
        step, answer = envs.restore(argument)
    elif command == "reset":
        step = envs.reset(argument)
    elif command == "truncate":
        step = envs.truncate(argument)
    else:
        envs.send(records["action"])
        step = envs.recv()
    for name, x in step._asdict().items():
        records[name] = x
    records["episode"] = envs.episode_numbers
    records["dropped_episodes"][0], records["restarts"][0] = envs.dropped_episodes, envs.restarts
    return answer


def _die_with_parent() -> None:
    """Let Linux kill this process when the run is gone, even if it hangs or is stopped."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    if parent is not None and os.getppid() != parent.pid:  # it ended before the call
        os._exit(1)


@contextlib.contextmanager
def _block_signals() -> Iterator[None]:
    """Hold signals back, here and in a process started now, until that one is ready for them."""
    resource_tracker.ensure_running()  # its own start would let the signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _format_traceback(error: BaseException | None) -> str:
    return "".join(traceback.format_exception(error)) if error else ""
