"""Films of an agent at play beside the expert it learned from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lookfurther.video.chart import ChartAxes, ReturnCurve
from lookfurther.video.encode import check_gif_length, write_animation
from lookfurther.video.layout import PlayerPanel, VideoLayout
from lookfurther.video.playback import Playback, cumulative_returns, find_overtaking
from lookfurther.video.players import Player

VIDEO_WIDTHS = {".mp4": 1280, ".gif": 960}  # pixels of a film
TARGET_FPS = 30.0  # pictures a second
MAX_EPISODE_SECONDS = (
    60.0  # seconds that the film of an episode lasts at most, unless told otherwise
)
END_PAUSE_SECONDS = 2.0  # seconds at an episode's end


class PairResult(NamedTuple):
    """How the plays of one pair went."""

    scores: tuple[float, ...]  # of the agent, then of the expert
    overtaking_frame: int | None  # the frame at which the agent went ahead for good


class SideBySide:
    """Plays side by side, as they unroll."""

    def __init__(self, layout: VideoLayout, players: Sequence[Player]) -> None:
        self._layout, self._players = layout, players
        self.playbacks = [Playback(side.play()) for side in players]

    @property
    def is_over(self) -> bool:
        return all(reel.is_over for reel in self.playbacks)

    def draw_at(self, frame: int, axes: ChartAxes | None = None) -> np.ndarray:
        """The picture at a frame; axes that are not given grow with what has been played."""
        pictures = [reel.picture_at(frame) for reel in self.playbacks]
        panels = [
            PlayerPanel(
                side.name,
                side.detail,
                ReturnCurve(side.colour, reel.returns, reel.is_over),
                picture,
            )
            for side, reel, picture in zip(self._players, self.playbacks, pictures, strict=True)
        ]
        return self._layout.draw_frame(
            frame, panels, axes or growing_axes([r.returns for r in self.playbacks])
        )


def growing_axes(returns: Sequence[np.ndarray]) -> ChartAxes:
    """Axes with room for a while: they change now and then, not with every frame."""
    axes = ChartAxes.from_returns(returns)
    return axes._replace(
        frames=math.ceil(64 * 1.5 ** math.ceil(math.log(max(axes.frames, 64) / 64, 1.5)))
    )


def write_video(
    layout: VideoLayout,
    pairs: Sequence[Sequence[Player]],
    out: Path,
    speed: float,
    report_progress: Callable[[str], None],
) -> list[PairResult]:
    """Write a film of the pairs, one after another; a speed of 0 is chosen from their length."""
    returns = []
    for number, sides in enumerate(pairs, 1):
        report_progress(f"playing {number} of {len(pairs)}")
        returns.append([cumulative_returns(side.play()) for side in sides])
    axes = [ChartAxes.from_returns(curves) for curves in returns]
    stride, fps = playback_pace(layout.env_view.frame_rate, max(a.frames for a in axes), speed)
    pictures = sum(math.ceil(a.frames / stride) + 1 + int(END_PAUSE_SECONDS * fps) for a in axes)
    check_gif_length(out, pictures)
    report_progress(f"drawing {pictures:,} pictures")
    write_animation(
        _draw_frames(layout, pairs, axes, stride, int(END_PAUSE_SECONDS * fps)), out, fps
    )
    return [_pair_result(curves) for curves in returns]


def _pair_result(curves: Sequence[np.ndarray]) -> PairResult:
    ahead = find_overtaking(*curves) if len(curves) == 2 else None
    return PairResult(tuple(float(curve[-1]) for curve in curves), ahead)


def playback_pace(frame_rate: float, frames: int, speed: float) -> tuple[int, float]:
    """How many frames on each picture is, and how many pictures are shown a second."""
    speed = speed or max(1.0, frames / frame_rate / MAX_EPISODE_SECONDS)
    stride = max(1, round(frame_rate * speed / TARGET_FPS))
    return stride, frame_rate * speed / stride


def _draw_frames(
    layout: VideoLayout,
    pairs: Sequence[Sequence[Player]],
    axes: Sequence[ChartAxes],
    stride: int,
    pause: int,
) -> Iterator[np.ndarray]:
    for sides, area in zip(pairs, axes, strict=True):
        screening = SideBySide(layout, sides)
        for frame in range(0, area.frames, stride):
            yield screening.draw_at(frame, area)
        yield from [screening.draw_at(area.frames, area)] * (1 + pause)
