"""When the episodes of a group of lanes are truncated. None of these limits is in the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from lookfurther.demos.episode import Episode
from lookfurther.types import Step


@dataclass
class EpisodeLimits:
    """Limits in steps, 0 for none: of every episode, and of the time without a positive reward.

    `steps_left` [m] are the steps until each lane's episode is truncated, at first those of
    `first_steps`; 0 means never.
    """

    first_steps: np.ndarray
    max_steps: int = 0
    max_unrewarded_steps: int = 0
    life_loss: str = "continue"  # the setting `actor.life_loss`

    def __post_init__(self) -> None:
        self.first_steps = np.where(self.first_steps == 0, self.max_steps, self.first_steps)
        self.steps_left = self.first_steps
        self.unrewarded_steps = np.zeros_like(self.first_steps)

    def add_step(self, step: Step) -> np.ndarray:
        """Follow the lanes by one step; returns the lanes that must be truncated now, [m] bool."""
        can_end = ~(step.terminal | step.truncated | step.first)
        is_late = self._count_steps(step) | self._count_unrewarded_steps(step)
        return is_late & can_end

    def set_steps_left(self, steps: np.ndarray) -> None:
        """Set the limit [m] of the episodes in progress where it is above 0."""
        self.steps_left = np.where(steps > 0, steps, self.steps_left)

    def restart(self, lanes: np.ndarray) -> None:
        """Begin again in these lanes [m] bool: their episodes were lost."""
        self.steps_left = np.where(lanes, self.first_steps, self.steps_left)
        self.unrewarded_steps = np.where(lanes, 0, self.unrewarded_steps)

    def state(self) -> dict[str, np.ndarray]:
        """The counters, for a checkpoint."""
        return {"truncate_in": self.steps_left, "unrewarded_steps": self.unrewarded_steps}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """The inverse of `state`."""
        self.steps_left = state["truncate_in"].numpy().copy()
        self.unrewarded_steps = state["unrewarded_steps"].numpy().copy()

    def _count_steps(self, step: Step) -> np.ndarray:
        is_due = self.steps_left == 1
        # A lane that has just started is truncated one step later.
        remaining = self.steps_left - ((self.steps_left > 1) | ~step.first)
        is_limited = step.first & (self.max_steps > 0)
        self.steps_left = np.where(is_limited, self.max_steps, np.maximum(remaining, 0))
        return is_due

    def _count_unrewarded_steps(self, step: Step) -> np.ndarray:
        is_reset = step.first | (step.reward > 0)
        self.unrewarded_steps = np.where(is_reset, 0, self.unrewarded_steps + 1)
        limit = self.max_unrewarded_steps
        return (self.unrewarded_steps >= limit) & (limit > 0)


def longest_reward_gap(episodes: Sequence[Episode]) -> int:
    """The most steps that an episode takes to its next positive reward; 0 without rewards."""
    gaps = [np.diff(np.flatnonzero(e.rewards > 0), prepend=-1) for e in episodes]
    return int(max((gap.max() for gap in gaps if len(gap)), default=0))
