"""The picture of a film: the plays side by side, over their returns so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lookfurther.system.formatting import format_number
from lookfurther.video.chart import ChartAxes, ReturnChart, ReturnCurve, format_time
from lookfurther.video.draw import (
    DESIGN_WIDTH,
    FAINT_TEXT,
    PANEL_BACKGROUND,
    SECONDARY_TEXT,
    SUCCESS_COLOUR,
    TEXT_COLOUR,
    ScaledCanvas,
)
from lookfurther.video.playback import EnvView, find_overtaking

MARGIN, PANEL_GAP = 32, 24
PICTURE_TOP, PICTURE_HEIGHT = 92, 420  # of the pictures: where they begin, how high they are
PANEL_WIDTH = (DESIGN_WIDTH - 2 * MARGIN - PANEL_GAP) / 2
CHART_BOX = (92, 556, DESIGN_WIDTH - 44, 684)
ATARI_PIXEL_ASPECT = 1.5  # width of an Atari pixel over its height: three by two on the screen


class PlayerPanel(NamedTuple):
    """One play at one moment."""

    name: str
    detail: str
    curve: ReturnCurve
    picture: np.ndarray  # [height, width, 3] uint8


class VideoLayout(NamedTuple):
    """Where moments of a film are drawn."""

    title: str
    env_view: EnvView
    width: int  # pixels

    def draw_frame(self, frame: int, panels: Sequence[PlayerPanel], axes: ChartAxes) -> np.ndarray:
        """The moment at `frame`, [height, width, 3] uint8; the agent's panel comes first."""
        pen = ScaledCanvas(self.width)
        pen.draw_text((MARGIN, 30), self.title, 22, TEXT_COLOUR)
        pen.draw_text(
            (DESIGN_WIDTH - MARGIN, 30), format_time(frame, self.env_view), 20, SECONDARY_TEXT, "rm"
        )
        mark = find_overtaking(*(p.curve.returns for p in panels)) if len(panels) == 2 else None
        lefts = (
            (MARGIN, MARGIN + PANEL_WIDTH + PANEL_GAP)
            if len(panels) == 2
            else ((DESIGN_WIDTH - PANEL_WIDTH) / 2,)
        )
        for panel, left in zip(panels, lefts, strict=True):
            self._draw_panel(pen, panel, left)
        if mark is not None:
            pen.draw_label((MARGIN + 12, PICTURE_TOP + 12), "ahead of the expert", SUCCESS_COLOUR)
        chart = ReturnChart(pen, self.env_view, axes, CHART_BOX)
        chart.draw_grid()
        if mark is not None:
            chart.draw_overtaking(mark)
        for panel in reversed(panels):
            chart.draw_curve(panel.curve, frame)
        return pen.to_array()

    def _draw_panel(self, canvas: ScaledCanvas, panel: PlayerPanel, left: float) -> None:
        """A play: who, how good so far, and its picture, darker once it has ended."""
        right, curve = left + PANEL_WIDTH, panel.curve
        canvas.draw_dot((left + 6, 74), 6, curve.colour)
        canvas.draw_text((left + 22, 74), panel.name, 18, TEXT_COLOUR)
        beside = left + 34 + canvas.text_width(panel.name, 18)
        canvas.draw_text((beside, 75), panel.detail, 13, FAINT_TEXT)
        canvas.draw_text((right, 73), format_number(curve.returns[-1]), 26, curve.colour, "rm")
        box = (left, PICTURE_TOP, right, PICTURE_TOP + PICTURE_HEIGHT)
        canvas.draw_rectangle(box, PANEL_BACKGROUND, 6)
        aspect = ATARI_PIXEL_ASPECT if self.env_view.is_atari else 1.0
        canvas.draw_image(panel.picture, box, aspect, 0.55 if curve.is_over else 0.0)
        if curve.is_over:
            ended = f"ended, {format_time(len(curve.returns) - 1, self.env_view)}"
            canvas.draw_label((left + 12, PICTURE_TOP + PICTURE_HEIGHT - 38), ended, SECONDARY_TEXT)
