"""A training run: the training loop with signals, metrics, evaluations and checkpoints."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict
from typing import Any

from lookfurther.config import Config
from lookfurther.envs.naming import is_atari
from lookfurther.errors import CheckpointError, ClusterFault, EnvironmentFault
from lookfurther.system.formatting import pluralize
from lookfurther.training.callbacks import CallbackList
from lookfurther.training.checkpoints import checkpoint, checkpoint_metadata
from lookfurther.training.checkpoints.best_checkpoint import BestCheckpoint
from lookfurther.training.loop import TrainingLoop, has_crossed_multiple
from lookfurther.training.monitoring.metrics import MetricsWriter, TrainingClock, peak_memory_gib
from lookfurther.training.monitoring.quiet_progress import Progress
from lookfurther.training.monitoring.summary import Summary
from lookfurther.training.run_dir import RunDir
from lookfurther.training.signals import EnvCallTracker, StopRequested, StopSignals


class TrainingRun:
    """Runs a training loop to its end and records it in its run folder."""

    def __init__(
        self,
        config: Config,
        run_dir: RunDir,
        loop: TrainingLoop,
        best_checkpoint: BestCheckpoint,
        progress: Progress,
        callbacks: CallbackList,
    ) -> None:
        self.config, self.run_dir, self.loop = config, run_dir, loop
        self.best_checkpoint, self.progress = best_checkpoint, progress
        self.callbacks = callbacks
        self.clock = TrainingClock()
        self.evaluation_metrics: dict[str, float] = {}  # of the last evaluation, until logged
        self.last_save_seconds = 0.0
        self.last_logged_step = 0
        self.reported_replacements = 0  # worker replacements that were printed

    @property
    def step(self) -> int:
        """Agent steps inserted into the replay."""
        return self.loop.step

    def run(self) -> Summary:
        """Train until the steps or minutes are used up, or until a signal or a callback stops."""
        self.callbacks.start(self.step)
        stop_reason = "error"
        try:
            stop_reason = self._run_and_save()
        finally:
            summary = self._build_summary(stop_reason)
            self.callbacks.call("on_end", self.step, summary)
        return summary

    def _run_and_save(self) -> str:
        """Train to the end, save a checkpoint, and return the reason to stop."""
        self.last_save_seconds, self.last_logged_step = self.clock.elapsed_seconds(), self.step
        with StopSignals(self._is_in_environment) as signals:
            metrics = MetricsWriter(self.run_dir.metrics_file, resume_at_step=self.step or -1)
            try:
                stop_reason = self._run_until_stopped(metrics, signals)
                if self.last_logged_step != self.step:
                    self._write_metrics(metrics)
            except BaseException as error:
                is_fault = isinstance(error, EnvironmentFault | ClusterFault)
                if is_fault or self._is_environment_error(error):
                    self.save_or_warn()
                raise
            finally:
                self._warn_of_replacements()
                self.progress.stop()
                metrics.close()
            self._save_checkpoint()
        return stop_reason

    def _all_env_calls(self) -> list[EnvCallTracker]:
        return [self.best_checkpoint.env_calls, *self.loop.chunk_source.env_calls]

    def _is_in_environment(self) -> bool:
        """Whether an environment's code is running now."""
        return any(calls.is_running for calls in self._all_env_calls())

    def _is_environment_error(self, error: BaseException) -> bool:
        """Whether an environment raised this error, such as a SystemExit."""
        return any(calls.last_error is error for calls in self._all_env_calls())

    def _run_until_stopped(self, metrics: MetricsWriter, signals: StopSignals) -> str:
        """Run iterations until the end, and return the reason to stop."""
        self.progress.start()
        self._compute_rates()
        try:
            while self.step < self.config.run.steps:
                self._run_iteration_and_report(metrics)
                if stop_reason := signals.received_signal or self.callbacks.stop_reason:
                    return stop_reason
                if self._is_time_up():
                    return "time"
        except StopRequested:
            assert signals.received_signal is not None
            return signals.received_signal
        return "done"

    def _run_iteration_and_report(self, metrics: MetricsWriter) -> None:
        """One iteration, then the evaluation, metrics and checkpoint that are due."""
        run, before = self.config.run, self.step
        updates = self.loop.learner.updates
        self.loop.run_iteration()
        self._report_pretraining(updates)
        self._warn_of_replacements()
        for episode in self.loop.chunk_source.episode_stats.newly_finished:
            self.callbacks.call("on_episode", self.step, episode)
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

    def _report_pretraining(self, updates_before: int) -> None:
        """Print a line for every tenth of the pre-training."""
        total, updates = self.config.learner.pretraining_updates, self.loop.learner.updates
        is_due = has_crossed_multiple(updates_before, updates, max(1, total // 10))
        if updates_before < total and (is_due or updates == total):
            loss = self.loop.pretraining_runner.compute_mean_terms()["loss"]
            text = f"pre-training: {updates:,} of {total:,} updates, loss {loss:.4g}"
            self.progress.print_message(text)

    def _is_time_up(self) -> bool:
        minutes = self.config.run.minutes
        return bool(minutes) and self.clock.elapsed_seconds() >= 60 * minutes

    def _warn_of_replacements(self) -> None:
        """Print a warning for each newly replaced worker process."""
        for line in self.loop.chunk_source.worker_replacements[self.reported_replacements :]:
            self.progress.print_warning(line)
            self.reported_replacements += 1

    def _write_metrics(self, metrics: MetricsWriter) -> None:
        row = self.collect_metrics() | self.evaluation_metrics
        self.evaluation_metrics = {}
        metrics.write(row)
        self.callbacks.call("on_log", self.step, row)
        self.progress.update(row)
        self.last_logged_step = self.step

    def _compute_rates(self) -> dict[str, float]:
        updates = self.loop.learner.updates
        return self.clock.compute_rates(step=self.step, updates=updates, **self.loop.wait_seconds)

    def collect_metrics(self) -> dict[str, Any]:
        """The metrics since the last call."""
        self.loop.raise_if_diverged()
        config, source, learner = self.config, self.loop.chunk_source, self.loop.learner
        stats, low_epsilon = source.episode_stats, source.low_epsilon_lanes()
        rates = self._compute_rates()
        frames_per_step = config.environment.action_repeat if is_atari(config.env) else 1
        updates = max(0, learner.updates - config.learner.pretraining_updates)
        learned_items = updates * config.batch_size
        return {
            "step": self.step,
            "frames": self.step * frames_per_step,
            "updates": learner.updates,
            "minutes": self.clock.elapsed_seconds() / 60,
            "steps_per_second": rates["step"],
            "updates_per_second": rates["updates"],
            "samples_per_insert": learned_items / max(1, self.step - config.replay.learning_starts),
            "episodes": stats.episode_count,
            "dropped_episodes": stats.dropped_count,
            "workers_replaced": len(source.worker_replacements),
            "return_mean": stats.mean_return(),
            "return_low_epsilon": stats.mean_return(low_epsilon),
            "return_best": stats.best_return,
            "return_in_progress_low_epsilon": stats.mean_return_in_progress(low_epsilon),
            "return_in_progress_best": stats.best_return_in_progress,
            "length_mean": stats.mean_length(),
            "replay_fill": len(self.loop.mixture.agent) / config.replay.capacity,
            "memory_gib": peak_memory_gib(),
            **{name: rates[name] for name in self.loop.wait_seconds},
            **source.collect_metrics(),
            **self.loop.update_runner.compute_mean_terms(),
        }

    def evaluate_weights(self) -> None:
        """Evaluate the current weights, and save them if their score is the highest so far."""
        if not self.loop.learner.updates:
            return
        try:
            score = self.best_checkpoint.evaluate(
                self.loop.learner.acting_weights.network, self.step, self._checkpoint_metadata()
            )
            self.evaluation_metrics = {"evaluation_mean": score}
            self.callbacks.call("on_evaluation", self.step, score)
        except CheckpointError as error:
            self.progress.print_warning(f"best weights not kept at step {self.step:,}: {error}")

    def _is_save_due(self, before: int) -> bool:
        run = self.config.run
        is_due_by_step = has_crossed_multiple(before, self.step, run.checkpoint_period)
        since_save = self.clock.elapsed_seconds() - self.last_save_seconds
        is_due_by_time = run.checkpoint_minutes and since_save >= 60 * run.checkpoint_minutes
        return bool(is_due_by_step or is_due_by_time)

    def save_or_warn(self) -> bool:
        """Save a checkpoint during the run; a full disk prints a warning and does not stop it."""
        self.last_save_seconds = self.clock.elapsed_seconds()
        try:
            self._save_checkpoint()
        except CheckpointError as error:
            self.progress.print_warning(f"no checkpoint at step {self.step:,}: {error}")
            return False
        return True

    def _save_checkpoint(self) -> None:
        run, files, metadata = self.config.run, self.loop.state(), self._checkpoint_metadata()
        if not run.keep_final_replay and (self.step >= run.steps or self._is_time_up()):
            del files["agent_replay"]
        folder, keep = self.run_dir.checkpoints_dir, run.keep_checkpoints
        if self.step == 0:  # pre-training continues at the same step
            path = checkpoint.save_and_remove_others(folder, 0, files, metadata)
        else:
            path = checkpoint.save(folder, self.step, files, metadata, keep)
        self.callbacks.call("on_checkpoint", self.step, path)

    def _checkpoint_metadata(self) -> dict[str, Any]:
        """What a checkpoint stores besides tensors."""
        return {
            "step": self.step,
            "updates": self.loop.learner.updates,
            "seconds": self.clock.elapsed_seconds(),
            "spec": self.loop.mixture.agent.spec._asdict(),
            "config": asdict(self.config),
        }

    def load_checkpoint(self, saved: checkpoint.Checkpoint) -> None:
        """Continue from a checkpoint."""
        if "agent_replay" not in saved.files:
            raise CheckpointError(
                f"{saved.path} has no replay (run.keep_final_replay): start a new run with --init"
            )
        seconds = checkpoint_metadata.get_number(saved, "seconds")
        try:
            updates = checkpoint_metadata.get_count(saved, "updates")
            restarted = self.loop.load_state(defaultdict(dict, saved.files), updates)
        except (KeyError, IndexError, OverflowError, RuntimeError, TypeError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise CheckpointError(f"{saved.path} does not fit this run: {reason}") from error
        try:
            self.best_checkpoint.load_best_score()
        except CheckpointError as error:
            self.progress.print_warning(f"the best weights so far are lost: {error}")
        self.clock = TrainingClock(seconds)
        note = f"; {pluralize(restarted, 'episode')} in progress started again" if restarted else ""
        self.progress.print_message(f"resumed at step {self.step:,} from {saved.path.name}{note}")

    def _build_summary(self, stop_reason: str) -> Summary:
        stats = self.loop.chunk_source.episode_stats
        low_epsilon = self.loop.chunk_source.low_epsilon_lanes()
        return Summary(
            folder=self.run_dir.path,
            step=self.step,
            updates=self.loop.learner.updates,
            episodes=stats.episode_count,
            return_mean=stats.mean_return(),
            return_low_epsilon=stats.mean_return(low_epsilon),
            return_best=stats.best_return,
            minutes=self.clock.elapsed_seconds() / 60,
            stop_reason=stop_reason,
        )
