"""The layout of a video frame: players side by side above a chart of their returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lookfurther.system.formatting import format_number
from lookfurther.video.chart import ChartAxes, PlayerCurve, ReturnChart, format_time
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
PICTURE_TOP, PICTURE_HEIGHT = 92, 420
PANEL_WIDTH = (DESIGN_WIDTH - 2 * MARGIN - PANEL_GAP) / 2
CHART_BOX = (92, 556, DESIGN_WIDTH - 44, 684)
ATARI_PIXEL_ASPECT = 1.5  # width over height, so that a pixel can be drawn as three by two


class PlayerPanel(NamedTuple):
    """One player at one frame."""

    name: str
    detail: str
    curve: PlayerCurve
    picture: np.ndarray  # [height, width, 3] uint8


class VideoLayout(NamedTuple):
    """Draws the frames of a video."""

    title: str
    env_view: EnvView
    width: int  # pixels

    def draw_frame(self, frame: int, panels: Sequence[PlayerPanel], axes: ChartAxes) -> np.ndarray:
        """Draw a frame, [height, width, 3] uint8; the agent's panel comes first."""
        canvas = ScaledCanvas(self.width)
        canvas.draw_text((MARGIN, 30), self.title, 22, TEXT_COLOUR)
        time = format_time(frame, self.env_view)
        canvas.draw_text((DESIGN_WIDTH - MARGIN, 30), time, 20, SECONDARY_TEXT, "rm")
        chart = ReturnChart(canvas, self.env_view, axes, CHART_BOX)
        chart.draw_grid()
        if len(panels) == 2:
            agent, expert = panels
            self._draw_panel(canvas, agent, MARGIN)
            self._draw_panel(canvas, expert, MARGIN + PANEL_WIDTH + PANEL_GAP)
            overtaking = find_overtaking(agent.curve.returns, expert.curve.returns)
            if overtaking is not None:
                position = (MARGIN + 12, PICTURE_TOP + 12)
                canvas.draw_label(position, "ahead of the expert", SUCCESS_COLOUR)
                chart.draw_overtaking(overtaking)
        else:
            self._draw_panel(canvas, panels[0], (DESIGN_WIDTH - PANEL_WIDTH) / 2)
        for panel in reversed(panels):
            chart.draw_curve(panel.curve, frame)
        return canvas.to_array()

    def _draw_panel(self, canvas: ScaledCanvas, panel: PlayerPanel, left: float) -> None:
        """Draw name, return and picture of a player; a picture of an ended episode is darker."""
        right, curve = left + PANEL_WIDTH, panel.curve
        canvas.draw_dot((left + 6, 74), 6, curve.colour)
        canvas.draw_text((left + 22, 74), panel.name, 18, TEXT_COLOUR)
        name_end = left + 22 + canvas.text_width(panel.name, 18)
        canvas.draw_text((name_end + 12, 75), panel.detail, 13, FAINT_TEXT)
        canvas.draw_text((right, 73), format_number(curve.returns[-1]), 26, curve.colour, "rm")
        box = (left, PICTURE_TOP, right, PICTURE_TOP + PICTURE_HEIGHT)
        canvas.draw_rectangle(box, PANEL_BACKGROUND, 6)
        aspect = ATARI_PIXEL_ASPECT if self.env_view.is_atari else 1.0
        canvas.draw_image(panel.picture, box, aspect, 0.55 if curve.is_over else 0.0)
        if curve.is_over:
            ended = f"ended, {format_time(len(curve.returns) - 1, self.env_view)}"
            canvas.draw_label((left + 12, PICTURE_TOP + PICTURE_HEIGHT - 38), ended, SECONDARY_TEXT)
