"""Gymnasium environments stepped in processes of their own, with arrays in shared memory."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import signal
import traceback
from collections.abc import Iterator
from itertools import pairwise
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, NamedTuple

import cloudpickle
import numpy as np

from lookfurther.envs.blueprint import Blueprint
from lookfurther.envs.lanes import Lanes, blank, select
from lookfurther.errors import CheckpointError, EnvironmentFault, LookFurtherError
from lookfurther.types import Spec, Step

PATIENCE = 5.0  # seconds a worker has to close its environments
SIGNALS = (signal.SIGINT, signal.SIGTERM)  # meant for the run, often sent to its workers too


class Worker(NamedTuple):
    """One process and the lanes low ... high - 1 that it steps."""

    process: SpawnProcess
    pipe: Connection
    low: int
    high: int


class Failure(NamedTuple):
    """An error on its way out of a worker, with the traceback of its cause as text."""

    error: LookFurtherError
    cause: str


class WorkerTraceback(Exception):
    """The cause of a fault, as the worker saw it."""


class Workers:
    """The same lanes as `Lanes`, with the same results, split over `environment.processes`."""

    def __init__(self, blueprint: Blueprint, lanes: int, seed: int) -> None:
        self.lanes = lanes
        with contextlib.closing(Lanes(blueprint, range(1), seed)) as one:
            self.spec = one.spec
        context = multiprocessing.get_context("spawn")
        # Anonymous memory: there is no name that could be left behind.
        memory = context.RawArray("b", lanes * film(self.spec).itemsize)
        self._film = np.frombuffer(memory, film(self.spec))
        self._workers: list[Worker] = []
        atexit.register(self.close)  # before multiprocessing's own handler, which only waits
        processes = min(blueprint.environment.processes, lanes)
        bounds = np.linspace(0, lanes, processes + 1).astype(int).tolist()
        task = cloudpickle.dumps((blueprint, self.spec))
        try:
            for low, high in pairwise(bounds):
                here, there = context.Pipe()
                process = context.Process(target=work, args=(there, memory, task, low, high, seed))
                with _signals_held():  # an interrupt must not fall between start and append
                    process.start()
                    self._workers.append(Worker(process, here, low, high))
                there.close()
            self._answers()
        except BaseException:
            self.close()
            raise

    @property
    def dropped_episodes(self) -> int:
        return int(self._film["dropped_episodes"].sum())

    @property
    def restarts(self) -> int:
        return int(self._film["restarts"].sum())

    def reset(self) -> Step:
        self._ask("reset")
        self._answers()
        return self._step()

    def send(self, actions: np.ndarray) -> None:
        self._film["action"] = actions
        self._ask("step")

    def recv(self) -> Step:
        self._answers()
        return self._step()

    def state(self) -> dict[str, np.ndarray]:
        self._ask("state")
        parts = self._answers()
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def restore(self, state: dict[str, np.ndarray]) -> tuple[Step, np.ndarray]:
        held = len(state["episode"])
        if held != self.lanes:
            raise CheckpointError(f"the checkpoint holds {held} lanes, this run has {self.lanes}")
        for worker in self._workers:
            self._tell(worker, "restore", select(state, worker.low, worker.high))
        same = np.concatenate(self._answers())
        return self._step(), same

    def close(self) -> None:
        atexit.unregister(self.close)
        for worker in self._workers:
            worker.pipe.close()
        for worker in self._workers:
            worker.process.join(PATIENCE)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self._workers = []

    def _step(self) -> Step:
        return Step(*(self._film[name].copy() for name in Step._fields))

    def _ask(self, command: str) -> None:
        for worker in self._workers:
            self._tell(worker, command, None)

    def _tell(self, worker: Worker, command: str, argument: Any) -> None:
        try:
            worker.pipe.send((command, argument))
        except ConnectionError:
            self._hear(worker)  # its last words, if it had any
            raise

    def _answers(self) -> list[Any]:
        return [self._hear(worker) for worker in self._workers]

    def _hear(self, worker: Worker) -> Any:
        """A worker's answer, or the fault it met."""
        try:
            answer = worker.pipe.recv()
        except (EOFError, ConnectionError):
            worker.process.join(PATIENCE)
            raise EnvironmentFault(
                f"{self.spec.env}: the process of lanes {worker.low} to {worker.high - 1} died"
                f" (exit code {worker.process.exitcode})"
            ) from None
        if isinstance(answer, Failure):
            raise answer.error from (WorkerTraceback(answer.cause) if answer.cause else None)
        return answer


def film(spec: Spec) -> np.dtype:
    """All that a lane shares between the run and its worker, as one record."""
    step = blank(spec, 1)._asdict().items()
    fields = [(name, x.dtype, x.shape[1:]) for name, x in step]
    counts = [(name, np.int64, ()) for name in ("action", "dropped_episodes", "restarts")]
    return np.dtype(fields + counts, align=True)


def work(pipe: Connection, memory: Any, task: bytes, low: int, high: int, seed: int) -> None:
    """Serve the lanes low ... high - 1 until the pipe closes."""
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    try:
        blueprint, spec = cloudpickle.loads(task)
        mine = np.frombuffer(memory, film(spec))[low:high]
        with contextlib.closing(Lanes(blueprint, range(low, high), seed)) as lanes:
            if lanes.spec != spec:
                raise EnvironmentFault(f"lanes {low} to {high - 1} are {lanes.spec}, not {spec}")
            pipe.send(None)
            while True:
                pipe.send(serve(lanes, mine, *pipe.recv()))
    except (EOFError, ConnectionError):
        return  # the run has closed the pipe, or is gone
    except LookFurtherError as error:
        pipe.send(Failure(error, _text(error.__cause__)))
    except Exception as error:
        pipe.send(Failure(EnvironmentFault(f"a worker failed: {error!r}"), _text(error)))


def serve(lanes: Lanes, mine: np.ndarray, command: str, argument: Any) -> Any:
    """Do what was asked; a Step goes to the shared memory, anything else back by the pipe."""
    answer = None
    if command == "state":
        return lanes.state()
    if command == "restore":
        step, answer = lanes.restore(argument)
    elif command == "reset":
        step = lanes.reset()
    else:
        lanes.send(mine["action"])
        step = lanes.recv()
    for name, x in step._asdict().items():
        mine[name] = x
    mine["dropped_episodes"][0], mine["restarts"][0] = lanes.dropped_episodes, lanes.restarts
    return answer


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Hold signals back, here and in a process started now, until that one is ready for them."""
    resource_tracker.ensure_running()  # its own start would let the signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _text(error: BaseException | None) -> str:
    return "".join(traceback.format_exception(error)) if error else ""
