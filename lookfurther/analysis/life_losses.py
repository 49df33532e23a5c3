"""Lost lives of an episode, and what the network expects before and after them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

WINDOW = 100  # steps over which values are averaged
RESTART_STEPS = 30  # after a loss: many games show an animation and place the player again


class LifeLoss(NamedTuple):
    """One lost life, with the mean of the highest values around it in h space."""

    step: int  # that lost it
    value_before: float
    value_after: float | None  # None: the episode ends within `RESTART_STEPS`


def find_life_losses(lives: Sequence[int], values: Sequence[float]) -> list[LifeLoss]:
    """Lost lives of an episode: `lives` [T + 1] before and after each step, `values` [T]."""
    highest = np.asarray(values, np.float64)
    losses = []
    for step in np.flatnonzero(np.diff(np.asarray(lives, np.int64)) < 0).tolist():
        after = highest[step + RESTART_STEPS :][:WINDOW]
        losses.append(
            LifeLoss(
                step,
                float(highest[max(0, step + 1 - WINDOW) : step + 1].mean()),
                float(after.mean()) if len(after) else None,
            )
        )
    return losses
