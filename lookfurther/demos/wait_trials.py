"""What a search over waits tries at each of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

EDITED_STEPS = 14  # after a wait that are changed
MAX_REWARD_DELAY = 20  # steps after the original's reward


class Wait(NamedTuple):
    """Steps of the original: a wait, and what it plays before the next wait."""

    begin: int
    end: int  # of the wait
    next_begin: int


class WaitLimits(NamedTuple):
    """How long a wait may become."""

    extension: int  # times its length that it may become longer
    extra_steps: int  # that it may become longer at most
    delay: int  # steps that a game may be behind the original

    def longest(self, wait: Wait, steps: int) -> int:
        """The steps of a wait in a game with this number of steps before it."""
        length = wait.end - wait.begin
        extra = min(self.extension * length, self.extra_steps)
        return min(length + extra, wait.end + self.delay - steps)


class TrialLimits(NamedTuple):
    """What a trial may be like after each of its steps."""

    max_conflicts: int
    min_lives: int = 0
    rewards: np.ndarray = np.zeros(0)  # [n] sums of the original's rewards

    def hold(self, step: int, conflicts: int, lives: int, reward: float) -> bool:
        """Whether a trial may go on. Its rewards may come some steps later."""
        expected = step - MAX_REWARD_DELAY
        return (
            conflicts <= self.max_conflicts
            and lives >= self.min_lives
            and not (0 <= expected < len(self.rewards) and reward < self.rewards[expected])
        )


class WaitTrials(NamedTuple):
    """The lengths of a wait that are tried, and the steps after it."""

    limits: WaitLimits
    max_new_conflicts: int
    edited: bool = False  # small changes of the steps after the wait

    def steps_after(self, actions: tuple[int, ...]) -> list[tuple[int, ...]]:
        """The actions that are tried instead of those of the original."""
        return edit_actions(actions) if self.edited else [actions]


UNCHANGED_TRIALS = WaitTrials(WaitLimits(0, 0, 0), max_new_conflicts=0)
USUAL_TRIALS = WaitTrials(WaitLimits(4, 50, 100), max_new_conflicts=4)
LONG_TRIALS = WaitTrials(WaitLimits(200, 200, 300), max_new_conflicts=4)
EDITED_TRIALS = WaitTrials(WaitLimits(50, 50, 100), max_new_conflicts=0, edited=True)


def edit_actions(actions: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Small changes of the first steps.

    Up to three steps are left out, a step is added, or a step is moved or replaced. The actions
    are those of the first steps.
    """
    edits = dict.fromkeys(_edit_first_steps(actions, min(EDITED_STEPS, len(actions))))
    edits.pop(actions, None)
    return list(edits)


def _edit_first_steps(actions: tuple[int, ...], steps: int) -> Iterator[tuple[int, ...]]:
    for step in range(steps):
        for count in (1, 2, 3):
            yield actions[:step] + actions[step + count :]
        yield from _add_step(actions[:step] + actions[step + 1 :], actions[:steps])
    yield from _add_step(actions, actions[:steps])


def _add_step(actions: tuple[int, ...], first: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """One of the first steps' actions, at each of their places."""
    for place in range(len(first)):
        for action in sorted(set(first)):
            yield (*actions[:place], action, *actions[place:])
