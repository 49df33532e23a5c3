"""Contact sheets: a set of demonstrations on one page, as PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lookfurther.errors import LookFurtherError
from lookfurther.report.learning_curve import COLOURS, FAINT, GREY, INK
from lookfurther.training.metrics import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Inches.
WIDTH, EDGE, GAP = 12.0, 0.35, 0.08  # of the page, its margin, between pictures
HEAD, TITLE, CURVE, SPACE = 0.75, 0.3, 0.4, 0.3  # of a row: its title, its curve, below it
BAR = 0.2  # of a line of the histogram


class Row(NamedTuple):
    """One episode."""

    title: str
    pictures: Sequence[np.ndarray]  # [height, width, 3] uint8
    steps: Sequence[int]  # after how many steps each picture was
    returns: np.ndarray  # [T + 1]: the return so far after each step


class Page:
    """A figure filled from the top, in inches."""

    def __init__(self, height: float) -> None:
        from matplotlib.figure import Figure

        self.figure: Figure = Figure((WIDTH, height), dpi=120, facecolor="white")
        self.height, self.top = height, 0.0

    def axes(self, left: float, width: float, height: float, down: float = 0.0) -> Axes:
        """A panel so far below what the page holds already."""
        bottom = self.height - self.top - down - height
        place = (left / WIDTH, bottom / self.height, width / WIDTH, height / self.height)
        return self.figure.add_axes(place)

    def text(
        self, text: str, down: float, size: float, colour: str = INK, weight: str = "normal"
    ) -> None:
        x, y = EDGE / WIDTH, 1 - (self.top + down) / self.height
        self.figure.text(x, y, text, fontsize=size, color=colour, va="center", weight=weight)


def sheet(
    title: str, subtitle: str, rows: Sequence[Row], actions: Mapping[str, int], out: Path
) -> None:
    """Rows of pictures over the return so far, and below them how often each action was taken."""
    if not rows or not all(row.pictures for row in rows):
        raise LookFurtherError("no pictures for a sheet: the set is empty")
    taken = {name: count for name, count in actions.items() if count}
    width = _width(rows)
    tall = [TITLE + _height(row, width) + CURVE + SPACE for row in rows]
    page = Page(EDGE + HEAD + sum(tall) + TITLE + BAR * len(taken) + EDGE)
    page.top = EDGE
    page.text(title, 0.15, 16, weight="bold")
    page.text(subtitle, 0.45, 11, GREY)
    page.top += HEAD
    for row, height in zip(rows, tall, strict=True):
        _draw(page, row, width)
        page.top += height
    page.text("actions", 0.1, 11)
    _histogram(page, taken)
    with replacing(out) as temporary:
        page.figure.savefig(temporary, format="png")


def _width(rows: Sequence[Row]) -> float:
    """Of a picture: as many fit side by side as the longest row has."""
    most = max(len(row.pictures) for row in rows)
    return (WIDTH - 2 * EDGE - (most - 1) * GAP) / most


def _height(row: Row, width: float) -> float:
    height, wide, _ = row.pictures[0].shape
    return width * height / wide


def _draw(page: Page, row: Row, width: float) -> None:
    """One episode: its title, its pictures, its return over time with a dot for each picture."""
    height = _height(row, width)
    page.text(row.title, TITLE / 2 - 0.03, 11)
    for i, picture in enumerate(row.pictures):
        axes = page.axes(EDGE + i * (width + GAP), width, height, TITLE)
        axes.imshow(picture, interpolation="antialiased", aspect="auto")
        axes.set_axis_off()
    axes = page.axes(EDGE, WIDTH - 2 * EDGE, CURVE - 0.1, TITLE + height + 0.1)
    axes.plot(row.returns, color=COLOURS[0], linewidth=1.5, drawstyle="steps-post")
    axes.plot(
        row.steps, row.returns[list(row.steps)], "o", color=COLOURS[1], markersize=4, clip_on=False
    )
    _bare(axes)
    axes.set_xlim(0, len(row.returns) - 1)
    axes.margins(y=0.15)


def _histogram(page: Page, taken: Mapping[str, int]) -> None:
    axes = page.axes(EDGE + 1.4, WIDTH - 2 * EDGE - 2.8, BAR * len(taken), TITLE)
    total = sum(taken.values())
    axes.barh(range(len(taken)), list(taken.values()), color=COLOURS[0], height=0.7)
    for i, count in enumerate(taken.values()):
        axes.text(
            count,
            i,
            f"  {count:,}  ({100 * count / total:.1f} %)",
            va="center",
            fontsize=9,
            color=GREY,
        )
    axes.set_ylim(len(taken) - 0.5, -0.5)
    _bare(axes)
    axes.spines["bottom"].set_visible(False)
    axes.set_yticks(range(len(taken)), list(taken), fontsize=9, color=INK)


def _bare(axes: Axes) -> None:
    """Nothing but a pale line at the bottom."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.tick_params(length=0)
    axes.set_xticks([])
    axes.set_yticks([])
