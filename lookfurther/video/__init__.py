"""Films of an agent at play beside the expert it learned from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lookfurther.video.chart import Axes, Curve
from lookfurther.video.encode import animate, check_length
from lookfurther.video.layout import Panel, Stage
from lookfurther.video.playback import Reel, overtaking, rehearse
from lookfurther.video.players import Side

WIDTHS = {".mp4": 1280, ".gif": 960}  # pixels of a film
SMOOTH = 30.0  # pictures a second
LONG = 60.0  # seconds that the film of an episode lasts at most, unless told otherwise
PAUSE = 2.0  # seconds at an episode's end


class Shown(NamedTuple):
    """How the plays of one pair went."""

    scores: tuple[float, ...]  # of the agent, then of the expert
    overtaking: int | None  # the frame at which the agent went ahead for good


class Screening:
    """Plays side by side, as they unroll."""

    def __init__(self, stage: Stage, sides: Sequence[Side]) -> None:
        self._stage, self._sides = stage, sides
        self.reels = [Reel(side.play()) for side in sides]

    @property
    def over(self) -> bool:
        return all(reel.over for reel in self.reels)

    def show(self, frame: int, axes: Axes | None = None) -> np.ndarray:
        """The picture at a frame; axes that are not given grow with what has been played."""
        pictures = [reel.show(frame) for reel in self.reels]
        panels = [
            Panel(side.name, side.detail, Curve(side.colour, reel.returns, reel.over), picture)
            for side, reel, picture in zip(self._sides, self.reels, pictures, strict=True)
        ]
        return self._stage.draw(frame, panels, axes or growing([r.returns for r in self.reels]))


def growing(returns: Sequence[np.ndarray]) -> Axes:
    """Axes with room for a while: they change now and then, not with every frame."""
    axes = Axes.of(returns)
    return axes._replace(
        frames=math.ceil(64 * 1.5 ** math.ceil(math.log(max(axes.frames, 64) / 64, 1.5)))
    )


def film(
    stage: Stage,
    pairs: Sequence[Sequence[Side]],
    out: Path,
    speed: float,
    tell: Callable[[str], None],
) -> list[Shown]:
    """Write a film of the pairs, one after another; a speed of 0 is chosen from their length."""
    returns = []
    for number, sides in enumerate(pairs, 1):
        tell(f"playing {number} of {len(pairs)}")
        returns.append([rehearse(side.play()) for side in sides])
    axes = [Axes.of(curves) for curves in returns]
    stride, fps = pace(stage.scene.rate, max(a.frames for a in axes), speed)
    pictures = sum(math.ceil(a.frames / stride) + 1 + int(PAUSE * fps) for a in axes)
    check_length(out, pictures)
    tell(f"drawing {pictures:,} pictures")
    animate(_frames(stage, pairs, axes, stride, int(PAUSE * fps)), out, fps)
    return [_shown(curves) for curves in returns]


def _shown(curves: Sequence[np.ndarray]) -> Shown:
    ahead = overtaking(*curves) if len(curves) == 2 else None
    return Shown(tuple(float(curve[-1]) for curve in curves), ahead)


def pace(rate: float, frames: int, speed: float) -> tuple[int, float]:
    """How many frames on each picture is, and how many pictures are shown a second."""
    speed = speed or max(1.0, frames / rate / LONG)
    stride = max(1, round(rate * speed / SMOOTH))
    return stride, rate * speed / stride


def _frames(
    stage: Stage, pairs: Sequence[Sequence[Side]], axes: Sequence[Axes], stride: int, pause: int
) -> Iterator[np.ndarray]:
    for sides, area in zip(pairs, axes, strict=True):
        screening = Screening(stage, sides)
        for frame in range(0, area.frames, stride):
            yield screening.show(frame, area)
        yield from [screening.show(area.frames, area)] * (1 + pause)
