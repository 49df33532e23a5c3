"""A chart of the players' returns over time."""

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


class PlayerCurve(NamedTuple):
    """The returns of one player so far."""

    colour: str
    returns: np.ndarray  # [frames + 1]
    is_over: bool


class ChartAxes(NamedTuple):
    """The ranges of a chart: frames from 0, returns from low to high."""

    frames: int
    low: float
    high: float

    @classmethod
    def from_returns(cls, returns: Sequence[np.ndarray]) -> ChartAxes:
        """Axes that contain these curves."""
        low, high = min(r.min() for r in returns), max(r.max() for r in returns)
        frames = max(len(r) for r in returns) - 1
        return cls(max(1, frames), float(low), float(high if high > low else low + 1))


class ReturnChart:
    """Draws grid, curves and marks in a box."""

    def __init__(self, canvas: ScaledCanvas, env_view: EnvView, axes: ChartAxes, box: Box) -> None:
        self._canvas, self._env_view, self._axes = canvas, env_view, axes
        self._left, self._top, self._right, self._bottom = box

    def draw_grid(self) -> None:
        """Draw grid lines with returns to the left and times below."""
        canvas, axes = self._canvas, self._axes
        for value in axis_ticks(axes.low, axes.high, 4):
            y = self._y(value)
            canvas.draw_line([(self._left, y), (self._right, y)], 1, GRID_COLOUR)
            canvas.draw_text((self._left - 10, y), format_number(value), 13, FAINT_TEXT, "rm")
        frames_per_unit = self._env_view.frame_rate if self._env_view.is_atari else 1.0
        for time in axis_ticks(0, axes.frames / frames_per_unit, 8):
            frame = round(time * frames_per_unit)
            text = format_time(frame, self._env_view) if self._env_view.is_atari else f"{frame:,}"
            canvas.draw_text((self._x(frame), self._bottom + 17), text, 13, FAINT_TEXT, "mm")
        title = "return" if self._env_view.is_atari else "return, over steps"
        canvas.draw_text((self._left, self._top - 15), title, 13, FAINT_TEXT)

    def draw_curve(self, curve: PlayerCurve, frame: int) -> None:
        """Draw the returns so far with a dot at the end; after the episode, a thin line."""
        last = len(curve.returns) - 1
        head = float(self._x(last)), float(self._y(curve.returns[-1]))
        x = np.arange(self._left, head[0])
        frames = (x - self._left) / (self._right - self._left) * self._axes.frames
        y = self._y(curve.returns[np.clip(frames.astype(int), 0, last)])
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
        """Mark the frame at which the agent overtakes the expert."""
        x, top = self._x(frame), self._top - 15
        for y in np.arange(top + 12, self._bottom, 9).tolist():
            self._canvas.draw_line([(x, y), (x, min(y + 5, self._bottom))], 2, SUCCESS_COLOUR)
        text = f"agent overtakes expert, {format_time(frame, self._env_view)}"
        if x < (self._left + self._right) / 2:
            x, anchor = max(x, self._left + 130), "lm"  # right of the chart's title
        else:
            anchor = "rm"
        self._canvas.draw_text((x, top), text, 14, SUCCESS_COLOUR, anchor)

    def _x(self, frame: Any) -> Any:
        return self._left + (self._right - self._left) * frame / self._axes.frames

    def _y(self, value: Any) -> Any:
        share = (value - self._axes.low) / (self._axes.high - self._axes.low)
        return self._bottom - (self._bottom - self._top) * share


def axis_ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers in a range, about `count` of them."""
    from matplotlib.ticker import MaxNLocator

    ticks = MaxNLocator(count, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    return [float(tick) for tick in ticks if low <= tick <= high]


def format_time(frame: int, env_view: EnvView) -> str:
    """Format a time: 1:05 in Atari games, a step in other environments."""
    if not env_view.is_atari:
        return f"step {frame:,}"
    seconds = int(frame / env_view.frame_rate)
    return f"{seconds // 60}:{seconds % 60:02}"
