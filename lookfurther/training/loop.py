"""The training loop: environments step while the learner learns, at a configured rate."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

from torch import Tensor

from lookfurther.config import Config
from lookfurther.errors import EnvironmentFault, TrainingDiverged
from lookfurther.learner import Learner
from lookfurther.replay.mixture import ReplayMixture
from lookfurther.training.chunk_source import ChunkSource
from lookfurther.training.hardware import get_rng_state, set_rng_state
from lookfurther.training.launch_limit import LaunchLimit
from lookfurther.training.schedules import build_schedules
from lookfurther.training.signals import StopRequested
from lookfurther.training.updates import UpdateRunner
from lookfurther.training.value_backup import start_value_backup

PRETRAINING_BURST = 50  # updates between two checks for a stop signal


class TrainingLoop:
    """Moves experience from the actors to the replays, and updates from the learner to the actors.

    It holds every number of a run: a checkpoint stores its `state`.
    """

    def __init__(
        self,
        config: Config,
        chunk_source: ChunkSource,
        mixture: ReplayMixture,
        learner: Learner,
        is_learning_concurrent: bool,
    ) -> None:
        self.config, self.chunk_source = config, chunk_source
        self.mixture, self.learner = mixture, learner
        self.is_learning_concurrent = is_learning_concurrent
        self.update_runner = UpdateRunner(mixture, learner)
        self.launch_limit = LaunchLimit(self.update_runner.device)
        chunk_source.connect_replay(mixture.agent)
        self.schedules = build_schedules(config, chunk_source, mixture, learner)
        start_value_backup(config, mixture, learner)
        self.wait_seconds = {"wait_environments": 0.0, "wait_learner": 0.0}

    @property
    def step(self) -> int:
        """Agent steps inserted into the replay."""
        return self.mixture.agent.inserted

    def run_iteration(self) -> None:
        """Pre-train, or add one chunk of experience and run the updates that are due."""
        if self.pretraining_updates_left:
            self.pretrain(min(PRETRAINING_BURST, self.pretraining_updates_left))
        else:
            self.run_step()

    @property
    def pretraining_updates_left(self) -> int:
        """Updates on demonstrations alone before the first step."""
        return max(0, self.config.learner.pretraining_updates - self.learner.updates)

    @cached_property
    def pretraining_runner(self) -> UpdateRunner:
        """Runs updates on demonstrations alone."""
        return UpdateRunner(self.mixture.expert_only(), self.learner)

    def pretrain(self, count: int) -> None:
        """Run `count` updates on demonstrations; after the last one the actors get the weights."""
        self.pretraining_runner.run(count)
        self.learner.raise_if_diverged()
        if not self.pretraining_updates_left:
            self.chunk_source.publish_weights(self.learner.acting_weights)

    def run_step(self) -> None:
        """Add one chunk of experience and run the updates that are due, meanwhile or after."""
        for schedule in self.schedules:
            schedule.set_value(schedule.value_at(self.step))
        self.chunk_source.start_step()
        if self.is_learning_concurrent:
            self.run_due_updates()
        with self._add_wait_seconds("wait_environments"):
            self.chunk_source.collect_chunk()
        if not self.is_learning_concurrent:
            self.run_due_updates()
        before = self.step
        self.chunk_source.add_chunk()
        self.launch_limit.record()
        if self.update_runner.device.type == "cpu":
            self.raise_if_diverged()
        period = self.config.actor.lanes * self.config.actor.weight_sync_period
        if has_crossed_multiple(before, self.step, period):
            self.chunk_source.publish_weights(self.learner.acting_weights)

    def run_due_updates(self) -> None:
        """Run the updates that are due for the steps inserted before this iteration."""
        with self._add_wait_seconds("wait_learner"):
            self.launch_limit.wait()
            due = updates_due(self.config, self.step) - self.learner.updates
            if due <= 0:
                return
            has_dropped = self.chunk_source.episode_stats.dropped_count > 0
            if has_dropped and not self.mixture.agent.tree.total_mass:
                raise EnvironmentFault("every episode was dropped: nothing is left to learn from")
            self.update_runner.run(due)

    def raise_if_diverged(self) -> None:
        """Raise TrainingDiverged if any number is not finite; on a GPU this waits for its work."""
        self.learner.raise_if_diverged()
        if not self.chunk_source.is_finite:
            raise TrainingDiverged(
                f"the network's values or n-step returns at step {self.step:,} are not finite"
            )

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Everything, for a checkpoint; raises TrainingDiverged instead of saving such numbers."""
        self.raise_if_diverged()
        try:
            actors = self.chunk_source.state()
        except StopRequested:  # an environment does not return: save without its episodes
            actors = self.chunk_source.state()
        files = {
            **self.learner.state(),
            "agent_replay": self.mixture.agent.state(),
            "random": get_rng_state(),
            **actors,
        }
        if self.mixture.expert is not None:
            files["expert_replay"] = self.mixture.expert.state()
        return files

    def load_state(self, files: dict[str, dict[str, Tensor]], updates: int) -> int:
        """The inverse of `state`; returns the number of episodes that could not be continued."""
        self.mixture.agent.load_state(files["agent_replay"])
        if self.mixture.expert is not None:
            self.mixture.expert.load_state(files["expert_replay"])
        self.learner.load_state(files, updates)
        restarted = self.chunk_source.load_state(files)
        set_rng_state(files["random"])
        return restarted

    @contextmanager
    def _add_wait_seconds(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.wait_seconds[name] += time.perf_counter() - start


def updates_due(config: Config, inserted: int) -> int:
    """Updates, with pre-training, that the learner should have made after `inserted` agent steps.

    The ratio of learning to acting is a setting; it does not depend on the machine's speed.
    """
    learnable = max(0, inserted - config.replay.learning_starts)
    updates = int(learnable * config.learner.samples_per_insert / config.batch_size)
    return config.learner.pretraining_updates + updates


def has_crossed_multiple(before: int, now: int, period: int) -> bool:
    """Whether (before, now] contains a multiple of `period`; never if the period is 0."""
    return period > 0 and before // period != now // period
