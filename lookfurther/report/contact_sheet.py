"""Contact sheets: a set of demonstrations on one page, as PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lookfurther.errors import LookFurtherError
from lookfurther.report.learning_curve import GRID_COLOUR, LINE_COLOURS, MUTED_COLOUR, TEXT_COLOUR
from lookfurther.system.files import atomic_replace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Inches.
PAGE_WIDTH, PAGE_MARGIN, IMAGE_GAP = 12.0, 0.35, 0.08  # of the page, its margin, between pictures
HEADER_HEIGHT, TITLE_HEIGHT, CURVE_HEIGHT, ROW_GAP = (
    0.75,
    0.3,
    0.4,
    0.3,
)  # of a row: its title, its curve, below it
BAR_HEIGHT = 0.2  # of a line of the histogram


class EpisodeRow(NamedTuple):
    """One episode."""

    title: str
    pictures: Sequence[np.ndarray]  # [height, width, 3] uint8
    steps: Sequence[int]  # after how many steps each picture was
    returns: np.ndarray  # [T + 1]: the return so far after each step


class SheetPage:
    """A figure filled from the top, in inches."""

    def __init__(self, height: float) -> None:
        from matplotlib.figure import Figure

        self.figure: Figure = Figure((PAGE_WIDTH, height), dpi=120, facecolor="white")
        self.height, self.top = height, 0.0

    def axes(self, left: float, width: float, height: float, down: float = 0.0) -> Axes:
        """A panel so far below what the page holds already."""
        bottom = self.height - self.top - down - height
        place = (left / PAGE_WIDTH, bottom / self.height, width / PAGE_WIDTH, height / self.height)
        return self.figure.add_axes(place)

    def text(
        self, text: str, down: float, size: float, colour: str = TEXT_COLOUR, weight: str = "normal"
    ) -> None:
        x, y = PAGE_MARGIN / PAGE_WIDTH, 1 - (self.top + down) / self.height
        self.figure.text(x, y, text, fontsize=size, color=colour, va="center", weight=weight)


def write_contact_sheet(
    title: str, subtitle: str, rows: Sequence[EpisodeRow], actions: Mapping[str, int], out: Path
) -> None:
    """Rows of pictures over the return so far, and below them how often each action was taken."""
    if not rows or not all(row.pictures for row in rows):
        raise LookFurtherError("no pictures for a sheet: the set is empty")
    taken = {name: count for name, count in actions.items() if count}
    width = _image_width(rows)
    tall = [TITLE_HEIGHT + _image_height(row, width) + CURVE_HEIGHT + ROW_GAP for row in rows]
    page = SheetPage(
        PAGE_MARGIN
        + HEADER_HEIGHT
        + sum(tall)
        + TITLE_HEIGHT
        + BAR_HEIGHT * len(taken)
        + PAGE_MARGIN
    )
    page.top = PAGE_MARGIN
    page.text(title, 0.15, 16, weight="bold")
    page.text(subtitle, 0.45, 11, MUTED_COLOUR)
    page.top += HEADER_HEIGHT
    for row, height in zip(rows, tall, strict=True):
        _draw_episode(page, row, width)
        page.top += height
    page.text("actions", 0.1, 11)
    _draw_action_histogram(page, taken)
    with atomic_replace(out) as temporary:
        page.figure.savefig(temporary, format="png")


def _image_width(rows: Sequence[EpisodeRow]) -> float:
    """Of a picture: as many fit side by side as the longest row has."""
    most = max(len(row.pictures) for row in rows)
    return (PAGE_WIDTH - 2 * PAGE_MARGIN - (most - 1) * IMAGE_GAP) / most


def _image_height(row: EpisodeRow, width: float) -> float:
    height, wide, _ = row.pictures[0].shape
    return width * height / wide


def _draw_episode(page: SheetPage, row: EpisodeRow, width: float) -> None:
    """One episode: its title, its pictures, its return over time with a dot for each picture."""
    height = _image_height(row, width)
    page.text(row.title, TITLE_HEIGHT / 2 - 0.03, 11)
    for i, picture in enumerate(row.pictures):
        axes = page.axes(PAGE_MARGIN + i * (width + IMAGE_GAP), width, height, TITLE_HEIGHT)
        axes.imshow(picture, interpolation="antialiased", aspect="auto")
        axes.set_axis_off()
    axes = page.axes(
        PAGE_MARGIN, PAGE_WIDTH - 2 * PAGE_MARGIN, CURVE_HEIGHT - 0.1, TITLE_HEIGHT + height + 0.1
    )
    axes.plot(row.returns, color=LINE_COLOURS[0], linewidth=1.5, drawstyle="steps-post")
    axes.plot(
        row.steps,
        row.returns[list(row.steps)],
        "o",
        color=LINE_COLOURS[1],
        markersize=4,
        clip_on=False,
    )
    _hide_axes(axes)
    axes.set_xlim(0, len(row.returns) - 1)
    axes.margins(y=0.15)


def _draw_action_histogram(page: SheetPage, action_counts: Mapping[str, int]) -> None:
    axes = page.axes(
        PAGE_MARGIN + 1.4,
        PAGE_WIDTH - 2 * PAGE_MARGIN - 2.8,
        BAR_HEIGHT * len(action_counts),
        TITLE_HEIGHT,
    )
    total = sum(action_counts.values())
    axes.barh(
        range(len(action_counts)), list(action_counts.values()), color=LINE_COLOURS[0], height=0.7
    )
    for i, count in enumerate(action_counts.values()):
        axes.text(
            count,
            i,
            f"  {count:,}  ({100 * count / total:.1f} %)",
            va="center",
            fontsize=9,
            color=MUTED_COLOUR,
        )
    axes.set_ylim(len(action_counts) - 0.5, -0.5)
    _hide_axes(axes)
    axes.spines["bottom"].set_visible(False)
    axes.set_yticks(range(len(action_counts)), list(action_counts), fontsize=9, color=TEXT_COLOUR)


def _hide_axes(axes: Axes) -> None:
    """Nothing but a pale line at the bottom."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(GRID_COLOUR)
    axes.tick_params(length=0)
    axes.set_xticks([])
    axes.set_yticks([])
