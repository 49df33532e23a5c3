"""A clock in the picture: marks in the lowest rows of a plane that show the time since power-on.

Many Atari games move enemies, lasers and platforms by a counter of frames that the screen does not
show. The clock shows it, so that an agent without memory can see when a wait is over. It is not in
the paper and is off by default.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from lookfurther.config import EnvConfig

HAND_POSITIONS = 8
HAND_ROWS = 2
CLOCK_ROWS = 2 * HAND_ROWS
BRIGHT = 255


def draw_clock(planes: np.ndarray, steps: np.ndarray | int, period: int) -> None:
    """Draw the time into the lowest rows of planes [..., height, width] uint8; `steps` is [...]."""
    rows = _clock_rows(period, planes.shape[-1])
    planes[..., -CLOCK_ROWS:, :] = rows[np.asarray(steps) % period]


def draw_clock_in_stacks(
    stacks: np.ndarray, steps: np.ndarray, elapsed_steps: np.ndarray, period: int
) -> None:
    """Draw the time into stacks [m, planes, height, width], whose last planes are at `steps` [m].

    Planes before the start of an episode stay blank: it has `elapsed_steps` [m] steps so far.
    """
    for age in range(stacks.shape[1]):
        lanes = np.flatnonzero(elapsed_steps >= age)
        rows = _clock_rows(period, stacks.shape[-1])[(steps[lanes] - age) % period]
        stacks[lanes, -1 - age, -CLOCK_ROWS:] = rows


def with_clock(observation: np.ndarray, steps: int, env_config: EnvConfig) -> np.ndarray:
    """One frame stack as an agent sees it, `steps` steps after power-on; a copy, if it differs."""
    if not env_config.clock_period:
        return observation
    stacks = observation[None].copy()
    draw_clock_in_stacks(stacks, np.array([steps]), np.array([steps]), env_config.clock_period)
    return stacks[0]


@lru_cache
def _clock_rows(period: int, width: int) -> np.ndarray:
    """The lowest rows at each time, [period, CLOCK_ROWS, width] uint8: black with two marks.

    The upper mark moves at every step, the lower one when the upper one returns to the left.
    """
    rows = np.zeros((period, CLOCK_ROWS, width), np.uint8)
    size = width // HAND_POSITIONS
    for step in range(period):
        for hand, position in enumerate(reversed(divmod(step, HAND_POSITIONS))):
            top, left = hand * HAND_ROWS, position * size
            rows[step, top : top + HAND_ROWS, left : left + size] = BRIGHT
    return rows
