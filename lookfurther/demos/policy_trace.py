"""Checks whether one policy without memory can play several games.

It can if the games take equal actions wherever they show equal observations.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from lookfurther.demos.episode import Episode

FRAME_STACK = 4  # frames in an observation

Observation = tuple[int, ...]  # hashes of the last frames, 0 before the first one
NO_FRAMES: Observation = (0,) * FRAME_STACK


def append_frame(observation: Observation, frame: np.ndarray) -> Observation:
    """The observation after one more frame."""
    return (*observation[1:], zlib.crc32(frame.tobytes()))


class PolicyTable:
    """The actions of all games so far, by observation.

    If nothing moves while a player waits, the player has two actions for the same observation: to
    wait and to go on. Both are then allowed.
    """

    def __init__(self) -> None:
        self.actions: dict[Observation, set[int]] = {}

    def add_game(self, trace: PolicyTrace) -> None:
        """Add all steps of a game."""
        for observation, action in trace.iter_steps():
            self.actions.setdefault(observation, set()).add(action)

    def allows(self, observation: Observation, action: int) -> bool:
        """Whether no game has the observation, or one has it with this action."""
        return action in self.actions.get(observation, {action})


class PolicyTrace(NamedTuple):
    """The observations and actions of a game so far."""

    observation: Observation = NO_FRAMES
    history: tuple[Any, ...] = ()  # (last observation, its action, history before it)
    conflicts: int = 0  # steps whose observation other games have with other actions only

    def add_frame(self, frame: np.ndarray) -> PolicyTrace:
        """The trace with the frame that the game shows now."""
        return self._replace(observation=append_frame(self.observation, frame))

    def add_action(self, action: int, table: PolicyTable) -> PolicyTrace:
        """The trace with the action of the current observation."""
        conflicts = self.conflicts + (not table.allows(self.observation, action))
        history = (self.observation, action, self.history)
        return PolicyTrace(self.observation, history, conflicts)

    def iter_steps(self) -> Iterator[tuple[Observation, int]]:
        """(observation, action) of every step, newest first."""
        history = self.history
        while history:
            observation, action, history = history
            yield observation, action


def trace_episode(episode: Episode, table: PolicyTable) -> PolicyTrace:
    """The trace of an episode as an agent observes it."""
    trace = PolicyTrace()
    for plane, action in zip(episode.planes[:-1], episode.actions.tolist(), strict=True):
        trace = trace.add_frame(plane).add_action(action, table)
    return trace
