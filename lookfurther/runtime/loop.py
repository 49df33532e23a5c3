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
from lookfurther.learner import Learner
from lookfurther.mixture import Mixture
from lookfurther.runtime import checkpoint, hardware
from lookfurther.runtime.best import Best
from lookfurther.runtime.captured import Backlog, Captured
from lookfurther.runtime.folder import RunFolder
from lookfurther.runtime.local import Group, LocalSource
from lookfurther.runtime.metrics import Clock, Metrics, memory_gib
from lookfurther.runtime.progress import Progress
from lookfurther.runtime.rate import updates_due
from lookfurther.runtime.signals import StopSignals
from lookfurther.runtime.updates import Updates


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

    @property
    def step(self) -> int:
        """Agent steps inserted."""
        return self.mixture.agent.inserted

    def run(self) -> Summary:
        """Train until the steps or minutes are used up, or a signal asks to stop."""
        self.last_save, self.logged = self.clock.seconds(), self.step
        with StopSignals() as signals:
            begin = self.step or -1
            metrics = Metrics(self.folder.metrics, self.folder.events, resume_at_step=begin)
            try:
                stopped = self._turns(metrics, signals)
                if self.logged != self.step:
                    self._log(metrics)
            except EnvironmentFault:
                self.save(in_flight=False)
                raise
            finally:
                self.progress.stop()
                metrics.close()
            self._publish()
        return self._summary(stopped)

    def _turns(self, metrics: Metrics, signals: StopSignals) -> str:
        run = self.config.run
        self.progress.start()
        self.clock.rates(step=self.step, updates=self.learner.updates, **self.waits)
        while self.step < run.steps:
            before = self.step
            self.turn()
            if crossed(before, self.step, run.evaluate_period):
                self.evaluate()
            if crossed(before, self.step, run.log_period):
                self._log(metrics)
            if self._save_is_due(before):
                self.save()
            if signals.requested:
                return signals.requested
            if run.minutes and self.clock.seconds() >= 60 * run.minutes:
                return "time"
        return "done"

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

    def save(self, in_flight: bool = True) -> None:
        """Publish a checkpoint on the way; a disk that is full costs a warning, not the run."""
        try:
            self._publish(in_flight)
        except CheckpointError as error:
            self.progress.note(f"warning: no checkpoint at step {self.step:,}: {error}")
        self.last_save = self.clock.seconds()

    def _publish(self, in_flight: bool = True) -> None:
        self.check()
        files = {
            **self.learner.state(),
            "agent_replay": self.mixture.agent.state(),
            "random": hardware.random_state(),
            **self.source.state(in_flight),
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
        files = defaultdict(dict, saved.files)
        self.learner.load_state(files, saved.facts["updates"])
        self.mixture.agent.load_state(files["agent_replay"])
        if self.mixture.expert is not None:
            self.mixture.expert.load_state(files["expert_replay"])
        anew = self.source.load_state(files)
        hardware.load_random_state(files["random"])
        try:
            self.best.resume()
        except CheckpointError as error:
            self.progress.note(f"warning: the best weights so far are lost: {error}")
        self.clock = Clock(saved.facts["seconds"])
        begun = f"; {anew} episodes in flight begin anew" if anew else ""
        self.progress.note(f"resumed at step {self.step:,} from {saved.path.name}{begun}")

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
