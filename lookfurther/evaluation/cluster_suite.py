"""Runs the jobs of a suite on the nodes of a Ray cluster, one learner for each GPU."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lookfurther.training.cluster.connection import connect_cluster  # before Ray: its messages

# isort: split
import ray
from ray import exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from lookfurther.errors import ConfigError, LookFurtherError
from lookfurther.evaluation.suite import SuiteJob
from lookfurther.evaluation.suite_runs import POLL_SECONDS, complete_job, finish_job
from lookfurther.training.signals import StopSignals

MAX_LOSSES = 3  # of the node of a job, before the job has failed


class JobSlot(NamedTuple):
    """A place for one job: a GPU of a node, or a node without GPUs."""

    node: str
    number: int
    gpus: int  # 0 or 1


class JobRunner:
    """The Ray actor of one job. `stop` may be called while `complete` runs."""

    def __init__(self) -> None:
        self._is_stopped = False

    def complete(self, job: SuiteJob, shared_file: Path) -> int:
        """Train and evaluate in processes of this node; returns the exit code of the last one."""
        if not shared_file.exists():
            raise ConfigError(
                f"{shared_file.parent} is not the same folder on all nodes: give an --out on"
                " shared storage"
            )
        return complete_job(job, lambda: None, lambda: self._is_stopped)

    def stop(self) -> None:
        """End the training with a checkpoint, or the evaluation."""
        self._is_stopped = True


class RunningJob(NamedTuple):
    """A job in its slot."""

    job: SuiteJob
    slot: JobSlot
    runner: Any


class ClusterSuite:
    """Assigns waiting jobs to free slots until all are done; nodes may join and leave."""

    def __init__(
        self, jobs: Sequence[SuiteJob], on_change: Callable[[SuiteJob], None], shared_file: Path
    ) -> None:
        self.waiting = deque(job for job in jobs if job.state != "done")
        self.on_change, self.shared_file = on_change, shared_file
        self.running: dict[Any, RunningJob] = {}  # by the call that returns the exit code
        self.losses: dict[Path, int] = {}  # of nodes, by the folder of the job

    def run(self, signals: StopSignals) -> None:
        """Run all jobs; a stop signal ends the running ones; they can be continued."""
        is_stopping = False
        while self.running or (self.waiting and not is_stopping):
            if signals.received_signal and not is_stopping:
                is_stopping = True
                for running in self.running.values():
                    running.runner.stop.remote()
            if not is_stopping:
                self._start_jobs()
            self._poll_jobs()

    def _start_jobs(self) -> None:
        taken = {running.slot for running in self.running.values()}
        free = [slot for slot in list_slots() if slot not in taken]
        for slot in free[: len(self.waiting)]:
            job = self.waiting.popleft()
            on_node: Any = NodeAffinitySchedulingStrategy(slot.node, soft=False)
            runner = _make_remote_class(
                num_cpus=0, num_gpus=slot.gpus, max_concurrency=2, scheduling_strategy=on_node
            ).remote()
            job.state = "running"
            call = runner.complete.remote(job, self.shared_file)
            self.running[call] = RunningJob(job, slot, runner)
            self.on_change(job)

    def _poll_jobs(self) -> None:
        ready, others = (
            ray.wait(list(self.running), timeout=POLL_SECONDS) if self.running else ([], [])
        )
        for call in others:
            self.running[call].job.read_newest_row()
            self.on_change(self.running[call].job)
        for call in ready:
            self._finish_job(call)

    def _finish_job(self, call: Any) -> None:
        running = self.running.pop(call)
        job = running.job
        try:
            finish_job(job, ray.get(call))
        except exceptions.RayTaskError as error:
            if not isinstance(error.cause, LookFurtherError):
                raise
            job.state, job.failure = "failed", str(error.cause)
        except exceptions.RayActorError:
            self._requeue_job(job)
        else:
            ray.kill(running.runner)
        self.on_change(job)

    def _requeue_job(self, job: SuiteJob) -> None:
        """Resume a job whose node was lost on another one."""
        self.losses[job.folder] = self.losses.get(job.folder, 0) + 1
        if self.losses[job.folder] >= MAX_LOSSES:
            job.state, job.failure = "failed", f"its node was lost {MAX_LOSSES} times"
        else:
            job.state = "waiting"
            self.waiting.append(job)


def list_slots() -> list[JobSlot]:
    """The slots of all nodes: each GPU is one, and each node without GPUs."""
    slots = []
    for node in ray.nodes():
        if node["Alive"]:
            gpus = int(node["Resources"].get("GPU", 0))
            slots += [JobSlot(node["NodeID"], i, min(gpus, 1)) for i in range(gpus or 1)]
    return slots


def run_jobs_on_cluster(
    jobs: Sequence[SuiteJob], on_change: Callable[[SuiteJob], None], out: Path, address: str
) -> None:
    """Complete the jobs that are not done on the nodes of a cluster."""
    out.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.NamedTemporaryFile(dir=out, prefix=".shared-") as shared_file,
        connect_cluster(address),
        StopSignals() as signals,  # Ray replaces handlers of signals when it starts
    ):
        ClusterSuite(jobs, on_change, Path(shared_file.name)).run(signals)


def _make_remote_class(**options: Any) -> Any:
    """`JobRunner` as a Ray actor; Ray's own types do not cover the options."""
    remote: Any = ray.remote
    return remote(**options)(JobRunner)
