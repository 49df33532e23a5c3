"""Jump starts: some lanes begin with a part of a demonstration, then the agent takes over.

The agent then practises every part of the demonstrated game from the first minute on, not only the
parts that it reaches by itself (Salimans & Chen 2018; Uchendu et al. 2022). Jump starts are not in
the paper and are off by default.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import numpy as np
import torch
from torch import Generator, Tensor

from lookfurther.actor import Actor
from lookfurther.demos.episode import Episode
from lookfurther.envs.atari import AtariEnvs
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
    """The part of a demonstration that each lane plays before the agent takes over.

    In the lanes `is_jumping` [m] bool, a new episode draws the step of the handover uniformly from
    the best demonstration with the same no-op start. The episode is truncated `length` steps after
    the handover.

    If `is_limited`, the handover is at most `length` steps after the demonstration has more reward
    than the other lanes: the agent practises near the end of what it can do, and the lanes spend
    fewer steps on the way there.
    """

    def __init__(
        self,
        noop_starts: Mapping[int, Episode],
        is_jumping: np.ndarray,
        length: int,
        rng: np.random.Generator,
        is_limited: bool = False,
    ) -> None:
        self.noop_starts, self.is_jumping = noop_starts, is_jumping
        self.length, self.rng, self.is_limited = length, rng, is_limited
        m = len(is_jumping)
        self.returns = np.zeros(m)  # of the episodes in progress
        self.recent_returns: deque[float] = deque(maxlen=RECENT_EPISODES)  # of the other lanes
        self.demos: list[Episode | None] = [None] * m
        self.elapsed = np.zeros(m, np.int64)  # steps of the episode in progress
        self.handovers = np.zeros(m, np.int64)  # the step at which the agent takes over
        self.gains = np.zeros(m)  # rewards since then
        self.recent_gains: deque[tuple[float, float]] = deque(maxlen=RECENT_EPISODES)

    @property
    def is_agent_acting(self) -> np.ndarray:
        """[m] bool: the lanes that have passed the handover."""
        return self.elapsed >= self.handovers

    def forced_actions(self) -> np.ndarray:
        """[m] int64: the demonstration's next action; -1 where the agent acts."""
        forced = np.full(len(self.demos), -1, np.int64)
        for i in np.flatnonzero(~self.is_agent_acting):
            demo = self.demos[i]
            assert demo is not None
            forced[i] = demo.actions[self.elapsed[i]]
        return forced

    def add_step(self, step: Step, noop_frames: np.ndarray) -> np.ndarray:
        """Follow the lanes by one step; returns the lengths of episodes that just began, else 0."""
        self.gains += np.where(self.is_agent_acting, step.reward, 0)
        self.returns += step.reward
        self.elapsed += 1
        is_over = step.terminal | step.truncated
        self.recent_returns.extend(self.returns[is_over & ~self.is_jumping])
        for i in np.flatnonzero(is_over & self.is_jumping).tolist():
            self._record_gain(i)
        lengths = np.zeros(len(self.demos), np.int64)
        for i in np.flatnonzero(step.first).tolist():
            demo = self.noop_starts.get(int(noop_frames[i])) if self.is_jumping[i] else None
            self._begin_episode(i, demo)
            lengths[i] = self.handovers[i] + self.length if demo else 0
        return lengths

    def _begin_episode(self, i: int, demo: Episode | None) -> None:
        self.elapsed[i], self.gains[i], self.returns[i], self.demos[i] = 0, 0.0, 0.0, demo
        self.handovers[i] = self.rng.integers(self._last_handover(demo) + 1) if demo else 0

    def _last_handover(self, demo: Episode) -> int:
        last = len(demo) - 1
        if not self.is_limited:
            return last
        best = max([0.0, *self.recent_returns, *self.returns[~self.is_jumping]])
        return min(last, steps_to_exceed(demo, best) + self.length)

    def _record_gain(self, i: int) -> None:
        """Store the agent's gain and the demonstration's in the same number of steps."""
        demo, handover = self.demos[i], self.handovers[i]
        if demo is not None and self.elapsed[i] > handover:
            shown = demo.rewards[handover : handover + self.length].sum()
            self.recent_gains.append((float(self.gains[i]), float(shown)))

    def mean_gains(self) -> dict[str, float]:
        """Mean gain after the handover in recent episodes: the agent's and the demonstration's."""
        if not self.recent_gains:
            return {}
        agent, demo = np.mean(self.recent_gains, axis=0)
        return {"jump_start_gain": float(agent), "jump_start_demo_gain": float(demo)}


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
    """An `ActorGroup` in which some lanes have jump starts."""

    envs: AtariEnvs

    def __init__(
        self,
        envs: AtariEnvs,
        actor: Actor,
        limits: EpisodeLimits,
        jumps: JumpStarts,
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
        return self.jumps.mean_gains()

    def resume_episodes(self, step: Step, is_continued: np.ndarray) -> None:
        super().resume_episodes(step, is_continued)
        self._begin_episodes(step)

    def start_step(self) -> None:
        with self.on_actor_stream():
            self.forced_actions.load(self.jumps.forced_actions())
        super().start_step()

    def _apply_limits(self, step: Step) -> Step:
        step = super()._apply_limits(step)
        self._begin_episodes(step)
        return step

    def _find_life_losses(self, step: Step) -> np.ndarray:
        """Only the agent's own: a demonstration may go on after a lost life."""
        return super()._find_life_losses(step) & self.jumps.is_agent_acting

    def _begin_episodes(self, step: Step) -> None:
        self.limits.set_steps_left(self.jumps.add_step(step, self.envs.episode_frames))
