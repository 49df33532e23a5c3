"""A process that steps lanes: `Worker` is its handle in the run, `run_worker` runs inside it."""

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
START_TIMEOUT = 120.0  # least seconds for imports and the first environment
POLL_PERIOD = 1.0  # seconds between two checks that a process is alive
# For the run alone, but a terminal and some process managers send them to the workers too.
IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
PR_SET_PDEATHSIG = 1  # linux/prctl.h


class WorkerFailure(NamedTuple):
    """An error that a worker reports, with the traceback of its cause as text."""

    error: LookFurtherError
    cause: str


class WorkerTraceback(Exception):
    """The cause of a fault: the traceback of the worker."""


class WorkerLost(Exception):
    """A worker process that has died or hangs."""


class WorkerSetup(NamedTuple):
    """The settings that all workers of a run share."""

    memory: Any  # one `lane_dtype(spec)` record for every lane
    spec: Spec
    pickled_factory: bytes
    seed: int


class Worker:
    """Handle of the process that steps the lanes low ... high - 1, and of its replacements."""

    def __init__(self, setup: WorkerSetup, low: int, high: int) -> None:
        self.low, self.high, self.lane_slice = low, high, slice(low, high)
        self.consecutive_failures = 0  # lost processes; a good step resets the count
        self.fault = ""  # why the process was lost
        self._setup = setup
        self._records = np.frombuffer(setup.memory, lane_dtype(setup.spec))[self.lane_slice]
        self._process: SpawnProcess | None = None
        self._pipe: Connection | None = None

    def start(self, previous_episodes: np.ndarray | None = None) -> None:
        """Start a process; if the last episode of each lane is given, it begins the next ones."""
        context = multiprocessing.get_context("spawn")
        pipe, worker_pipe = context.Pipe()
        lanes = range(self.low, self.high)
        process = context.Process(
            target=run_worker, args=(worker_pipe, self._setup, lanes, previous_episodes)
        )
        # No signal handler may raise between the start and the assignment.
        with safe_import_path(), _block_signals():
            process.start()
            self._process, self._pipe, self.fault = process, pipe, ""
        worker_pipe.close()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def send_command(self, command: str, argument: Any = None) -> None:
        """Send a command; if the process is dead, `receive_answer` reports it."""
        assert self._pipe is not None
        with contextlib.suppress(OSError):
            self._pipe.send((command, argument))

    def receive_answer(self, timeout: float) -> Any:
        """Return the answer to the last command, or raise WorkerLost.

        Kills a process in which no environment completes a step for `timeout` seconds. With a
        timeout of 0 there is no limit.
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
        """Return when the pipe has an answer or has ended.

        This counts pauses, not clock time: time in which the whole run was suspended is no hang.
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

    def _raise_lost(self, reason: str) -> NoReturn:
        """Make sure that the process has ended, and raise WorkerLost."""
        assert self._process is not None
        if reason == "died":
            self._process.join(CLOSE_TIMEOUT)
            reason = f"died (exit code {self._process.exitcode})"
        self.fault = f"the process of lanes {self.low} to {self.high - 1} {reason}"
        self.kill()
        raise WorkerLost(self.fault)

    def kill(self) -> None:
        """End the process at once, even if it hangs or is stopped."""
        if self._process is not None and self._pipe is not None:
            self._pipe.close()
            self._process.kill()
            self._process.join(CLOSE_TIMEOUT)

    def request_exit(self) -> None:
        """Make the process close its environments and end."""
        if self._pipe is not None:
            self._pipe.close()

    def join(self, deadline: float) -> None:
        """Wait until the process has ended, and kill it at `deadline` of the monotonic clock."""
        if self._process is not None:
            self._process.join(max(0.0, deadline - time.monotonic()))
            if self._process.is_alive():
                self.kill()


def lane_dtype(spec: Spec) -> np.dtype:
    """The record of a lane in the memory that the run shares with its workers."""
    step = zero_step(spec, 1)._asdict().items()
    fields = [(name, array.dtype, array.shape[1:]) for name, array in step]
    counts = ("action", "episode", "dropped_episodes", "restarts", "progress")
    return np.dtype(fields + [(name, np.int64, ()) for name in counts], align=True)


def run_worker(
    pipe: Connection,
    setup: WorkerSetup,
    lane_indices: range,
    previous_episodes: np.ndarray | None,
) -> None:
    """Serve the lanes `lane_indices` until the pipe closes."""
    _die_with_parent()
    for number in IGNORED_SIGNALS:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED_SIGNALS)
    try:
        factory, spec = cloudpickle.loads(setup.pickled_factory), setup.spec
        records = np.frombuffer(setup.memory, lane_dtype(spec))
        records = records[lane_indices.start : lane_indices.stop]

        def count_progress() -> None:
            records["progress"][0] += 1

        with contextlib.closing(
            SyncEnvs(factory, lane_indices, setup.seed, count_progress)
        ) as envs:
            if envs.spec != spec:
                low, high = lane_indices.start, lane_indices.stop - 1
                raise EnvironmentFault(f"lanes {low} to {high} are {envs.spec}, not {spec}")
            if previous_episodes is not None:
                execute_command(envs, records, "reset", previous_episodes)
            pipe.send(None)
            while True:
                pipe.send(execute_command(envs, records, *pipe.recv()))
    except (EOFError, ConnectionError):
        return  # the run has closed the pipe or has ended
    except LookFurtherError as error:
        pipe.send(WorkerFailure(error, _format_traceback(error.__cause__)))
    except Exception as error:
        fault = EnvironmentFault(f"a worker failed: {error!r}")
        pipe.send(WorkerFailure(fault, _format_traceback(error)))


def execute_command(envs: SyncEnvs, records: np.ndarray, command: str, argument: Any) -> Any:
    """Execute a command; write its Step to the shared memory, return any other result."""
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
    for name, array in step._asdict().items():
        records[name] = array
    records["episode"] = envs.episode_numbers
    records["dropped_episodes"][0], records["restarts"][0] = envs.dropped_episodes, envs.restarts
    return answer


def _die_with_parent() -> None:
    """Make Linux kill this process when the run ends, even if it hangs or is stopped."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    if parent is not None and os.getppid() != parent.pid:  # the run ended before the call
        os._exit(1)


@contextlib.contextmanager
def _block_signals() -> Iterator[None]:
    """Block signals here and in a process started now, until that one handles them."""
    resource_tracker.ensure_running()  # starting it inside the block would unblock the signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _format_traceback(error: BaseException | None) -> str:
    return "".join(traceback.format_exception(error)) if error else ""
