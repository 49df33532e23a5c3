"""The returns of the plays so far, over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lookfurther.system.formatting import format_number
from lookfurther.video.draw import (
    BACKGROUND,
    FAINT_TEXT,
    GRID_COLOUR,
    SUCCESS_COLOUR,
    Box,
    ScaledCanvas,
)
from lookfurther.video.playback import EnvView


class ReturnCurve(NamedTuple):
    """The return of one play."""

    colour: str
    returns: np.ndarray  # [frames + 1], so far
    is_over: bool


class ChartAxes(NamedTuple):
    """What the curves are drawn over."""

    frames: int
    low: float
    high: float

    @classmethod
    def from_returns(cls, returns: Sequence[np.ndarray]) -> ChartAxes:
        """Room for all of them."""
        low, high = min(r.min() for r in returns), max(r.max() for r in returns)
        frames = max(len(r) for r in returns) - 1
        return cls(max(1, frames), float(low), float(high if high > low else low + 1))


class ReturnChart:
    """Curves in a box, on axes of frames and returns."""

    def __init__(self, canvas: ScaledCanvas, env_view: EnvView, axes: ChartAxes, box: Box) -> None:
        self._canvas, self._env_view, self._axes = canvas, env_view, axes
        self._left, self._top, self._right, self._bottom = box

    def draw_grid(self) -> None:
        """Heights of the return, and moments below."""
        pen, axes = self._canvas, self._axes
        for value in axis_ticks(axes.low, axes.high, 4):
            y = self._y(value)
            pen.draw_line([(self._left, y), (self._right, y)], 1, GRID_COLOUR)
            pen.draw_text((self._left - 10, y), format_number(value), 13, FAINT_TEXT, "rm")
        second = self._env_view.frame_rate if self._env_view.is_atari else 1.0
        for time in axis_ticks(0, axes.frames / second, 8):
            frame = round(time * second)
            text = format_time(frame, self._env_view) if self._env_view.is_atari else f"{frame:,}"
            pen.draw_text((self._x(frame), self._bottom + 17), text, 13, FAINT_TEXT, "mm")
        what = "return" if self._env_view.is_atari else "return, over steps"
        pen.draw_text((self._left, self._top - 15), what, 13, FAINT_TEXT)

    def draw_curve(self, curve: ReturnCurve, frame: int) -> None:
        """The returns so far and a dot at their end; after the play's end, a thin line onwards."""
        last = len(curve.returns) - 1
        head = float(self._x(last)), float(self._y(curve.returns[-1]))
        x = np.arange(self._left, head[0])
        at = (x - self._left) / (self._right - self._left) * self._axes.frames
        y = self._y(curve.returns[np.clip(at.astype(int), 0, last)])
        now = self._x(min(frame, self._axes.frames))
        if curve.is_over and now > head[0]:
            self._canvas.draw_line([head, (now, head[1])], 1, curve.colour)
        points = [
            *zip(x.tolist(), y.tolist(), strict=True),
            (head[0], y[-1] if len(y) else head[1]),
        ]
        self._canvas.draw_line([*points, head], 3, curve.colour)
        self._canvas.draw_dot(head, 7, BACKGROUND)
        self._canvas.draw_dot(head, 5, curve.colour)

    def draw_overtaking(self, frame: int) -> None:
        """Where the agent overtakes the expert."""
        x, top = self._x(frame), self._top - 15
        for y in np.arange(top + 12, self._bottom, 9).tolist():
            self._canvas.draw_line([(x, y), (x, min(y + 5, self._bottom))], 2, SUCCESS_COLOUR)
        text = f"agent overtakes expert, {format_time(frame, self._env_view)}"
        left = x < (self._left + self._right) / 2
        # A mark near the axis must not lie over the axis's own words.
        x = max(x, self._left + 130) if left else x
        self._canvas.draw_text((x, top), text, 14, SUCCESS_COLOUR, "lm" if left else "rm")

    def _x(self, frame: Any) -> Any:
        return self._left + (self._right - self._left) * frame / self._axes.frames

    def _y(self, value: Any) -> Any:
        share = (value - self._axes.low) / (self._axes.high - self._axes.low)
        return self._bottom - (self._bottom - self._top) * share


def axis_ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers between two."""
    from matplotlib.ticker import MaxNLocator

    found = MaxNLocator(count, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    return [float(x) for x in found if low <= x <= high]


def format_time(frame: int, env_view: EnvView) -> str:
    """A point in time as 1:05, or as a step."""
    if not env_view.is_atari:
        return f"step {frame:,}"
    seconds = int(frame / env_view.frame_rate)
    return f"{seconds // 60}:{seconds % 60:02}"
