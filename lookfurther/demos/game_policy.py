"""Counts where a game needs memory.

An agent without memory takes one action for each observation. A human often does not: it waits
for a laser to go out, and starts just before that, while the laser looks as it did all the time.
An agent with a clock (`environment.clock_period`) sees the time as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from lookfurther.demos.episode import Episode
from lookfurther.demos.policy_trace import NO_FRAMES, Observation, append_frame

Moment = tuple[Observation, int]  # with the time that a clock shows
NO_ACTIONS: Mapping[Moment, frozenset[int]] = MappingProxyType({})


class GamePolicy:
    """The actions of each observation of a game so far; a clock's period of 0 is no clock."""

    def __init__(self, frame: np.ndarray, clock_period: int = 0) -> None:
        self.conflicts = 0  # observation and action, where the observation has another one already
        self.observation = append_frame(NO_FRAMES, frame)
        self.clock_period, self.time = clock_period, 0
        self._settled = NO_ACTIONS  # shared by copies
        self._recent: dict[Moment, frozenset[int]] = {}

    def copy(self) -> GamePolicy:
        """A policy that can continue differently."""
        copied = GamePolicy.__new__(GamePolicy)
        copied.conflicts, copied.observation = self.conflicts, self.observation
        copied.clock_period, copied.time = self.clock_period, self.time
        copied._settled, copied._recent = self._settled, dict(self._recent)
        return copied

    def settle(self) -> None:
        """Make later copies fast."""
        self._settled, self._recent = {**self._settled, **self._recent}, {}

    def add_step(self, action: int, next_frame: np.ndarray) -> None:
        """Take an action, and see the frame that follows."""
        moment = (self.observation, self.time)
        known = self._recent.get(moment) or self._settled.get(moment)
        if known is None:
            self._recent[moment] = frozenset((action,))
        elif action not in known:
            self.conflicts += 1
            self._recent[moment] = known | {action}
        self.observation = append_frame(self.observation, next_frame)
        if self.clock_period:
            self.time = (self.time + 1) % self.clock_period


def count_conflicts(episode: Episode, clock_period: int = 0) -> int:
    """Actions of an episode that an agent without memory cannot choose.

    The no-ops before the first action do not count: they are the start of the game.
    """
    actions = episode.actions.tolist()
    first = next((step for step, action in enumerate(actions) if action), 0)
    policy = GamePolicy(episode.planes[first], clock_period)
    for action, plane in zip(actions[first:], episode.planes[first + 1 :], strict=True):
        policy.add_step(action, plane)
    return policy.conflicts
