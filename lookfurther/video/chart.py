"""The returns of the plays so far, over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lookfurther.video.draw import BACK, FAINT, GOOD, LINE, Box, Pen
from lookfurther.video.playback import Scene


class Curve(NamedTuple):
    """The return of one play."""

    colour: str
    returns: np.ndarray  # [frames + 1], so far
    over: bool


class Axes(NamedTuple):
    """What the curves are drawn over."""

    frames: int
    low: float
    high: float

    @classmethod
    def of(cls, returns: Sequence[np.ndarray]) -> Axes:
        """Room for all of them."""
        low, high = min(r.min() for r in returns), max(r.max() for r in returns)
        frames = max(len(r) for r in returns) - 1
        return cls(max(1, frames), float(low), float(high if high > low else low + 1))


class Chart:
    """Curves in a box, on axes of frames and returns."""

    def __init__(self, pen: Pen, scene: Scene, axes: Axes, box: Box) -> None:
        self._pen, self._scene, self._axes = pen, scene, axes
        self._left, self._top, self._right, self._bottom = box

    def grid(self) -> None:
        """Heights of the return, and moments below."""
        pen, axes = self._pen, self._axes
        for value in ticks(axes.low, axes.high, 4):
            y = self._y(value)
            pen.line([(self._left, y), (self._right, y)], 1, LINE)
            pen.text((self._left - 10, y), number(value), 13, FAINT, "rm")
        second = self._scene.rate if self._scene.atari else 1.0
        for time in ticks(0, axes.frames / second, 8):
            frame = round(time * second)
            text = moment(frame, self._scene) if self._scene.atari else f"{frame:,}"
            pen.text((self._x(frame), self._bottom + 17), text, 13, FAINT, "mm")
        what = "return" if self._scene.atari else "return, over steps"
        pen.text((self._left, self._top - 15), what, 13, FAINT)

    def curve(self, curve: Curve, frame: int) -> None:
        """The returns so far and a dot at their end; after the play's end, a thin line onwards."""
        last = len(curve.returns) - 1
        head = float(self._x(last)), float(self._y(curve.returns[-1]))
        x = np.arange(self._left, head[0])
        at = (x - self._left) / (self._right - self._left) * self._axes.frames
        y = self._y(curve.returns[np.clip(at.astype(int), 0, last)])
        now = self._x(min(frame, self._axes.frames))
        if curve.over and now > head[0]:
            self._pen.line([head, (now, head[1])], 1, curve.colour)
        points = [
            *zip(x.tolist(), y.tolist(), strict=True),
            (head[0], y[-1] if len(y) else head[1]),
        ]
        self._pen.line([*points, head], 3, curve.colour)
        self._pen.dot(head, 7, BACK)
        self._pen.dot(head, 5, curve.colour)

    def mark(self, frame: int) -> None:
        """Where the agent overtakes the expert."""
        x, top = self._x(frame), self._top - 15
        for y in np.arange(top + 12, self._bottom, 9).tolist():
            self._pen.line([(x, y), (x, min(y + 5, self._bottom))], 2, GOOD)
        text = f"agent overtakes expert, {moment(frame, self._scene)}"
        left = x < (self._left + self._right) / 2
        # A mark near the axis must not lie over the axis's own words.
        x = max(x, self._left + 130) if left else x
        self._pen.text((x, top), text, 14, GOOD, "lm" if left else "rm")

    def _x(self, frame: Any) -> Any:
        return self._left + (self._right - self._left) * frame / self._axes.frames

    def _y(self, value: Any) -> Any:
        share = (value - self._axes.low) / (self._axes.high - self._axes.low)
        return self._bottom - (self._bottom - self._top) * share


def ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers between two."""
    from matplotlib.ticker import MaxNLocator

    found = MaxNLocator(count, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    return [float(x) for x in found if low <= x <= high]


def number(value: float) -> str:
    """A return as 10,100 or 0.75."""
    whole = abs(value - round(value)) < 5e-4
    return f"{round(value):,}" if whole else f"{value:,.3f}".rstrip("0")


def moment(frame: int, scene: Scene) -> str:
    """A point in time as 1:05, or as a step."""
    if not scene.atari:
        return f"step {frame:,}"
    seconds = int(frame / scene.rate)
    return f"{seconds // 60}:{seconds % 60:02}"
