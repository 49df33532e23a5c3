"""Gymnasium environments stepped in processes of their own, with arrays in shared memory."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import cloudpickle
import numpy as np

from lookfurther.envs.factory import Blueprint
from lookfurther.envs.subproc_worker import (
    CLOSE_TIMEOUT,
    START_TIMEOUT,
    Shared,
    Worker,
    WorkerLost,
    lane_record,
)
from lookfurther.envs.sync import Lanes, select
from lookfurther.errors import CheckpointError, EnvironmentFault
from lookfurther.types import Step


class Workers:
    """The same lanes as `Lanes`, with the same results, split over `environment.processes`.

    A process that dies or hangs is replaced, and new episodes begin in its lanes.
    """

    def __init__(self, blueprint: Blueprint, lanes: int, seed: int) -> None:
        self.lanes, self._environment = lanes, blueprint.environment
        self._timeout = self._start_timeout = self._environment.worker_timeout
        if self._timeout:
            self._start_timeout = max(self._timeout, START_TIMEOUT)
        with contextlib.closing(Lanes(blueprint, range(1), seed)) as one:
            self.spec = one.spec
        record = lane_record(self.spec)
        # Anonymous memory: there is no name that could be left behind.
        memory = multiprocessing.get_context("spawn").RawArray("b", lanes * record.itemsize)
        self._records = np.frombuffer(memory, record)
        self._over = np.ones(lanes, bool)  # lanes without an episode under way
        self._episode = np.full(lanes, -1)
        self._lost_counts = {"dropped_episodes": 0, "restarts": 0}  # of processes replaced
        self.replacements: list[str] = []
        shared = Shared(memory, self.spec, cloudpickle.dumps((blueprint, self.spec)), seed)
        bounds = np.linspace(0, lanes, min(self._environment.processes, lanes) + 1).astype(int)
        self._workers = [Worker(shared, *ends) for ends in pairwise(bounds.tolist())]
        atexit.register(self.close)  # before multiprocessing's own handler, which only waits
        try:
            for worker in self._workers:
                worker.start()
            self._replace_lost(self._answers(self._workers, self._start_timeout))
        except BaseException:
            self.close()
            raise

    @property
    def dropped_episodes(self) -> int:
        return self._count("dropped_episodes")

    @property
    def restarts(self) -> int:
        return self._count("restarts")

    def reset(self) -> Step:
        self._over[:] = True
        for worker in self._workers:
            worker.ask("reset")
        self._replace_lost(self._answers(self._workers, self._timeout))
        return self._step()

    def send(self, actions: np.ndarray) -> None:
        self._records["action"] = actions
        for worker in self._workers:
            worker.ask("step")

    def recv(self) -> Step:
        answers = self._answers(self._workers, self._timeout)
        for worker in answers:
            worker.failures = 0
        self._replace_lost(answers)
        return self._step()

    def truncate(self, lanes: np.ndarray) -> Step:
        for worker in self._workers:
            worker.ask("truncate", lanes[worker.lanes])
        # What is lost is replaced by the next `recv`.
        self._answers(self._workers, self._timeout)
        self._records["truncated"] |= lanes
        return self._step()

    def state(self) -> dict[str, np.ndarray]:
        for worker in self._workers:
            worker.ask("state")
        # What is lost is replaced by the next `recv`.
        answers = self._answers(self._workers, self._timeout)
        parts = [answers.get(worker) or self._lost_state(worker) for worker in self._workers]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def restore(self, state: dict[str, np.ndarray]) -> tuple[Step, np.ndarray]:
        held = len(state["episode"])
        if held != self.lanes:
            raise CheckpointError(f"the checkpoint holds {held} lanes, this run has {self.lanes}")
        self._over[:], self._episode = True, state["episode"].astype(np.int64)
        for worker in self._workers:
            worker.ask("restore", select(state, worker.low, worker.high))
        answers = self._answers(self._workers, self._timeout)
        same = np.zeros(self.lanes, bool)
        for worker, answer in answers.items():
            same[worker.lanes] = answer
        self._replace_lost(answers)
        return self._step(), same

    def close(self) -> None:
        atexit.unregister(self.close)
        for worker in self._workers:
            worker.leave()
        deadline = time.monotonic() + CLOSE_TIMEOUT
        for worker in self._workers:
            worker.join(deadline)
        self._workers = []

    def _step(self) -> Step:
        step = Step(*(self._records[name].copy() for name in Step._fields))
        # Kept apart from the records: a killed process may leave half of its next answer there.
        self._over, self._episode = step.terminal | step.truncated, self._records["episode"].copy()
        return step

    def _count(self, name: str) -> int:
        return int(self._records[name].sum()) + self._lost_counts[name]

    def _lost_state(self, worker: Worker) -> dict[str, np.ndarray]:
        """The last Step of a lost process without the actions that led to it.

        A restore begins new episodes there, unless the episodes have only begun.
        """
        lanes, records = worker.lanes, self._records
        none = np.zeros(0, np.int64)
        step = {name: records[name][lanes].copy() for name in Step._fields}
        length = np.zeros(worker.high - worker.low, np.int64)
        return step | {"episode": self._episode[lanes], "length": length, "action": none}

    def _answers(self, workers: Sequence[Worker], timeout: float) -> dict[Worker, Any]:
        """The answers of those workers that are not lost."""
        answers = {}
        for worker in workers:
            with contextlib.suppress(WorkerLost):
                answers[worker] = worker.answer(timeout)
        return answers

    def _replace_lost(self, answers: dict[Worker, Any]) -> None:
        """Replace the processes that gave no answer; new episodes begin in their lanes.

        An episode that was about to begin is passed over: it may be what the process died of.
        """
        lost = [worker for worker in self._workers if worker not in answers]
        passed = self._episode + self._over
        starting = lost
        while starting:
            for worker in starting:
                self._replace(worker, passed)
            started = self._answers(starting, self._start_timeout)
            starting = [worker for worker in starting if worker not in started]
            passed = passed + 1
        for worker in lost:
            under_way = ~self._over[worker.lanes]
            self._records["dropped"][worker.lanes] = under_way
            self._lost_counts["dropped_episodes"] += int(under_way.sum())

    def _replace(self, worker: Worker, passed: np.ndarray) -> None:
        """Start another process, or raise where that has not helped."""
        worker.failures += 1
        if worker.failures >= self._environment.max_failures:
            raise EnvironmentFault(
                f"{self.spec.env}: {worker.fault}: failure {worker.failures} in a row"
            )
        self.replacements.append(f"{self.spec.env}: {worker.fault} and is replaced")
        for name in self._lost_counts:
            self._lost_counts[name] += int(self._records[name][worker.lanes].sum())
            self._records[name][worker.lanes] = 0
        worker.start(passed[worker.lanes])
