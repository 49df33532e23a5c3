"""Figures of scores: comparison, probability of improvement, profile, human-relative bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from lookfurther.envs.naming import env_title, game_of
from lookfurther.evaluation import aggregates
from lookfurther.evaluation.paper_scores import (
    PAPER_AGENTS,
    StartType,
    printed_scores,
    reference_scores,
)
from lookfurther.report.figure_style import LineStyle, add_legend, create_panels, set_panel_title
from lookfurther.report.learning_curve import GRID_COLOUR, MUTED_COLOUR, TEXT_COLOUR, style_axes
from lookfurther.report.score_columns import (
    ScoreColumn,
    common_environments,
    human_normalised_scores,
    list_environments,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LineStyles = dict[str, LineStyle]
ScoreBar = tuple[str, float, str]  # label, value, colour
DEEPER_AGENT = "apex_dqfd_deeper"
SYMLOG_THRESHOLD = 100.0  # percent: up to here a percent axis is linear


def plot_scores(columns: Sequence[ScoreColumn], styles: LineStyles) -> Figure:
    """Ablation and comparison: every run's score, the mean and its interval, by variant."""
    envs = list_environments(columns)
    figure, grid = create_panels(len(envs), panel_height=0.7 + 0.26 * len(columns))
    for axes, env in zip(grid, envs, strict=True):
        style_axes(axes, "")
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", color=GRID_COLOUR, linewidth=0.8)
        for i, column in enumerate(columns):
            if env in column.scores:
                _plot_score_row(
                    axes, len(columns) - i, column.scores[env].values, styles[column.label]
                )
        first = axes in grid[:: min(3, len(envs))]
        axes.set_yticks(range(len(columns), 0, -1), [c.label if first else "" for c in columns])
        axes.set_ylim(0.4, len(columns) + 0.6)
        axes.margins(x=0.06)
        axes.locator_params(axis="x", nbins=5)
        set_panel_title(axes, env_title(env))
    return figure


def _plot_score_row(axes: Axes, y: float, values: np.ndarray, style: LineStyle) -> None:
    """Runs as rings, their mean as a disc, its interval as a bar."""
    found = aggregates.estimate_with_interval([values], aggregates.mean)
    axes.plot(
        values,
        np.full(len(values), y),
        "o",
        color=style.colour,
        markersize=4.5,
        fillstyle="none",
        alpha=0.7,
    )
    axes.plot([found.low, found.high], [y, y], color=style.colour, linewidth=3, alpha=0.5)
    axes.plot([found.value], [y], "o", color=style.colour, markersize=6)


def plot_improvement(
    columns: Sequence[ScoreColumn], baseline: ScoreColumn, styles: LineStyles
) -> Figure | None:
    """How probably a run of each variant beats one of the base, over the environments of both."""
    rivals = [c for c in columns if c is not baseline and c.scores.keys() & baseline.scores.keys()]
    if not rivals:
        return None
    figure, (axes,) = create_panels(1, panel_height=0.5 + 0.22 * len(rivals))
    style_axes(axes, "")
    axes.grid(axis="y", visible=False)
    axes.axvline(0.5, color=MUTED_COLOUR, linewidth=1, linestyle=(0, (4, 3)))
    for y, column in enumerate(reversed(rivals)):
        envs = sorted(column.scores.keys() & baseline.scores.keys())
        ours, theirs = ([c.scores[e].values for e in envs] for c in (column, baseline))
        found = aggregates.estimate_improvement(ours, theirs)
        colour = styles[column.label].colour
        axes.plot([found.low, found.high], [y, y], color=colour, linewidth=6, alpha=0.4)
        axes.plot([found.value], [y], "o", color=colour, markersize=7)
    axes.set_yticks(range(len(rivals)), [c.label for c in reversed(rivals)])
    axes.set_ylim(-0.6, len(rivals) - 0.4)
    axes.set_xlim(-0.02, 1.02)
    axes.set_xlabel(
        f"probability of a higher score than {baseline.label}", color=TEXT_COLOUR, fontsize=9
    )
    return figure


def plot_performance_profile(columns: Sequence[ScoreColumn], styles: LineStyles) -> Figure | None:
    """The share of runs above each score: human-normalised, or raw for a single environment."""
    envs = common_environments(columns)
    human = bool(envs) and all(reference_scores(env, "noop") for env in envs)
    if not human and len(envs) != 1:
        return None
    figure, (axes,) = create_panels(1, panel_height=2.2)
    style_axes(axes, "share of runs above")
    if human:
        strata = {c.label: human_normalised_scores(c, envs, "noop") for c in columns}
        _set_percent_axis(axes)
    else:
        strata = {c.label: [c.scores[envs[0]].values] for c in columns}
    statistic = partial(
        aggregates.performance_profile, thresholds=_profile_thresholds(strata, human)
    )
    for label, values in strata.items():
        low, high = aggregates.confidence_interval(values, statistic)
        colour, dash = styles[label]
        x = statistic.keywords["thresholds"]
        axes.plot(x, statistic(values), color=colour, linestyle=dash, linewidth=1.8)
        axes.fill_between(x, low, high, color=colour, alpha=0.1, linewidth=0)
    axes.set_ylim(-0.02, 1.02)
    unit = "human-normalised score, %" if human else f"score on {env_title(envs[0])}"
    axes.set_xlabel(unit, color=TEXT_COLOUR, fontsize=9)
    add_legend(figure, list(strata), styles)
    return figure


def _profile_thresholds(
    strata: Mapping[str, list[np.ndarray]], is_human_normalised: bool
) -> np.ndarray:
    """Points from below the lowest score to above the highest, even on the axis they are for."""
    every = np.concatenate([task for tasks in strata.values() for task in tasks])
    ends = np.arcsinh(every / SYMLOG_THRESHOLD) if is_human_normalised else every
    pad = 0.05 * (np.ptp(ends) or 1.0)
    points = np.linspace(ends.min() - pad, ends.max() + pad, 400)
    return SYMLOG_THRESHOLD * np.sinh(points) if is_human_normalised else points


def _set_percent_axis(axes: Axes) -> None:
    """Percents from below 0 to tens of thousands: linear near 0, logarithmic beyond."""
    from matplotlib.ticker import FuncFormatter

    axes.set_xscale("symlog", linthresh=SYMLOG_THRESHOLD)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def plot_human_relative(
    columns: Sequence[ScoreColumn], styles: LineStyles, starts: StartType
) -> Figure | None:
    """How far above the average human, game by game, beside the paper's deeper agent."""
    rows: list[tuple[str, list[ScoreBar]]] = []
    for env in list_environments(columns):
        known = reference_scores(env, starts)
        if known is not None:
            bars = [
                (label, aggregates.relative_score(score, known.human, known.random), colour)
                for label, score, colour in _game_scores(env, columns, styles, starts)
            ]
            rows.append((env_title(env), bars))
    return _plot_bars(rows) if rows else None


def _game_scores(
    env: str, columns: Sequence[ScoreColumn], styles: LineStyles, starts: StartType
) -> list[ScoreBar]:
    """The scores of one game: ours, and the paper's where it is one of its games."""
    ours = [
        (column.label, float(column.scores[env].values.mean()), styles[column.label].colour)
        for column in columns
        if env in column.scores
    ]
    paper = printed_scores(starts).get(game_of(env), {})
    return ours + (
        [(f"{PAPER_AGENTS[DEEPER_AGENT]}, the paper", paper[DEEPER_AGENT], MUTED_COLOUR)]
        if DEEPER_AGENT in paper
        else []
    )


def _plot_bars(rows: list[tuple[str, list[ScoreBar]]]) -> Figure:
    """Groups of horizontal bars in percent, with their values written at the ends."""
    count = sum(len(bars) + 1 for _, bars in rows)
    figure, (axes,) = create_panels(1, panel_height=(0.7 + 0.17 * count) / 1.4)
    style_axes(axes, "")
    axes.grid(axis="y", visible=False)
    _set_percent_axis(axes)
    y, ticks = 0.0, []
    for name, bars in rows:
        ticks.append((y - (len(bars) - 1) / 2, name))
        for _, value, colour in bars:
            axes.barh(y, value, color=colour, height=0.82)
            side = "left" if value >= 0 else "right"
            axes.annotate(
                f"{value:,.0f} %",
                (value, y),
                xytext=(4 if value >= 0 else -4, 0),
                textcoords="offset points",
                ha=side,
                va="center",
                fontsize=8,
                color=TEXT_COLOUR,
            )
            y -= 1
        y -= 1
    axes.axvline(0, color=MUTED_COLOUR, linewidth=1)
    axes.set_yticks(*zip(*ticks, strict=True))
    axes.margins(x=0.12)
    axes.set_ylim(y + 1, 1)
    axes.set_xlabel(
        "human-relative score, %: 0 is the average human", color=TEXT_COLOUR, fontsize=9
    )
    seen = {label: LineStyle(colour, "-") for _, bars in rows for label, _, colour in bars}
    add_legend(figure, list(seen), seen)
    return figure
