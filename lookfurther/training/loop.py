"""The one training loop: environments step while the learner learns, at an explicit rate."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from lookfurther.config import Config
from lookfurther.errors import CheckpointError, EnvironmentFault, TrainingDiverged
from lookfurther.gpu.graphs import Backlog, Captured
from lookfurther.learner import Learner
from lookfurther.replay.mixture import Mixture
from lookfurther.training import checkpoint, checkpoint_metadata, hardware
from lookfurther.training.actors import Group, LocalSource
from lookfurther.training.best_checkpoint import Best
from lookfurther.training.console import Progress
from lookfurther.training.metrics import Clock, Metrics, memory_gib
from lookfurther.training.rate import updates_due
from lookfurther.training.run_dir import RunFolder
from lookfurther.training.signals import EnvironmentCode, StopRequested, StopSignals
from lookfurther.training.updates import Updates


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
    stopped: str  # "done", "time", or the signal's name


class Loop:
    """Ties a source of Chunks, the replays and the learner together, and keeps the books."""

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        source: LocalSource,
        mixture: Mixture,
        learner: Learner,
        best: Best,
        progress: Progress,
    ) -> None:
        self.config, self.folder, self.source = config, folder, source
        self.mixture, self.learner = mixture, learner
        self.best, self.progress = best, progress
        self.evaluation: dict[str, float] = {}  # the last one, until it is reported
        self.clock = Clock()
        self.updates = Updates(mixture, learner)
        self.backlog = Backlog(self.updates.device)
        self.beside = hardware.beside(config)
        self.writes = [self._write(group) for group in source.groups]
        self.waits = {"wait_environments": 0.0, "wait_learner": 0.0}  # seconds
        self.last_save = 0.0
        self.logged = 0  # the step of the last report
        self.replacements = 0  # of worker processes, as far as the user knows of them

    @property
    def step(self) -> int:
        """Agent steps inserted."""
        return self.mixture.agent.inserted

    def run(self) -> Summary:
        """Train until the steps or minutes are used up, or a signal asks to stop."""
        self.last_save, self.logged = self.clock.seconds(), self.step
        with StopSignals(self._in_environment) as signals:
            begin = self.step or -1
            metrics = Metrics(self.folder.metrics, self.folder.events, resume_at_step=begin)
            try:
                stopped = self._turns(metrics, signals)
                if self.logged != self.step:
                    self._log(metrics)
            except BaseException as error:
                if isinstance(error, EnvironmentFault) or self._raised_by_environment(error):
                    self.save()
                raise
            finally:
                self._note_replacements()
                self.progress.stop()
                metrics.close()
            self._publish()
        return self._summary(stopped)

    def _environment_code(self) -> list[EnvironmentCode]:
        return [
            self.best.environment_code,
            *(group.environment_code for group in self.source.groups),
        ]

    def _in_environment(self) -> bool:
        """Whether code of environments runs now."""
        return any(code.running for code in self._environment_code())

    def _raised_by_environment(self, error: BaseException) -> bool:
        """Whether this came out of an environment, such as a SystemExit."""
        return any(code.raised is error for code in self._environment_code())

    def _turns(self, metrics: Metrics, signals: StopSignals) -> str:
        """Take turns until the end, and give its reason."""
        self.progress.start()
        self.clock.rates(step=self.step, updates=self.learner.updates, **self.waits)
        try:
            while self.step < self.config.run.steps:
                self._turn_and_books(metrics)
                if signals.requested:
                    return signals.requested
                if self._time_is_up():
                    return "time"
        except StopRequested:
            assert signals.requested is not None
            return signals.requested
        return "done"

    def _turn_and_books(self, metrics: Metrics) -> None:
        """A turn, and what is due after it: evaluation, metrics, checkpoint."""
        run, before = self.config.run, self.step
        self.turn()
        self._note_replacements()
        if crossed(before, self.step, run.evaluate_period):
            self.evaluate()
        if crossed(before, self.step, run.log_period):
            self._log(metrics)
        if self.folder.checkpoint_signal.requested:
            self.folder.checkpoint_signal.requested = False
            if self.save():
                self.progress.note(f"checkpoint saved on request at step {self.step:,}")
        elif self._save_is_due(before):
            self.save()

    def _time_is_up(self) -> bool:
        minutes = self.config.run.minutes
        return bool(minutes) and self.clock.seconds() >= 60 * minutes

    def _note_replacements(self) -> None:
        """Warn of worker processes that were replaced."""
        for line in self.source.replacements[self.replacements :]:
            self.progress.note(f"warning: {line}")
            self.replacements += 1

    def _log(self, metrics: Metrics) -> None:
        row = self.report() | self.evaluation
        self.evaluation = {}
        metrics.write(row)
        self.progress.update(row)
        self.logged = self.step

    def turn(self) -> None:
        """One step of a group of lanes, and the updates that are due, meanwhile or after it."""
        self.source.start()
        if self.beside:
            self.learn()
        with self._waiting("wait_environments"):
            chunk, group = self.source.collect()
        if not self.beside:
            self.learn()
        before = self.step
        self.writes[self.source.turn]()
        self.mixture.agent.settle(chunk, group.actor.lanes.start)
        group.release()
        self.backlog.add()
        if self.updates.device.type == "cpu":
            self.check()
        period = self.config.actor.lanes * self.config.actor.weights_period
        if crossed(before, self.step, period):
            self.source.load_weights(self.learner.weights)

    def learn(self) -> None:
        """The updates that are due, of what was inserted before this turn."""
        with self._waiting("wait_learner"):
            self.backlog.wait()
            due = updates_due(self.config, self.step) - self.learner.updates
            if due <= 0:
                return
            if self.source.returns.dropped and not self.mixture.agent.tree.total:
                raise EnvironmentFault("every episode was dropped: nothing is left to learn from")
            self.updates.run(due)

    def check(self) -> None:
        """Stop where anything was not finite; on a GPU this waits for its work."""
        self.learner.check()
        if not self.source.sound:
            raise TrainingDiverged(
                f"the network's values or n-step returns at step {self.step:,} are not finite"
            )

    def _write(self, group: Group) -> Captured:
        """Adding a group's chunk to the replay."""
        agent, actor = self.mixture.agent, group.actor
        first = actor.lanes.start
        return Captured(lambda: agent.write(actor.chunk(), first), self.updates.device)

    @contextmanager
    def _waiting(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.waits[name] += time.perf_counter() - start

    def report(self) -> dict[str, Any]:
        """The metrics since the last report."""
        self.check()
        returns, config, low = self.source.returns, self.config, self.source.low_epsilon()
        rates = self.clock.rates(step=self.step, updates=self.learner.updates, **self.waits)
        learned = self.learner.updates * config.batch
        return {
            "step": self.step,
            "frames": self.step
            * (config.environment.repeat if config.env.startswith("ALE/") else 1),
            "updates": self.learner.updates,
            "minutes": self.clock.seconds() / 60,
            "steps_per_second": rates["step"],
            "updates_per_second": rates["updates"],
            "samples_per_insert": learned / max(1, self.step - config.replay.start),
            "episodes": returns.episodes,
            "dropped_episodes": returns.dropped,
            "workers_replaced": len(self.source.replacements),
            "return_mean": returns.mean(),
            "return_low_epsilon": returns.mean(low),
            "return_best": returns.best,
            "under_way_low_epsilon": returns.under_way(low),
            "under_way_best": returns.under_way_best,
            "length_mean": returns.length(),
            "replay_fill": len(self.mixture.agent) / config.replay.capacity,
            "memory_gib": memory_gib(),
            **{name: rates[name] for name in self.waits},
            **self.updates.means(),
        }

    def _save_is_due(self, before: int) -> bool:
        run = self.config.run
        by_step = crossed(before, self.step, run.checkpoint_period)
        waited = self.clock.seconds() - self.last_save
        by_time = run.checkpoint_minutes and waited >= 60 * run.checkpoint_minutes
        return bool(by_step or by_time)

    def save(self) -> bool:
        """Publish a checkpoint on the way; a disk that is full costs a warning, not the run."""
        self.last_save = self.clock.seconds()
        try:
            self._publish()
        except CheckpointError as error:
            self.progress.note(f"warning: no checkpoint at step {self.step:,}: {error}")
            return False
        return True

    def _publish(self) -> None:
        self.check()
        try:
            source = self.source.state()
        except StopRequested:  # an environment does not return: go without its episodes
            source = self.source.state()
        files = {
            **self.learner.state(),
            "agent_replay": self.mixture.agent.state(),
            "random": hardware.random_state(),
            **source,
        }
        if self.mixture.expert is not None:
            files["expert_replay"] = self.mixture.expert.state()
        keep = self.config.run.keep
        checkpoint.save(self.folder.checkpoints, self.step, files, self._facts(), keep)

    def evaluate(self) -> None:
        """See how the current weights play, and keep them if none played better."""
        if not self.learner.updates:
            return
        try:
            score = self.best.evaluate(self.learner.online, self.step, self._facts())
            self.evaluation = {"evaluation_mean": score}
        except CheckpointError as error:
            self.progress.note(f"warning: best weights not kept at step {self.step:,}: {error}")

    def _facts(self) -> dict[str, Any]:
        """What a checkpoint says besides its tensors."""
        return {
            "step": self.step,
            "updates": self.learner.updates,
            "seconds": self.clock.seconds(),
            "spec": self.mixture.agent.spec._asdict(),
            "config": asdict(self.config),
        }

    def load(self, saved: checkpoint.Checkpoint) -> None:
        """Go on from a checkpoint."""
        seconds = checkpoint_metadata.measure(saved, "seconds")
        try:
            anew = self._load_state(saved)
        except (KeyError, IndexError, OverflowError, RuntimeError, TypeError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise CheckpointError(f"{saved.path} does not fit this run: {reason}") from error
        try:
            self.best.resume()
        except CheckpointError as error:
            self.progress.note(f"warning: the best weights so far are lost: {error}")
        self.clock = Clock(seconds)
        begun = f"; {anew} episodes in flight begin anew" if anew else ""
        self.progress.note(f"resumed at step {self.step:,} from {saved.path.name}{begun}")

    def _load_state(self, saved: checkpoint.Checkpoint) -> int:
        """The tensors of a checkpoint; gives the number of episodes that could not go on."""
        files = defaultdict(dict, saved.files)
        self.learner.load_state(files, checkpoint_metadata.count(saved, "updates"))
        self.mixture.agent.load_state(files["agent_replay"])
        if self.mixture.expert is not None:
            self.mixture.expert.load_state(files["expert_replay"])
        anew = self.source.load_state(files)
        hardware.load_random_state(files["random"])
        return anew

    def _summary(self, stopped: str) -> Summary:
        returns = self.source.returns
        return Summary(
            folder=self.folder.path,
            step=self.step,
            updates=self.learner.updates,
            episodes=returns.episodes,
            return_mean=returns.mean(),
            return_low_epsilon=returns.mean(self.source.low_epsilon()),
            return_best=returns.best,
            minutes=self.clock.seconds() / 60,
            stopped=stopped,
        )


def crossed(before: int, now: int, period: int) -> bool:
    """Whether a multiple of `period` lies in (before, now]; never for period 0."""
    return period > 0 and before // period != now // period
