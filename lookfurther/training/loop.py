"""The one training loop: environments step while the learner learns, at an explicit rate."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from lookfurther.acceleration import make_graphed
from lookfurther.config import Config
from lookfurther.errors import CheckpointError, EnvironmentFault, TrainingDiverged
from lookfurther.learner import Learner
from lookfurther.replay.mixture import ReplayMixture
from lookfurther.training import checkpoint, checkpoint_metadata, hardware
from lookfurther.training.actors import ActorGroup, ActorPool
from lookfurther.training.best_checkpoint import BestCheckpoint
from lookfurther.training.console import ProgressDisplay
from lookfurther.training.launch_limit import LaunchLimit
from lookfurther.training.metrics import MetricsWriter, TrainingClock, peak_memory_gib
from lookfurther.training.rate import updates_due
from lookfurther.training.run_dir import RunDir
from lookfurther.training.signals import EnvCallTracker, StopRequested, StopSignals
from lookfurther.training.updates import UpdateRunner


class Summary(NamedTuple):
    """How a run ended."""

    folder: Path
    step: int  # agent steps
    updates: int
    episodes: int
    return_mean: float  # recent episodes, all lanes
    return_low_epsilon: float  # recent episodes, the least exploring quarter of the lanes
    return_best: float
    minutes: float
    stop_reason: str  # "done", "time", or the signal's name


class TrainingLoop:
    """Ties a source of Chunks, the replays and the learner together, and keeps the books."""

    def __init__(
        self,
        config: Config,
        run_dir: RunDir,
        actor_pool: ActorPool,
        mixture: ReplayMixture,
        learner: Learner,
        best_checkpoint: BestCheckpoint,
        progress: ProgressDisplay,
    ) -> None:
        self.config, self.run_dir, self.actor_pool = config, run_dir, actor_pool
        self.mixture, self.learner = mixture, learner
        self.best_checkpoint, self.progress = best_checkpoint, progress
        self.evaluation_metrics: dict[str, float] = {}  # the last one, until it is reported
        self.clock = TrainingClock()
        self.update_runner = UpdateRunner(mixture, learner)
        self.launch_limit = LaunchLimit(self.update_runner.device)
        self.is_learning_concurrent = hardware.is_learning_concurrent(config)
        self.replay_writers = [self._build_replay_writer(group) for group in actor_pool.groups]
        self.wait_seconds = {"wait_environments": 0.0, "wait_learner": 0.0}  # seconds
        self.last_save_seconds = 0.0
        self.last_logged_step = 0  # the step of the last report
        self.reported_replacements = 0  # of worker processes, as far as the user knows of them

    @property
    def step(self) -> int:
        """Agent steps inserted."""
        return self.mixture.agent.inserted

    def run(self) -> Summary:
        """Train until the steps or minutes are used up, or a signal asks to stop."""
        self.last_save_seconds, self.last_logged_step = self.clock.elapsed_seconds(), self.step
        with StopSignals(self._is_in_environment) as signals:
            begin = self.step or -1
            metrics = MetricsWriter(
                self.run_dir.metrics_file, self.run_dir.events_dir, resume_at_step=begin
            )
            try:
                stopped = self._run_until_stopped(metrics, signals)
                if self.last_logged_step != self.step:
                    self._write_metrics(metrics)
            except BaseException as error:
                if isinstance(error, EnvironmentFault) or self._is_environment_error(error):
                    self.save_or_warn()
                raise
            finally:
                self._warn_of_replacements()
                self.progress.stop()
                metrics.close()
            self._save_checkpoint()
        return self._build_summary(stopped)

    def _all_env_calls(self) -> list[EnvCallTracker]:
        return [
            self.best_checkpoint.env_calls,
            *(group.env_calls for group in self.actor_pool.groups),
        ]

    def _is_in_environment(self) -> bool:
        """Whether code of environments runs now."""
        return any(code.is_running for code in self._all_env_calls())

    def _is_environment_error(self, error: BaseException) -> bool:
        """Whether this came out of an environment, such as a SystemExit."""
        return any(code.last_error is error for code in self._all_env_calls())

    def _run_until_stopped(self, metrics: MetricsWriter, signals: StopSignals) -> str:
        """Take turns until the end, and give its reason."""
        self.progress.start()
        self.clock.compute_rates(step=self.step, updates=self.learner.updates, **self.wait_seconds)
        try:
            while self.step < self.config.run.steps:
                self._run_iteration_and_report(metrics)
                if signals.received_signal:
                    return signals.received_signal
                if self._is_time_up():
                    return "time"
        except StopRequested:
            assert signals.received_signal is not None
            return signals.received_signal
        return "done"

    def _run_iteration_and_report(self, metrics: MetricsWriter) -> None:
        """A turn, and what is due after it: evaluation, metrics, checkpoint."""
        run, before = self.config.run, self.step
        self.run_iteration()
        self._warn_of_replacements()
        if has_crossed_multiple(before, self.step, run.evaluate_period):
            self.evaluate_weights()
        if has_crossed_multiple(before, self.step, run.log_period):
            self._write_metrics(metrics)
        if self.run_dir.checkpoint_signal.is_requested:
            self.run_dir.checkpoint_signal.is_requested = False
            if self.save_or_warn():
                self.progress.print_message(f"checkpoint saved on request at step {self.step:,}")
        elif self._is_save_due(before):
            self.save_or_warn()

    def _is_time_up(self) -> bool:
        minutes = self.config.run.minutes
        return bool(minutes) and self.clock.elapsed_seconds() >= 60 * minutes

    def _warn_of_replacements(self) -> None:
        """Warn of worker processes that were replaced."""
        for line in self.actor_pool.worker_replacements[self.reported_replacements :]:
            self.progress.print_message(f"warning: {line}")
            self.reported_replacements += 1

    def _write_metrics(self, metrics: MetricsWriter) -> None:
        row = self.collect_metrics() | self.evaluation_metrics
        self.evaluation_metrics = {}
        metrics.write(row)
        self.progress.update(row)
        self.last_logged_step = self.step

    def run_iteration(self) -> None:
        """One step of a group of lanes, and the updates that are due, meanwhile or after it."""
        self.actor_pool.start_step()
        if self.is_learning_concurrent:
            self.run_due_updates()
        with self._add_wait_seconds("wait_environments"):
            chunk, group = self.actor_pool.collect_chunk()
        if not self.is_learning_concurrent:
            self.run_due_updates()
        before = self.step
        self.replay_writers[self.actor_pool.acting_group]()
        self.mixture.agent.finish_add(chunk, group.actor.lanes.start)
        group.release_chunk()
        self.launch_limit.record()
        if self.update_runner.device.type == "cpu":
            self.raise_if_diverged()
        period = self.config.actor.lanes * self.config.actor.weight_sync_period
        if has_crossed_multiple(before, self.step, period):
            self.actor_pool.publish_weights(self.learner.online_weights)

    def run_due_updates(self) -> None:
        """The updates that are due, of what was inserted before this turn."""
        with self._add_wait_seconds("wait_learner"):
            self.launch_limit.wait()
            due = updates_due(self.config, self.step) - self.learner.updates
            if due <= 0:
                return
            if (
                self.actor_pool.episode_stats.dropped_count
                and not self.mixture.agent.tree.total_mass
            ):
                raise EnvironmentFault("every episode was dropped: nothing is left to learn from")
            self.update_runner.run(due)

    def raise_if_diverged(self) -> None:
        """Stop where anything was not finite; on a GPU this waits for its work."""
        self.learner.raise_if_diverged()
        if not self.actor_pool.is_finite:
            raise TrainingDiverged(
                f"the network's values or n-step returns at step {self.step:,} are not finite"
            )

    def _build_replay_writer(self, group: ActorGroup) -> Callable[[], object]:
        """Adding a group's chunk to the replay."""
        agent, actor = self.mixture.agent, group.actor
        first = actor.lanes.start
        return make_graphed(
            lambda: agent.write_slots(actor.closed_chunk(), first), self.update_runner.device
        )

    @contextmanager
    def _add_wait_seconds(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.wait_seconds[name] += time.perf_counter() - start

    def collect_metrics(self) -> dict[str, Any]:
        """The metrics since the last report."""
        self.raise_if_diverged()
        returns, config, low = (
            self.actor_pool.episode_stats,
            self.config,
            self.actor_pool.low_epsilon_lanes(),
        )
        rates = self.clock.compute_rates(
            step=self.step, updates=self.learner.updates, **self.wait_seconds
        )
        learned = self.learner.updates * config.batch_size
        return {
            "step": self.step,
            "frames": self.step
            * (config.environment.action_repeat if config.env.startswith("ALE/") else 1),
            "updates": self.learner.updates,
            "minutes": self.clock.elapsed_seconds() / 60,
            "steps_per_second": rates["step"],
            "updates_per_second": rates["updates"],
            "samples_per_insert": learned / max(1, self.step - config.replay.learning_starts),
            "episodes": returns.episode_count,
            "dropped_episodes": returns.dropped_count,
            "workers_replaced": len(self.actor_pool.worker_replacements),
            "return_mean": returns.mean_return(),
            "return_low_epsilon": returns.mean_return(low),
            "return_best": returns.best_return,
            "return_in_progress_low_epsilon": returns.mean_return_in_progress(low),
            "return_in_progress_best": returns.best_return_in_progress,
            "length_mean": returns.mean_length(),
            "replay_fill": len(self.mixture.agent) / config.replay.capacity,
            "memory_gib": peak_memory_gib(),
            **{name: rates[name] for name in self.wait_seconds},
            **self.update_runner.compute_mean_terms(),
        }

    def _is_save_due(self, before: int) -> bool:
        run = self.config.run
        by_step = has_crossed_multiple(before, self.step, run.checkpoint_period)
        waited = self.clock.elapsed_seconds() - self.last_save_seconds
        by_time = run.checkpoint_minutes and waited >= 60 * run.checkpoint_minutes
        return bool(by_step or by_time)

    def save_or_warn(self) -> bool:
        """Publish a checkpoint on the way; a disk that is full costs a warning, not the run."""
        self.last_save_seconds = self.clock.elapsed_seconds()
        try:
            self._save_checkpoint()
        except CheckpointError as error:
            self.progress.print_message(f"warning: no checkpoint at step {self.step:,}: {error}")
            return False
        return True

    def _save_checkpoint(self) -> None:
        self.raise_if_diverged()
        try:
            source = self.actor_pool.state()
        except StopRequested:  # an environment does not return: go without its episodes
            source = self.actor_pool.state()
        files = {
            **self.learner.state(),
            "agent_replay": self.mixture.agent.state(),
            "random": hardware.get_rng_state(),
            **source,
        }
        if self.mixture.expert is not None:
            files["expert_replay"] = self.mixture.expert.state()
        keep = self.config.run.keep_checkpoints
        checkpoint.save(
            self.run_dir.checkpoints_dir, self.step, files, self._checkpoint_metadata(), keep
        )

    def evaluate_weights(self) -> None:
        """See how the current weights play, and keep them if none played better."""
        if not self.learner.updates:
            return
        try:
            score = self.best_checkpoint.evaluate(
                self.learner.online_network, self.step, self._checkpoint_metadata()
            )
            self.evaluation_metrics = {"evaluation_mean": score}
        except CheckpointError as error:
            self.progress.print_message(
                f"warning: best weights not kept at step {self.step:,}: {error}"
            )

    def _checkpoint_metadata(self) -> dict[str, Any]:
        """What a checkpoint says besides its tensors."""
        return {
            "step": self.step,
            "updates": self.learner.updates,
            "seconds": self.clock.elapsed_seconds(),
            "spec": self.mixture.agent.spec._asdict(),
            "config": asdict(self.config),
        }

    def load_checkpoint(self, saved: checkpoint.Checkpoint) -> None:
        """Go on from a checkpoint."""
        seconds = checkpoint_metadata.get_number(saved, "seconds")
        try:
            anew = self._load_state(saved)
        except (KeyError, IndexError, OverflowError, RuntimeError, TypeError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise CheckpointError(f"{saved.path} does not fit this run: {reason}") from error
        try:
            self.best_checkpoint.load_best_score()
        except CheckpointError as error:
            self.progress.print_message(f"warning: the best weights so far are lost: {error}")
        self.clock = TrainingClock(seconds)
        begun = f"; {anew} episodes in flight begin anew" if anew else ""
        self.progress.print_message(f"resumed at step {self.step:,} from {saved.path.name}{begun}")

    def _load_state(self, saved: checkpoint.Checkpoint) -> int:
        """The tensors of a checkpoint; gives the number of episodes that could not go on."""
        files = defaultdict(dict, saved.files)
        self.learner.load_state(files, checkpoint_metadata.get_count(saved, "updates"))
        self.mixture.agent.load_state(files["agent_replay"])
        if self.mixture.expert is not None:
            self.mixture.expert.load_state(files["expert_replay"])
        anew = self.actor_pool.load_state(files)
        hardware.set_rng_state(files["random"])
        return anew

    def _build_summary(self, stopped: str) -> Summary:
        returns = self.actor_pool.episode_stats
        return Summary(
            folder=self.run_dir.path,
            step=self.step,
            updates=self.learner.updates,
            episodes=returns.episode_count,
            return_mean=returns.mean_return(),
            return_low_epsilon=returns.mean_return(self.actor_pool.low_epsilon_lanes()),
            return_best=returns.best_return,
            minutes=self.clock.elapsed_seconds() / 60,
            stop_reason=stopped,
        )


def has_crossed_multiple(before: int, now: int, period: int) -> bool:
    """Whether a multiple of `period` lies in (before, now]; never for period 0."""
    return period > 0 and before // period != now // period
