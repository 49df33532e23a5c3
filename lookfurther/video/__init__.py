"""Videos of an agent next to the expert it learned from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lookfurther.video.chart import ChartAxes, PlayerCurve
from lookfurther.video.encode import check_gif_length, write_animation
from lookfurther.video.layout import PlayerPanel, VideoLayout
from lookfurther.video.playback import Playback, cumulative_returns, find_overtaking
from lookfurther.video.players import Player

VIDEO_WIDTHS = {".mp4": 1280, ".gif": 960}  # pixels
TARGET_FPS = 30.0
MAX_EPISODE_SECONDS = 60.0  # of the video of an episode at the default speed
END_PAUSE_SECONDS = 2.0  # at the end of an episode


class PairResult(NamedTuple):
    """The result of one pair of episodes."""

    scores: tuple[float, ...]  # of the agent, then of the expert
    overtaking_frame: int | None  # None: the agent did not overtake the expert


class SideBySide:
    """Episodes of several players in progress, drawn side by side."""

    def __init__(self, layout: VideoLayout, players: Sequence[Player]) -> None:
        self._layout, self._players = layout, players
        self.playbacks = [Playback(player.play()) for player in players]

    @property
    def is_over(self) -> bool:
        return all(playback.is_over for playback in self.playbacks)

    def draw_at(self, frame: int, axes: ChartAxes | None = None) -> np.ndarray:
        """Advance all episodes to a frame and draw it; without `axes` they grow with time."""
        panels = []
        for player, playback in zip(self._players, self.playbacks, strict=True):
            picture = playback.picture_at(frame)
            curve = PlayerCurve(player.colour, playback.returns, playback.is_over)
            panels.append(PlayerPanel(player.name, player.detail, curve, picture))
        axes = axes or growing_axes([panel.curve.returns for panel in panels])
        return self._layout.draw_frame(frame, panels, axes)


def growing_axes(returns: Sequence[np.ndarray]) -> ChartAxes:
    """Axes that grow in steps of 50 %, so that they do not change with every frame."""
    axes = ChartAxes.from_returns(returns)
    steps = math.ceil(math.log(max(axes.frames, 64) / 64, 1.5))
    return axes._replace(frames=math.ceil(64 * 1.5**steps))


def write_video(
    layout: VideoLayout,
    pairs: Sequence[Sequence[Player]],
    out: Path,
    speed: float,
    report_progress: Callable[[str], None],
) -> list[PairResult]:
    """Write a video of the pairs, one after another; a speed of 0 is chosen by their length."""
    returns = []
    for number, players in enumerate(pairs, 1):
        report_progress(f"playing {number} of {len(pairs)}")
        returns.append([cumulative_returns(player.play()) for player in players])
    axes = [ChartAxes.from_returns(curves) for curves in returns]
    stride, fps = playback_pace(layout.env_view.frame_rate, max(a.frames for a in axes), speed)
    pause = int(END_PAUSE_SECONDS * fps)
    frame_count = sum(math.ceil(a.frames / stride) + 1 + pause for a in axes)
    check_gif_length(out, frame_count)
    report_progress(f"drawing {frame_count:,} pictures")
    write_animation(_draw_frames(layout, pairs, axes, stride, pause), out, fps)
    return [_pair_result(curves) for curves in returns]


def _pair_result(curves: Sequence[np.ndarray]) -> PairResult:
    overtaking_frame = find_overtaking(*curves) if len(curves) == 2 else None
    return PairResult(tuple(float(curve[-1]) for curve in curves), overtaking_frame)


def playback_pace(frame_rate: float, frames: int, speed: float) -> tuple[int, float]:
    """The number of frames from one picture to the next, and the pictures per second."""
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
    """Draw every `stride`-th frame of each pair, and its last frame `pause` more times."""
    for players, pair_axes in zip(pairs, axes, strict=True):
        side_by_side = SideBySide(layout, players)
        for frame in range(0, pair_axes.frames, stride):
            yield side_by_side.draw_at(frame, pair_axes)
        yield from [side_by_side.draw_at(pair_axes.frames, pair_axes)] * (1 + pause)
