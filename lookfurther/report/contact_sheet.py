"""Contact sheets: the episodes of a demonstration set on one page, as PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lookfurther.errors import LookFurtherError
from lookfurther.report.figure_style import (
    GRID_COLOUR,
    LINE_COLOURS,
    MUTED_COLOUR,
    TEXT_COLOUR,
    save_png,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.gridspec import SubplotSpec

# Inches.
PAGE_WIDTH, PAGE_MARGIN, HEADER_HEIGHT = 12.0, 0.35, 1.05
CURVE_HEIGHT, ROW_GAP, BAR_HEIGHT = 0.4, 0.6, 0.2

PICTURE_GAP = 0.06  # as a share of a picture's width


class EpisodeRow(NamedTuple):
    """One episode."""

    title: str
    pictures: Sequence[np.ndarray]  # [height, width, 3] uint8
    steps: Sequence[int]  # the step of each picture
    returns: np.ndarray  # [T + 1]: the cumulative return after each step


def write_contact_sheet(
    title: str, subtitle: str, rows: Sequence[EpisodeRow], actions: Mapping[str, int], out: Path
) -> None:
    """Draw a row of pictures and the cumulative return of each episode, and an action histogram."""
    if not rows or not all(row.pictures for row in rows):
        raise LookFurtherError("no pictures for a sheet: the set is empty")
    from matplotlib.figure import Figure

    action_counts = {name: count for name, count in actions.items() if count}
    columns = max(len(row.pictures) for row in rows)
    heights = [_picture_height(row, columns) + CURVE_HEIGHT + ROW_GAP for row in rows]
    heights.append(BAR_HEIGHT * len(action_counts))
    page_height = HEADER_HEIGHT + sum(heights) + 2 * PAGE_MARGIN
    left, margin = PAGE_MARGIN / PAGE_WIDTH, PAGE_MARGIN / page_height
    top = 1 - margin - HEADER_HEIGHT / page_height
    figure = Figure((PAGE_WIDTH, page_height), dpi=120)
    edges = {"left": left, "right": 1 - left, "bottom": margin, "top": top}
    grid = figure.add_gridspec(len(heights), 1, height_ratios=heights, hspace=0, **edges)
    for i, row in enumerate(rows):
        _draw_episode(figure, grid[i], row, columns)
    _draw_action_histogram(figure, grid[-1], action_counts)
    figure.text(left, 1 - margin, title, fontsize=16, color=TEXT_COLOUR, va="top", weight="bold")
    below_title = 1 - margin - 0.35 / page_height
    figure.text(left, below_title, subtitle, fontsize=11, color=MUTED_COLOUR, va="top")
    save_png(figure, out)


def _picture_height(row: EpisodeRow, columns: int) -> float:
    """The height in inches of pictures that fill a page with this many columns."""
    height, width, _ = row.pictures[0].shape
    total = columns + PICTURE_GAP * (columns - 1)
    return (PAGE_WIDTH - 2 * PAGE_MARGIN) / total * height / width


def _draw_episode(figure: Figure, cell: SubplotSpec, row: EpisodeRow, columns: int) -> None:
    """Draw the pictures above the cumulative return, which has a dot for each picture."""
    heights = (_picture_height(row, columns), CURVE_HEIGHT, ROW_GAP)
    grid = cell.subgridspec(3, columns, height_ratios=heights, hspace=0, wspace=PICTURE_GAP)
    panels = [figure.add_subplot(grid[0, i]) for i in range(len(row.pictures))]
    for axes, picture in zip(panels, row.pictures, strict=True):
        axes.imshow(picture, interpolation="antialiased", aspect="auto")
        axes.set_axis_off()
    panels[0].set_title(row.title, loc="left", color=TEXT_COLOUR, fontsize=11)
    axes = figure.add_subplot(grid[1, :])
    axes.plot(row.returns, color=LINE_COLOURS[0], linewidth=1.5, drawstyle="steps-post")
    dots = row.returns[list(row.steps)]
    axes.plot(row.steps, dots, "o", color=LINE_COLOURS[1], markersize=4, clip_on=False)
    _hide_ticks(axes)
    axes.set_xlim(0, len(row.returns) - 1)
    axes.margins(y=0.3)


def _draw_action_histogram(
    figure: Figure, cell: SubplotSpec, action_counts: Mapping[str, int]
) -> None:
    """Draw how often each action was taken; names and counts are in the margins."""
    axes = figure.add_subplot(cell.subgridspec(1, 3, width_ratios=(1, 6, 1))[1])
    names, counts = list(action_counts), list(action_counts.values())
    bars = axes.barh(names, counts, color=LINE_COLOURS[0], height=0.7)
    labels = [f"{count:,}  ({100 * count / sum(counts):.1f} %)" for count in counts]
    axes.bar_label(bars, labels, padding=6, fontsize=9, color=MUTED_COLOUR)
    axes.set_title("actions", loc="left", color=TEXT_COLOUR, fontsize=11)
    axes.set_ylim(len(names) - 0.5, -0.5)
    _hide_ticks(axes)
    axes.spines["bottom"].set_visible(False)
    axes.set_yticks(range(len(names)), names, fontsize=9, color=TEXT_COLOUR)


def _hide_ticks(axes: Axes) -> None:
    """Leave only a pale line at the bottom."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(GRID_COLOUR)
    axes.tick_params(length=0)
    axes.set_xticks([])
    axes.set_yticks([])
