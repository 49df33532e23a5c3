"""Figures of scores: comparison, probability of improvement, profile, human-relative bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from lookfurther.evaluation import aggregates
from lookfurther.evaluation.paper_scores import AGENTS, Starts, game_of, printed, reference
from lookfurther.report.figure_style import Look, headed, legend, panels
from lookfurther.report.learning_curve import FAINT, GREY, INK, dress
from lookfurther.report.score_columns import Column, common, environments, normalised, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Looks = dict[str, Look]
Bar = tuple[str, float, str]  # label, value, colour
DEEPER = "apex_dqfd_deeper"
LINEAR = 100.0  # percent: up to here a percent axis is linear


def scores(table: Sequence[Column], looks: Looks) -> Figure:
    """Ablation and comparison: every run's score, the mean and its interval, by variant."""
    envs = environments(table)
    figure, grid = panels(len(envs), height=0.7 + 0.26 * len(table))
    for axes, env in zip(grid, envs, strict=True):
        dress(axes, "")
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", color=FAINT, linewidth=0.8)
        for i, column in enumerate(table):
            if env in column.scores:
                _dots(axes, len(table) - i, column.scores[env].values, looks[column.label])
        first = axes in grid[:: min(3, len(envs))]
        axes.set_yticks(range(len(table), 0, -1), [c.label if first else "" for c in table])
        axes.set_ylim(0.4, len(table) + 0.6)
        axes.margins(x=0.06)
        axes.locator_params(axis="x", nbins=5)
        headed(axes, title(env))
    return figure


def _dots(axes: Axes, y: float, values: np.ndarray, look: Look) -> None:
    """Runs as rings, their mean as a disc, its interval as a bar."""
    found = aggregates.estimate([values], aggregates.mean)
    axes.plot(
        values,
        np.full(len(values), y),
        "o",
        color=look.colour,
        markersize=4.5,
        fillstyle="none",
        alpha=0.7,
    )
    axes.plot([found.low, found.high], [y, y], color=look.colour, linewidth=3, alpha=0.5)
    axes.plot([found.value], [y], "o", color=look.colour, markersize=6)


def improvement(table: Sequence[Column], base: Column, looks: Looks) -> Figure | None:
    """How probably a run of each variant beats one of the base, over the environments of both."""
    rivals = [c for c in table if c is not base and c.scores.keys() & base.scores.keys()]
    if not rivals:
        return None
    figure, (axes,) = panels(1, height=0.5 + 0.22 * len(rivals))
    dress(axes, "")
    axes.grid(axis="y", visible=False)
    axes.axvline(0.5, color=GREY, linewidth=1, linestyle=(0, (4, 3)))
    for y, column in enumerate(reversed(rivals)):
        envs = sorted(column.scores.keys() & base.scores.keys())
        ours, theirs = ([c.scores[e].values for e in envs] for c in (column, base))
        found = aggregates.estimate_improvement(ours, theirs)
        colour = looks[column.label].colour
        axes.plot([found.low, found.high], [y, y], color=colour, linewidth=6, alpha=0.4)
        axes.plot([found.value], [y], "o", color=colour, markersize=7)
    axes.set_yticks(range(len(rivals)), [c.label for c in reversed(rivals)])
    axes.set_ylim(-0.6, len(rivals) - 0.4)
    axes.set_xlim(-0.02, 1.02)
    axes.set_xlabel(f"probability of a higher score than {base.label}", color=INK, fontsize=9)
    return figure


def profile(table: Sequence[Column], looks: Looks) -> Figure | None:
    """The share of runs above each score: human-normalised, or raw for a single environment."""
    envs = common(table)
    human = bool(envs) and all(reference(env, "noop") for env in envs)
    if not human and len(envs) != 1:
        return None
    figure, (axes,) = panels(1, height=2.2)
    dress(axes, "share of runs above")
    if human:
        strata = {c.label: normalised(c, envs, "noop") for c in table}
        _percents(axes)
    else:
        strata = {c.label: [c.scores[envs[0]].values] for c in table}
    statistic = partial(aggregates.profile, thresholds=_thresholds(strata, human))
    for label, values in strata.items():
        low, high = aggregates.interval(values, statistic)
        colour, dash = looks[label]
        x = statistic.keywords["thresholds"]
        axes.plot(x, statistic(values), color=colour, linestyle=dash, linewidth=1.8)
        axes.fill_between(x, low, high, color=colour, alpha=0.1, linewidth=0)
    axes.set_ylim(-0.02, 1.02)
    unit = "human-normalised score, %" if human else f"score on {title(envs[0])}"
    axes.set_xlabel(unit, color=INK, fontsize=9)
    legend(figure, list(strata), looks)
    return figure


def _thresholds(strata: Mapping[str, list[np.ndarray]], human: bool) -> np.ndarray:
    """Points from below the lowest score to above the highest, even on the axis they are for."""
    every = np.concatenate([task for tasks in strata.values() for task in tasks])
    ends = np.arcsinh(every / LINEAR) if human else every
    pad = 0.05 * (np.ptp(ends) or 1.0)
    points = np.linspace(ends.min() - pad, ends.max() + pad, 400)
    return LINEAR * np.sinh(points) if human else points


def _percents(axes: Axes) -> None:
    """Percents from below 0 to tens of thousands: linear near 0, logarithmic beyond."""
    from matplotlib.ticker import FuncFormatter

    axes.set_xscale("symlog", linthresh=LINEAR)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def human_relative(table: Sequence[Column], looks: Looks, starts: Starts) -> Figure | None:
    """How far above the average human, game by game, beside the paper's deeper agent."""
    rows: list[tuple[str, list[Bar]]] = []
    for env in environments(table):
        known = reference(env, starts)
        if known is not None:
            bars = [
                (label, aggregates.relative(score, known.human, known.random), colour)
                for label, score, colour in _of_game(env, table, looks, starts)
            ]
            rows.append((title(env), bars))
    return _bars(rows) if rows else None


def _of_game(env: str, table: Sequence[Column], looks: Looks, starts: Starts) -> list[Bar]:
    """The scores of one game: ours, and the paper's where it is one of its games."""
    ours = [
        (column.label, float(column.scores[env].values.mean()), looks[column.label].colour)
        for column in table
        if env in column.scores
    ]
    paper = printed(starts).get(game_of(env) or "", {})
    return ours + (
        [(f"{AGENTS[DEEPER]}, the paper", paper[DEEPER], GREY)] if DEEPER in paper else []
    )


def _bars(rows: list[tuple[str, list[Bar]]]) -> Figure:
    """Groups of horizontal bars in percent, with their values written at the ends."""
    count = sum(len(bars) + 1 for _, bars in rows)
    figure, (axes,) = panels(1, height=(0.7 + 0.17 * count) / 1.4)
    dress(axes, "")
    axes.grid(axis="y", visible=False)
    _percents(axes)
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
                color=INK,
            )
            y -= 1
        y -= 1
    axes.axvline(0, color=GREY, linewidth=1)
    axes.set_yticks(*zip(*ticks, strict=True))
    axes.margins(x=0.12)
    axes.set_ylim(y + 1, 1)
    axes.set_xlabel("human-relative score, %: 0 is the average human", color=INK, fontsize=9)
    seen = {label: Look(colour, "-") for _, bars in rows for label, _, colour in bars}
    legend(figure, list(seen), seen)
    return figure
