"""Figures of scores: comparison, probability of improvement, performance profile, bars."""

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
from lookfurther.report.figure_style import (
    GRID_COLOUR,
    MUTED_COLOUR,
    PAGE_CHARACTERS,
    TEXT_COLOUR,
    LineStyle,
    LineStyles,
    add_legend,
    create_panels,
    set_panel_title,
    set_xlabel,
    style_axes,
    wrap_label,
)
from lookfurther.report.score_columns import (
    ScoreColumn,
    common_environments,
    human_normalised_scores,
    list_environments,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ScoreBar = tuple[str, float, str]  # label, value, colour
DEEPER_AGENT = "apex_dqfd_deeper"
ROW_LABEL_CHARACTERS = 35
SYMLOG_THRESHOLD = 100.0  # percent; a percent axis is linear up to here


def plot_scores(columns: Sequence[ScoreColumn], styles: LineStyles) -> Figure:
    """Plot every run's score, the mean and its interval, by variant; one panel per environment."""
    envs = list_environments(columns)
    labels, row_height = _row_labels(columns)
    figure, panels = create_panels(len(envs), panel_height=0.7 + row_height * len(columns))
    for axes, env in zip(panels, envs, strict=True):
        style_axes(axes, "")
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", color=GRID_COLOUR, linewidth=0.8)
        for i, column in enumerate(columns):
            if env in column.scores:
                _plot_score_row(
                    axes, len(columns) - i, column.scores[env].values, styles[column.label]
                )
        is_leftmost = axes in panels[:: min(3, len(envs))]
        shown = labels if is_leftmost else [""] * len(labels)
        axes.set_yticks(range(len(columns), 0, -1), shown)
        axes.set_ylim(0.4, len(columns) + 0.6)
        axes.margins(x=0.06)
        axes.locator_params(axis="x", nbins=5)
        set_panel_title(axes, env_title(env), PAGE_CHARACTERS - ROW_LABEL_CHARACTERS)
    return figure


def _row_labels(columns: Sequence[ScoreColumn]) -> tuple[list[str], float]:
    """The labels of rows in short lines, and the inches that a row needs."""
    labels = [wrap_label(column.label, ROW_LABEL_CHARACTERS) for column in columns]
    lines = max(label.count("\n") + 1 for label in labels)
    return labels, max(0.26, 0.18 * lines)


def _plot_score_row(axes: Axes, y: float, values: np.ndarray, style: LineStyle) -> None:
    """Draw runs as rings, their mean as a disc and its interval as a bar."""
    estimate = aggregates.estimate_with_interval([values], aggregates.mean)
    axes.plot(
        values,
        np.full(len(values), y),
        "o",
        color=style.colour,
        markersize=4.5,
        fillstyle="none",
        alpha=0.7,
    )
    axes.plot([estimate.low, estimate.high], [y, y], color=style.colour, linewidth=3, alpha=0.5)
    axes.plot([estimate.value], [y], "o", color=style.colour, markersize=6)


def plot_improvement(
    columns: Sequence[ScoreColumn], baseline: ScoreColumn, styles: LineStyles
) -> Figure | None:
    """Plot the probability that a run of each variant beats a run of the baseline.

    Each variant is compared over the environments that both have scores for.
    """
    rivals = [c for c in columns if c is not baseline and c.scores.keys() & baseline.scores.keys()]
    if not rivals:
        return None
    labels, row_height = _row_labels(rivals)
    figure, (axes,) = create_panels(1, panel_height=0.5 + row_height * len(rivals))
    style_axes(axes, "")
    axes.grid(axis="y", visible=False)
    axes.axvline(0.5, color=MUTED_COLOUR, linewidth=1, linestyle=(0, (4, 3)))
    for y, column in enumerate(reversed(rivals)):
        envs = sorted(column.scores.keys() & baseline.scores.keys())
        ours, theirs = ([c.scores[e].values for e in envs] for c in (column, baseline))
        estimate = aggregates.estimate_improvement(ours, theirs)
        colour = styles[column.label].colour
        axes.plot([estimate.low, estimate.high], [y, y], color=colour, linewidth=6, alpha=0.4)
        axes.plot([estimate.value], [y], "o", color=colour, markersize=7)
    axes.set_yticks(range(len(rivals)), labels[::-1])
    axes.set_ylim(-0.6, len(rivals) - 0.4)
    axes.set_xlim(-0.02, 1.02)
    set_xlabel(axes, f"probability of a higher score than {baseline.label}")
    return figure


def plot_performance_profile(columns: Sequence[ScoreColumn], styles: LineStyles) -> Figure | None:
    """Plot the share of runs above each score.

    Scores are human-normalised, or raw if there is only one environment. Without human scores,
    several environments have no common scale and no profile.
    """
    envs = common_environments(columns)
    is_human_normalised = bool(envs) and all(reference_scores(env, "noop") for env in envs)
    if not is_human_normalised and len(envs) != 1:
        return None
    figure, (axes,) = create_panels(1, panel_height=2.2)
    style_axes(axes, "share of runs above")
    if is_human_normalised:
        strata = {c.label: human_normalised_scores(c, envs, "noop") for c in columns}
        _set_percent_axis(axes)
        set_xlabel(axes, "human-normalised score, %")
    else:
        strata = {c.label: [c.scores[envs[0]].values] for c in columns}
        set_xlabel(axes, f"score on {env_title(envs[0])}")
    thresholds = _profile_thresholds(strata, is_human_normalised)
    statistic = partial(aggregates.performance_profile, thresholds=thresholds)
    for label, values in strata.items():
        low, high = aggregates.confidence_interval(values, statistic)
        colour, dash = styles[label]
        axes.plot(thresholds, statistic(values), color=colour, linestyle=dash, linewidth=1.8)
        axes.fill_between(thresholds, low, high, color=colour, alpha=0.1, linewidth=0)
    axes.set_ylim(-0.02, 1.02)
    add_legend(figure, list(strata), styles)
    return figure


def _profile_thresholds(
    strata: Mapping[str, list[np.ndarray]], is_human_normalised: bool
) -> np.ndarray:
    """Thresholds from below the lowest score to above the highest, evenly spaced on their axis."""
    scores = np.concatenate([task for tasks in strata.values() for task in tasks])
    positions = np.arcsinh(scores / SYMLOG_THRESHOLD) if is_human_normalised else scores
    margin = 0.05 * (np.ptp(positions) or 1.0)
    points = np.linspace(positions.min() - margin, positions.max() + margin, 400)
    return SYMLOG_THRESHOLD * np.sinh(points) if is_human_normalised else points


def _set_percent_axis(axes: Axes) -> None:
    """Show percentages from below 0 to tens of thousands: linear near 0, logarithmic beyond."""
    from matplotlib.ticker import FuncFormatter

    axes.set_xscale("symlog", linthresh=SYMLOG_THRESHOLD)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def plot_human_relative(
    columns: Sequence[ScoreColumn], styles: LineStyles, starts: StartType
) -> Figure | None:
    """Plot each game's score relative to the average human, next to the paper's deeper agent."""
    rows: list[tuple[str, list[ScoreBar]]] = []
    for env in list_environments(columns):
        reference = reference_scores(env, starts)
        if reference is not None:
            bars = [
                (label, aggregates.relative_score(score, reference.human, reference.random), colour)
                for label, score, colour in _game_scores(env, columns, styles, starts)
            ]
            rows.append((env_title(env), bars))
    return _plot_bars(rows) if rows else None


def _game_scores(
    env: str, columns: Sequence[ScoreColumn], styles: LineStyles, starts: StartType
) -> list[ScoreBar]:
    """The scores of one game: ours, then the paper's if the paper has the game."""
    bars = [
        (column.label, float(column.scores[env].values.mean()), styles[column.label].colour)
        for column in columns
        if env in column.scores
    ]
    paper = printed_scores(starts).get(game_of(env), {})
    if DEEPER_AGENT in paper:
        label = f"{PAPER_AGENTS[DEEPER_AGENT]}, the paper"
        bars.append((label, paper[DEEPER_AGENT], MUTED_COLOUR))
    return bars


def _plot_bars(rows: list[tuple[str, list[ScoreBar]]]) -> Figure:
    """Plot groups of horizontal bars in percent, with their values at the ends."""
    count = sum(len(bars) + 1 for _, bars in rows)
    figure, (axes,) = create_panels(1, panel_height=(0.7 + 0.17 * count) / 1.4)
    style_axes(axes, "")
    axes.grid(axis="y", visible=False)
    _set_percent_axis(axes)
    y, ticks = 0.0, []
    for name, bars in rows:
        ticks.append((y - (len(bars) - 1) / 2, name))
        for _, value, colour in bars:
            bar = axes.barh(y, value, color=colour, height=0.82)
            axes.bar_label(bar, [f"{value:,.0f} %"], padding=4, fontsize=8, color=TEXT_COLOUR)
            y -= 1
        y -= 1
    axes.axvline(0, color=MUTED_COLOUR, linewidth=1)
    axes.set_yticks(*zip(*ticks, strict=True))
    axes.margins(x=0.12)
    axes.set_ylim(y + 1, 1)
    set_xlabel(axes, "human-relative score, %: 0 is the average human")
    styles = {label: LineStyle(colour, "-") for _, bars in rows for label, _, colour in bars}
    add_legend(figure, list(styles), styles)
    return figure
