"""The picture of a film: the plays side by side, over their returns so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lookfurther.video.chart import Axes, Chart, Curve, moment, number
from lookfurther.video.draw import FAINT, GOOD, SOFT, TEXT, WELL, WIDTH, Pen
from lookfurther.video.playback import Scene, overtaking

EDGE, GAP = 32, 24
TOP, ROW = 92, 420  # of the pictures: where they begin, how high they are
ACROSS = (WIDTH - 2 * EDGE - GAP) / 2
CHART = (92, 556, WIDTH - 44, 684)
TELEVISION = 1.5  # width of an Atari pixel over its height: three by two on the screen


class Panel(NamedTuple):
    """One play at one moment."""

    name: str
    detail: str
    curve: Curve
    picture: np.ndarray  # [height, width, 3] uint8


class Stage(NamedTuple):
    """Where moments of a film are drawn."""

    title: str
    scene: Scene
    width: int  # pixels

    def draw(self, frame: int, panels: Sequence[Panel], axes: Axes) -> np.ndarray:
        """The moment at `frame`, [height, width, 3] uint8; the agent's panel comes first."""
        pen = Pen(self.width)
        pen.text((EDGE, 30), self.title, 22, TEXT)
        pen.text((WIDTH - EDGE, 30), moment(frame, self.scene), 20, SOFT, "rm")
        mark = overtaking(*(p.curve.returns for p in panels)) if len(panels) == 2 else None
        lefts = (EDGE, EDGE + ACROSS + GAP) if len(panels) == 2 else ((WIDTH - ACROSS) / 2,)
        for panel, left in zip(panels, lefts, strict=True):
            self._panel(pen, panel, left)
        if mark is not None:
            pen.chip((EDGE + 12, TOP + 12), "ahead of the expert", GOOD)
        chart = Chart(pen, self.scene, axes, CHART)
        chart.grid()
        if mark is not None:
            chart.mark(mark)
        for panel in reversed(panels):
            chart.curve(panel.curve, frame)
        return pen.done()

    def _panel(self, pen: Pen, panel: Panel, left: float) -> None:
        """A play: who, how good so far, and its picture, darker once it has ended."""
        right, curve = left + ACROSS, panel.curve
        pen.dot((left + 6, 74), 6, curve.colour)
        pen.text((left + 22, 74), panel.name, 18, TEXT)
        beside = left + 34 + pen.length(panel.name, 18)
        pen.text((beside, 75), panel.detail, 13, FAINT)
        pen.text((right, 73), number(curve.returns[-1]), 26, curve.colour, "rm")
        box = (left, TOP, right, TOP + ROW)
        pen.block(box, WELL, 6)
        aspect = TELEVISION if self.scene.atari else 1.0
        pen.picture(panel.picture, box, aspect, 0.55 if curve.over else 0.0)
        if curve.over:
            ended = f"ended, {moment(len(curve.returns) - 1, self.scene)}"
            pen.chip((left + 12, TOP + ROW - 38), ended, SOFT)
