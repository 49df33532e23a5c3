"""The figures of docs/experiments.md: scores with intervals, learning curves, values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.results import normalise_score, preset_scores
from experiments.stability import STORED_POSITIONS, LongChain, discounted_chain_returns
from lookfurther.evaluation.aggregates import mean_confidence_band
from lookfurther.report.comparison import plot_scores as plot_score_columns
from lookfurther.report.figure_style import (
    LINE_COLOURS,
    MUTED_COLOUR,
    LineStyle,
    add_legend,
    assign_line_styles,
    create_panels,
    set_panel_title,
    set_xlabel,
    style_axes,
)
from lookfurther.report.score_columns import RunScores, ScoreColumn

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CURVE_PRESETS = (
    "apex-dqfd",
    "no-transform",
    "no-tc",
    "no-imitation",
    "no-demos",
    "popart",
    "constrained-td",
    "clipped",
)
VALUE_STYLES = {
    "apex-dqfd": LineStyle(LINE_COLOURS[0], "-"),
    "no-tc": LineStyle(LINE_COLOURS[1], "-"),
    "true return of the best policy": LineStyle(MUTED_COLOUR, (0, (5, 1.5))),
}


def plot_scores(study: dict[str, Any], presets: Sequence[str]) -> Figure:
    """Normalised final scores of all runs with mean and interval; one panel per task."""
    columns = [
        ScoreColumn(
            name,
            name,
            {task: RunScores(values) for task, values in preset_scores(study, name).items()},
        )
        for name in presets
    ]
    return plot_score_columns(columns, assign_line_styles(presets))


def plot_curves(study: dict[str, Any], tasks: Sequence[str]) -> Figure:
    """Normalised evaluation scores over agent steps: mean over seeds with its interval."""
    styles = assign_line_styles(CURVE_PRESETS)
    figure, panels = create_panels(len(tasks))
    for axes, task in zip(panels, tasks, strict=True):
        style_axes(axes, "score, %" if axes is panels[0] else "")
        for name in CURVE_PRESETS:
            runs = [r for r in study["runs"] if (r["task"], r["preset"]) == (task, name)]
            _plot_band(axes, study, runs, styles[name])
        set_panel_title(axes, task)
        set_xlabel(axes, "agent steps")
    add_legend(figure, CURVE_PRESETS, styles)
    return figure


def _plot_band(
    axes: Axes, study: dict[str, Any], runs: Sequence[dict[str, Any]], style: LineStyle
) -> None:
    if not runs:
        return
    length = min(len(run["scores"]) for run in runs)
    scores = np.array([run["scores"][:length] for run in runs])
    scores = normalise_score(study, runs[0]["task"], scores)
    steps = runs[0]["steps"][:length]
    low, high = mean_confidence_band(scores)
    axes.plot(steps, scores.mean(0), color=style.colour, linestyle=style.dash, linewidth=1.8)
    axes.fill_between(steps, low, high, color=style.colour, alpha=0.12, linewidth=0)
    axes.set_xlim(left=0)


def plot_values(rows: Sequence[dict[str, Any]]) -> Figure:
    """Learned values along the chain by discount factor, one line per run, and true returns."""
    gammas = list(dict.fromkeys(row["gamma"] for row in rows))
    figure, panels = create_panels(len(gammas))
    *learned_styles, (best_name, best_style) = VALUE_STYLES.items()
    for axes, gamma in zip(panels, gammas, strict=True):
        style_axes(axes, "value" if axes is panels[0] else "")
        best = discounted_chain_returns(np.ones(LongChain.length), gamma)
        axes.plot(best, color=best_style.colour, linestyle=best_style.dash, linewidth=1.8, zorder=3)
        for name, style in learned_styles:
            for row in rows:
                if (row["gamma"], row["preset"]) == (gamma, name) and "learned" in row:
                    axes.plot(STORED_POSITIONS, row["learned"], color=style.colour, linewidth=1.2)
        axes.set_ylim(bottom=0)
        set_panel_title(axes, f"γ = {gamma}")
        set_xlabel(axes, "position in the chain")
    add_legend(figure, [*(name for name, _ in learned_styles), best_name], VALUE_STYLES)
    return figure
