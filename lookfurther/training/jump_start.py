"""Jump starts: some lanes begin with a part of a demonstration, then the agent takes over.

The agent then practises every part of the demonstrated game from the first minute on, not only the
parts that it reaches by itself (Salimans & Chen 2018; Uchendu et al. 2022). Jump starts are not in
the paper and are off by default.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from torch import Generator, Tensor

from lookfurther.actor import Actor
from lookfurther.demos.episode import Episode
from lookfurther.envs.demo_starts import DemoStart
from lookfurther.envs.split import SplitEnvs
from lookfurther.exploration import Exploration
from lookfurther.system.pinned_memory import copy_array, make_pinned_buffer
from lookfurther.training.actors import ActorGroup
from lookfurther.training.episode_limits import EpisodeLimits
from lookfurther.types import Step

RECENT_EPISODES = 100  # of which the gains are averaged


def jump_start_lanes(lanes: int, share: float) -> np.ndarray:
    """[lanes] bool: the given share of the lanes, spread evenly over all epsilons."""
    counts = np.floor(np.arange(lanes + 1) * share + 1e-9)
    return np.diff(counts) > 0


class JumpStarts:
    """Where along a demonstration each lane begins, and when the agent takes over.

    In the lanes `is_jumping` [m] bool, a new episode draws one of the demonstrations and the step
    of the handover uniformly. It begins with a saved state shortly before that step, and the lane
    plays the demonstration up to it. The episode is truncated `length` steps after the handover.

    If `is_limited`, the handover is at most `length` steps after the demonstration has more reward
    than the other lanes: the agent practises near the end of what it can do.
    """

    def __init__(
        self,
        demos: Sequence[Episode],
        is_jumping: np.ndarray,
        length: int,
        rng: np.random.Generator,
        is_limited: bool = False,
    ) -> None:
        self.demos, self.is_jumping = demos, is_jumping
        self.length, self.rng, self.is_limited = length, rng, is_limited
        m = len(is_jumping)
        self.returns = np.zeros(m)  # of the episodes in progress
        self.recent_returns: deque[float] = deque(maxlen=RECENT_EPISODES)  # of the other lanes
        self.starts = [DemoStart(0, 0)] * m  # of the episodes in progress, or of the next ones
        self.is_over = np.zeros(m, bool)
        self.elapsed = np.zeros(m, np.int64)  # steps of the episode in progress
        self.shown_steps = np.zeros(m, np.int64)  # of them, those before the handover
        self.gains = np.zeros(m)  # rewards after the handover
        self.recent_gains: deque[tuple[float, float]] = deque(maxlen=RECENT_EPISODES)

    @property
    def is_agent_acting(self) -> np.ndarray:
        """[m] bool: the lanes that have passed the handover."""
        return self.elapsed >= self.shown_steps

    def forced_actions(self) -> np.ndarray:
        """[m] int64: the demonstration's next action; -1 where the agent acts."""
        forced = np.full(len(self.is_jumping), -1, np.int64)
        for i in np.flatnonzero(~self.is_agent_acting):
            start = self.starts[i]
            forced[i] = self.demos[start.path].actions[start.saved_step + self.elapsed[i]]
        return forced

    def add_step(self, step: Step) -> np.ndarray:
        """Follow the lanes by one step; returns the lengths of episodes that just began, else 0."""
        self.gains += np.where(self.is_agent_acting, step.reward, 0)
        self.returns += step.reward
        self.elapsed += 1
        lengths = np.zeros(len(self.is_jumping), np.int64)
        for i in np.flatnonzero(step.first).tolist():
            lengths[i] = self._begin_episode(i)
        self.is_over = step.terminal | step.truncated
        self.recent_returns.extend(self.returns[self.is_over & ~self.is_jumping])
        for i in np.flatnonzero(self.is_over & self.is_jumping).tolist():
            self._record_gain(i)
            self.starts[i], self.shown_steps[i] = self._draw_start(), 0
        return lengths

    def _begin_episode(self, i: int) -> int:
        """Returns the length of the new episode of lane i; 0 means no limit."""
        if not self.is_over[i]:  # after a fault, not after an end: the lane begins at step 0
            self.starts[i] = DemoStart(0, 0)
        start = self.starts[i]
        self.elapsed[i], self.gains[i], self.returns[i] = 0, 0.0, 0.0
        self.shown_steps[i] = start.handover - start.saved_step
        return int(self.shown_steps[i]) + self.length if self.is_jumping[i] else 0

    def _draw_start(self) -> DemoStart:
        path = int(self.rng.integers(len(self.demos)))
        return DemoStart(path, int(self.rng.integers(self._last_handover(self.demos[path]) + 1)))

    def _last_handover(self, demo: Episode) -> int:
        last = len(demo) - 1
        if not self.is_limited:
            return last
        best = max([0.0, *self.recent_returns, *self.returns[~self.is_jumping]])
        return min(last, steps_to_exceed(demo, best) + self.length)

    def _record_gain(self, i: int) -> None:
        """Store the agent's gain and the demonstration's in the same number of steps."""
        start = self.starts[i]
        if self.elapsed[i] > self.shown_steps[i]:
            rewards = self.demos[start.path].rewards[start.handover :]
            self.recent_gains.append((float(self.gains[i]), float(rewards[: self.length].sum())))

    def collect_metrics(self) -> dict[str, float]:
        """The latest possible handover, and mean gains after the handover in recent episodes."""
        metrics = {"jump_start_last_step": float(max(map(self._last_handover, self.demos)))}
        if self.recent_gains:
            agent, demo = np.mean(self.recent_gains, axis=0)
            metrics |= {"jump_start_gain": float(agent), "jump_start_demo_gain": float(demo)}
        return metrics


def steps_to_exceed(demo: Episode, reward: float) -> int:
    """The steps until the sum of a demonstration's rewards is above `reward`; if never, all."""
    is_above = np.cumsum(demo.rewards) > reward
    return int(is_above.argmax()) + 1 if is_above.any() else len(demo)


class ForcedActions:
    """Takes the forced action of a lane if it is 0 or more, else that of another exploration."""

    def __init__(self, inner: Exploration, lanes: int, device: torch.device) -> None:
        self.inner = inner
        self.forced_action = torch.full((lanes,), -1, dtype=torch.int64, device=device)
        self._pinned = make_pinned_buffer(self.forced_action)

    def load(self, actions: np.ndarray) -> None:
        """Set the actions [m] of the next step; -1 where the inner exploration selects."""
        copy_array(self.forced_action, self._pinned, actions)

    def select_actions(
        self, q: Tensor, epsilon: Tensor, first: Tensor, generator: Generator
    ) -> Tensor:
        selected = self.inner.select_actions(q, epsilon, first, generator)
        return torch.where(self.forced_action >= 0, self.forced_action, selected)

    def state(self) -> dict[str, Tensor]:
        return self.inner.state()


class JumpStartGroup(ActorGroup):
    """An `ActorGroup` in which some lanes have jump starts: those of the second kind of `envs`."""

    def __init__(
        self, envs: SplitEnvs, actor: Actor, limits: EpisodeLimits, jumps: JumpStarts
    ) -> None:
        self.jumps = jumps
        self.forced_actions = ForcedActions(actor.exploration, len(actor.lanes), actor.device)
        actor.exploration = self.forced_actions
        super().__init__(envs, actor, limits)
        self._begin_episodes(self.last_step)

    @property
    def is_counted(self) -> np.ndarray:
        return ~self.jumps.is_jumping

    def collect_metrics(self) -> dict[str, float]:
        return self.jumps.collect_metrics()

    def resume_episodes(self, step: Step, is_continued: np.ndarray) -> None:
        super().resume_episodes(step, is_continued)
        self._begin_episodes(step)

    def start_step(self) -> None:
        with self.on_actor_stream():
            self.forced_actions.load(self.jumps.forced_actions())
        super().start_step()

    def _adapt_actions(self, actions: np.ndarray) -> np.ndarray:
        """In lanes that begin an episode, the action is the start."""
        actions = actions.copy()
        for i in np.flatnonzero(self.jumps.is_over & self.jumps.is_jumping):
            actions[i] = self.jumps.starts[i].encode(len(self.jumps.demos))
        return actions

    def _apply_limits(self, step: Step, is_life_lost: np.ndarray) -> Step:
        step = super()._apply_limits(step, is_life_lost)
        self._begin_episodes(step)
        return step

    def _begin_episodes(self, step: Step) -> None:
        self.limits.set_steps_left(self.jumps.add_step(step))
