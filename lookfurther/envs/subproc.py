"""Gymnasium environments stepped in worker processes, with arrays in shared memory."""

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

from lookfurther.envs.factory import EnvFactory
from lookfurther.envs.subproc_worker import (
    CLOSE_TIMEOUT,
    START_TIMEOUT,
    Worker,
    WorkerLost,
    WorkerSetup,
    lane_dtype,
)
from lookfurther.envs.sync import SyncEnvs, check_lane_count, select_lanes
from lookfurther.errors import EnvironmentFault
from lookfurther.types import Step


class SubprocEnvs:
    """The same lanes and results as `SyncEnvs`, split over `environment.processes` workers.

    A process that dies or hangs is replaced, and new episodes begin in its lanes.
    """

    lives = None

    def __init__(self, factory: EnvFactory, lanes: int, seed: int) -> None:
        self.lanes, self._env_config = lanes, factory.env_config
        self._timeout = self._start_timeout = self._env_config.worker_timeout
        if self._timeout:
            self._start_timeout = max(self._timeout, START_TIMEOUT)
        with contextlib.closing(SyncEnvs(factory, range(1), seed)) as single_env:
            self.spec = single_env.spec
        dtype = lane_dtype(self.spec)
        # Anonymous memory has no name, so nothing is left behind after a crash.
        memory = multiprocessing.get_context("spawn").RawArray("b", lanes * dtype.itemsize)
        self._records = np.frombuffer(memory, dtype)
        self._is_over = np.ones(lanes, bool)  # lanes without an episode in progress
        self._episode_numbers = np.full(lanes, -1)
        self._lost_counts = {"dropped_episodes": 0, "restarts": 0}  # of replaced processes
        self.replacements: list[str] = []
        setup = WorkerSetup(memory, self.spec, cloudpickle.dumps(factory), seed)
        bounds = np.linspace(0, lanes, min(self._env_config.processes, lanes) + 1).astype(int)
        self._workers = [Worker(setup, *ends) for ends in pairwise(bounds.tolist())]
        atexit.register(self.close)  # runs before multiprocessing's own handler, which only waits
        try:
            for worker in self._workers:
                worker.start()
            self._replace_lost(self._collect_answers(self._workers, self._start_timeout))
        except BaseException:
            self.close()
            raise

    @property
    def dropped_episodes(self) -> int:
        return self._total_count("dropped_episodes")

    @property
    def restarts(self) -> int:
        return self._total_count("restarts")

    def reset(self) -> Step:
        self._is_over[:] = True
        for worker in self._workers:
            worker.send_command("reset")
        self._replace_lost(self._collect_answers(self._workers, self._timeout))
        return self._read_step()

    def send(self, actions: np.ndarray) -> None:
        self._records["action"] = actions
        for worker in self._workers:
            worker.send_command("step")

    def recv(self) -> Step:
        answers = self._collect_answers(self._workers, self._timeout)
        for worker in answers:
            worker.consecutive_failures = 0
        self._replace_lost(answers)
        return self._read_step()

    def truncate(self, lanes: np.ndarray) -> Step:
        for worker in self._workers:
            worker.send_command("truncate", lanes[worker.lane_slice])
        # The next `recv` replaces lost workers.
        self._collect_answers(self._workers, self._timeout)
        self._records["truncated"] |= lanes
        return self._read_step()

    def state(self) -> dict[str, np.ndarray]:
        for worker in self._workers:
            worker.send_command("state")
        # The next `recv` replaces lost workers.
        answers = self._collect_answers(self._workers, self._timeout)
        parts = [answers.get(worker) or self._lost_state(worker) for worker in self._workers]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def restore(self, state: dict[str, np.ndarray]) -> tuple[Step, np.ndarray]:
        check_lane_count(state, self.lanes)
        self._is_over[:], self._episode_numbers = True, state["episode"].astype(np.int64)
        for worker in self._workers:
            worker.send_command("restore", select_lanes(state, worker.low, worker.high))
        answers = self._collect_answers(self._workers, self._timeout)
        continued = np.zeros(self.lanes, bool)
        for worker, answer in answers.items():
            continued[worker.lane_slice] = answer
        self._replace_lost(answers)
        return self._read_step(), continued

    def close(self) -> None:
        atexit.unregister(self.close)
        for worker in self._workers:
            worker.request_exit()
        deadline = time.monotonic() + CLOSE_TIMEOUT
        for worker in self._workers:
            worker.join(deadline)
        self._workers = []

    def _read_step(self) -> Step:
        step = Step(*(self._records[name].copy() for name in Step._fields))
        # Copied out of the records, where a killed process may leave half of its next answer.
        self._is_over = step.terminal | step.truncated
        self._episode_numbers = self._records["episode"].copy()
        return step

    def _total_count(self, name: str) -> int:
        return int(self._records[name].sum()) + self._lost_counts[name]

    def _lost_state(self, worker: Worker) -> dict[str, np.ndarray]:
        """The last Step of a lost process, without the actions that led to it.

        `restore` begins new episodes in its lanes, unless the episodes have just begun.
        """
        lanes, records = worker.lane_slice, self._records
        step = {name: records[name][lanes].copy() for name in Step._fields}
        return step | {
            "episode": self._episode_numbers[lanes],
            "length": np.zeros(worker.high - worker.low, np.int64),
            "action": np.zeros(0, np.int64),
        }

    def _collect_answers(self, workers: Sequence[Worker], timeout: float) -> dict[Worker, Any]:
        """The answers of all workers that are not lost."""
        answers = {}
        for worker in workers:
            with contextlib.suppress(WorkerLost):
                answers[worker] = worker.receive_answer(timeout)
        return answers

    def _replace_lost(self, answers: dict[Worker, Any]) -> None:
        """Replace the processes that did not answer; new episodes begin in their lanes.

        An episode that was about to begin is skipped: it may have killed the process.
        """
        lost = [worker for worker in self._workers if worker not in answers]
        previous_episodes = self._episode_numbers + self._is_over
        starting = lost
        while starting:
            for worker in starting:
                self._replace_worker(worker, previous_episodes)
            started = self._collect_answers(starting, self._start_timeout)
            starting = [worker for worker in starting if worker not in started]
            previous_episodes = previous_episodes + 1
        for worker in lost:
            in_progress = ~self._is_over[worker.lane_slice]
            self._records["dropped"][worker.lane_slice] = in_progress
            self._lost_counts["dropped_episodes"] += int(in_progress.sum())

    def _replace_worker(self, worker: Worker, previous_episodes: np.ndarray) -> None:
        """Start another process, or raise if too many have failed in a row."""
        worker.consecutive_failures += 1
        if worker.consecutive_failures >= self._env_config.max_failures:
            raise EnvironmentFault(
                f"{self.spec.env}: {worker.fault}: failure {worker.consecutive_failures} in a row"
            )
        self.replacements.append(f"{self.spec.env}: {worker.fault} and is replaced")
        for name in self._lost_counts:
            self._lost_counts[name] += int(self._records[name][worker.lane_slice].sum())
            self._records[name][worker.lane_slice] = 0
        worker.start(previous_episodes[worker.lane_slice])
