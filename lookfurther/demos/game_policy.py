"""Counts where a game needs memory.

An agent without memory takes one action for each observation. A human often does not: it waits
for a laser to go out, and starts just before that, while the laser looks as it did all the time.
An agent with a clock (`environment.clock_period`) sees the time as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from lookfurther.demos.aligned_game import require_aligned
from lookfurther.demos.episode import Episode
from lookfurther.demos.playback import step_ends
from lookfurther.demos.policy_trace import NO_FRAMES, Observation, append_frame
from lookfurther.envs.clock import NO_CLOCK, ClockDisplay

Moment = tuple[Observation, int]  # with the time that a clock shows
Policy = Mapping[Moment, frozenset[int]]
NO_POLICY: Policy = MappingProxyType({})


class GameClock(NamedTuple):
    """An agent's clock in a game."""

    display: ClockDisplay = NO_CLOCK
    frames: int = 0  # since power-on

    @property
    def time(self) -> int:
        """What it shows."""
        return int(self.display.time_after(np.array(self.frames)))

    def after_step(self) -> GameClock:
        return self._replace(frames=self.frames + self.display.action_repeat)


NO_GAME_CLOCK = GameClock()


class GamePolicy:
    """The actions of each observation of a game so far, and of the games before it."""

    def __init__(
        self, frame: np.ndarray, clock: GameClock = NO_GAME_CLOCK, known: Policy = NO_POLICY
    ) -> None:
        self.conflicts = 0  # observation and action, where the observation has another one already
        self.observation = append_frame(NO_FRAMES, frame)
        self.clock = clock
        self._settled = known  # shared by copies
        self._recent: dict[Moment, frozenset[int]] = {}

    def copy(self) -> GamePolicy:
        """A policy that can continue differently."""
        copied = GamePolicy.__new__(GamePolicy)
        copied.conflicts, copied.observation = self.conflicts, self.observation
        copied.clock = self.clock
        copied._settled, copied._recent = self._settled, dict(self._recent)
        return copied

    def settle(self) -> Policy:
        """Make later copies fast; returns all actions."""
        self._settled, self._recent = {**self._settled, **self._recent}, {}
        return self._settled

    def add_step(self, action: int, next_frame: np.ndarray) -> None:
        """Take an action, and see the frame that follows."""
        moment = (self.observation, self.clock.time)
        known = self._recent.get(moment) or self._settled.get(moment)
        if known is None:
            self._recent[moment] = frozenset((action,))
        elif action not in known:
            self.conflicts += 1
            self._recent[moment] = known | {action}
        self.observation = append_frame(self.observation, next_frame)
        self.clock = self.clock.after_step()


def trace_policy(
    episode: Episode,
    action_repeat: int,
    clock: ClockDisplay = NO_CLOCK,
    known: Policy = NO_POLICY,
) -> GamePolicy:
    """All steps of an aligned episode.

    The no-ops before the first action do not count: they are the start of the game.
    """
    input_log, _ = require_aligned(episode, action_repeat)
    actions = episode.actions.tolist()
    first = next((step for step, action in enumerate(actions) if action), 0)
    begin = int(step_ends(input_log, action_repeat)[first])
    policy = GamePolicy(episode.planes[first], GameClock(clock, begin), known)
    for action, plane in zip(actions[first:], episode.planes[first + 1 :], strict=True):
        policy.add_step(action, plane)
    return policy
