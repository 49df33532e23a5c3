"""A clock in the picture: marks in the lowest rows of a plane that show the time since power-on.

Many Atari games move enemies, lasers and platforms by a counter of frames that the screen does not
show. The clock shows it, so that an agent without memory can see when a wait is over. It is not in
the paper and is off by default.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from lookfurther.config import ClockUnit, EnvConfig

MARK_POSITIONS = 8
MARK_ROWS = 2
BRIGHT = 255


class ClockDisplay(NamedTuple):
    """What a clock shows. A period of 0 is no clock.

    A clock that counts steps shows the full steps since power-on. One that counts frames also shows
    the frames since the last full step. They stay the same in a game, and differ between games
    after different numbers of no-op frames.
    """

    period: int = 0  # in steps
    unit: ClockUnit = "steps"
    action_repeat: int = 4

    @property
    def rows(self) -> int:
        """The number of rows of the picture that it takes."""
        marks = 0 if not self.period else 2 if self.unit == "steps" else 3
        return marks * MARK_ROWS

    def time_after(self, frames: np.ndarray) -> np.ndarray:
        """The time that it shows after these numbers of frames; 0 without a clock."""
        if not self.period:
            return np.zeros_like(frames)
        if self.unit == "steps":
            return frames // self.action_repeat % self.period
        return frames % (self.period * self.action_repeat)


NO_CLOCK = ClockDisplay()


def make_clock_display(env_config: EnvConfig) -> ClockDisplay:
    return ClockDisplay(env_config.clock_period, env_config.clock_unit, env_config.action_repeat)


def draw_clock(planes: np.ndarray, frames: np.ndarray | int, display: ClockDisplay) -> None:
    """Draw the time after `frames` [...] into planes [..., height, width] uint8, in place."""
    if display.period:
        rows = _draw_all_times(display, planes.shape[-1])
        planes[..., -display.rows :, :] = rows[display.time_after(np.asarray(frames))]


def draw_clock_in_stacks(
    stacks: np.ndarray, frames: np.ndarray, elapsed_steps: np.ndarray, display: ClockDisplay
) -> None:
    """Draw the time into stacks [m, planes, height, width], whose last planes are at `frames` [m].

    Planes before the start of an episode stay blank: it has `elapsed_steps` [m] steps so far.
    """
    if not display.period:
        return
    rows = _draw_all_times(display, stacks.shape[-1])
    for age in range(stacks.shape[1]):
        lanes = np.flatnonzero(elapsed_steps >= age)
        times = display.time_after(frames[lanes] - age * display.action_repeat)
        stacks[lanes, -1 - age, -display.rows :] = rows[times]


def with_clock(observation: np.ndarray, frames: int, env_config: EnvConfig) -> np.ndarray:
    """A frame stack as an agent sees it, `frames` frames after power-on; a copy, if it differs."""
    display = make_clock_display(env_config)
    if not display.period:
        return observation
    stacks, steps = observation[None].copy(), np.array([frames // env_config.action_repeat])
    draw_clock_in_stacks(stacks, np.array([frames]), steps, display)
    return stacks[0]


@lru_cache
def _draw_all_times(display: ClockDisplay, width: int) -> np.ndarray:
    """The lowest rows at each time, [times, rows, width] uint8: black with two or three marks.

    The first mark moves at every step, the second one when the first one returns to the left. The
    third one shows the frames since the last full step.
    """
    frames_per_time = 1 if display.unit == "frames" else display.action_repeat
    times = display.period * display.action_repeat // frames_per_time
    rows = np.zeros((times, display.rows, width), np.uint8)
    for time in range(times):
        step, frame = divmod(time * frames_per_time, display.action_repeat)
        marks = ((step % MARK_POSITIONS, MARK_POSITIONS), (step // MARK_POSITIONS, MARK_POSITIONS))
        if display.unit == "frames":
            marks = (*marks, (frame, max(MARK_POSITIONS, display.action_repeat)))
        for mark, (position, positions) in enumerate(marks):
            size = width // positions
            top, left = mark * MARK_ROWS, position * size
            rows[time, top : top + MARK_ROWS, left : left + size] = BRIGHT
    return rows
