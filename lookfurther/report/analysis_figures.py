"""Figures of an analysis: values along a demonstration, and rollouts from steps along it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lookfurther.analysis.rollouts import DemonstrationRollout
from lookfurther.analysis.values import DemonstrationValues
from lookfurther.report.figure_style import (
    LINE_COLOURS,
    MUTED_COLOUR,
    add_legend,
    assign_line_styles,
    create_panels,
    set_panel_title,
    set_xlabel,
    style_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_POINTS = 1_200  # of a line: more than the page has pixels
STEP_LABEL = "step of the demonstration"
VALUE_LINES = ("return", "highest value", "demonstrated action")
SCORE_LINES = ("demonstration", "agent")


def plot_values(values: DemonstrationValues) -> Figure:
    """Plot values and return, raw and in h space, and the gap of the demonstrated action."""
    figure, panels = create_panels(3, panel_height=1.6, max_columns=1)
    h_lines = (values.transformed_return, values.max_value, values.demonstrated_value)
    raw_lines = (values.raw_return, values.raw_max_value, values.raw_demonstrated_value)
    _plot_lines(panels[0], "discounted return and values", raw_lines)
    _plot_lines(panels[1], "the same in h space", h_lines)
    _plot_gap(panels[2], values.action_gap)
    set_xlabel(panels[2], STEP_LABEL)
    add_legend(figure, VALUE_LINES, assign_line_styles(VALUE_LINES))
    return figure


def _plot_lines(axes: Axes, title: str, lines: Sequence[np.ndarray]) -> None:
    styles = assign_line_styles(VALUE_LINES)
    _style_step_axes(axes, title)
    shown = np.unique(np.linspace(0, len(lines[0]) - 1, MAX_POINTS).astype(int))
    for name, line in zip(VALUE_LINES, lines, strict=True):
        axes.plot(shown, line[shown], color=styles[name].colour, linewidth=1.2)


def _plot_gap(axes: Axes, gap: np.ndarray) -> None:
    """Plot the lowest gap of neighbouring steps; below zero the agent prefers another action."""
    _style_step_axes(axes, "demonstrated action above the best other action, in h space")
    starts = np.unique(np.linspace(0, len(gap) - 1, MAX_POINTS).astype(int))
    lowest = np.minimum.reduceat(gap, starts)
    axes.plot(starts, lowest, color=LINE_COLOURS[0], linewidth=0.8)
    axes.fill_between(starts, lowest, 0, where=lowest < 0, color=LINE_COLOURS[1], alpha=0.6)
    axes.axhline(0, color=MUTED_COLOUR, linewidth=0.8)


def _style_step_axes(axes: Axes, title: str) -> None:
    """The shared style, with whole steps on the x axis."""
    from matplotlib.ticker import MaxNLocator

    style_axes(axes, "")
    set_panel_title(axes, title)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def plot_rollouts(rollouts: Sequence[DemonstrationRollout]) -> Figure:
    """Plot for each rollout how far it follows the demonstration, and both scores."""
    figure, (followed, scores) = create_panels(2, panel_height=2.2, max_columns=2)
    starts = [rollout.start for rollout in rollouts]
    steps = [r.divergence.step - r.start if r.divergence else r.steps for r in rollouts]
    _style_step_axes(followed, "steps until the agent leaves")
    followed.vlines(starts, 0, steps, color=LINE_COLOURS[0], linewidth=2)
    followed.plot(starts, steps, "o", color=LINE_COLOURS[0], markersize=4)
    _style_step_axes(scores, "score over the same steps")
    styles = assign_line_styles(SCORE_LINES)
    lines = ([r.demonstrated_score for r in rollouts], [r.agent_score for r in rollouts])
    for name, line in zip(SCORE_LINES, lines, strict=True):
        scores.plot(starts, line, "o", color=styles[name].colour, markersize=4, alpha=0.8)
    for axes in (followed, scores):
        axes.margins(x=0.03)
        set_xlabel(axes, STEP_LABEL)
    followed.set_ylim(0, 1.1 * max(1, *steps))
    add_legend(figure, SCORE_LINES, styles)
    return figure
