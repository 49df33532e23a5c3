"""Figures over time: learning curves, what the learner did, and episodes of agent and expert."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lookfurther.envs.naming import env_title, is_atari
from lookfurther.evaluation.results import ReturnCurve
from lookfurther.report.curves import (
    TIME_AXES,
    MetricCurve,
    compute_confidence_band,
    extract_curves,
)
from lookfurther.report.figure_style import LineStyle, add_legend, create_panels, set_panel_title
from lookfurther.report.learning_curve import MUTED_COLOUR, TEXT_COLOUR, style_axes
from lookfurther.report.runs import RunGroup

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LineStyles = dict[str, LineStyle]

RETURN_METRIC = "return_low_epsilon"

# Metric: (title, logarithmic)
TRAINING_METRICS = {
    "loss_td": ("TD loss", True),
    "loss_tc": ("TC loss", True),
    "loss_im": ("imitation loss", True),
    "priority_agent": ("priority, agent's items", True),
    "priority_expert": ("priority, expert's items", True),
    "expert_share_of_gradient": ("demonstrations in the gradient", False),
    "q_mean": ("mean value, transformed", False),
    "gradient_norm": ("gradient norm", True),
    "steps_per_second": ("steps per second", False),
    "updates_per_second": ("updates per second", False),
}
EXPERT_STYLE = LineStyle(MUTED_COLOUR, (0, (5, 1.5)))
FRAMES_PER_MINUTE = 60 * 60  # in a minute of an Atari game


def group_by_env(groups: Sequence[RunGroup]) -> dict[str, list[RunGroup]]:
    """Groups by environment, in their order."""
    return {e: [g for g in groups if g.env == e] for e in dict.fromkeys(g.env for g in groups)}


def _plot_group(
    axes: Axes, group: RunGroup, style: LineStyle, x_metric: str, y_metric: str
) -> list[MetricCurve]:
    """The mean over seeds and its interval; gives the seeds' own lines."""
    seeds = extract_curves(group.runs, x_metric, y_metric)
    middle = compute_confidence_band(seeds)
    if middle is not None:
        colour = style.colour
        axes.plot(middle.x, middle.mean, color=colour, ls=style.dash, linewidth=1.8, zorder=3)
        axes.fill_between(middle.x, middle.low, middle.high, color=colour, alpha=0.18, linewidth=0)
    return seeds


def plot_return_curves(groups: Sequence[RunGroup], styles: LineStyles, x_metric: str) -> Figure:
    """Learning curves over steps, frames or minutes, a panel for each environment (Fig. 6)."""
    envs = group_by_env(groups)
    figure, grid = create_panels(len(envs))
    for axes, (env, members) in zip(grid, envs.items(), strict=True):
        style_axes(axes, "return (low ε)" if axes is grid[0] else "")
        drawn = {
            g.variant: _plot_group(axes, g, styles[g.variant], x_metric, RETURN_METRIC)
            for g in members
        }
        for variant, seeds in drawn.items():
            for seed in seeds if len(seeds) > 1 else []:
                axes.plot(*seed, color=styles[variant].colour, linewidth=0.6, alpha=0.35)
        if any(drawn.values()):
            axes.set_xlim(left=0)
        else:
            _mark_panel_empty(axes, "no finished episode yet")
        axes.set_xlabel(TIME_AXES[x_metric], color=TEXT_COLOUR, fontsize=9)
        set_panel_title(axes, env_title(env))
    variants = {g.variant for g in groups}
    add_legend(figure, [variant for variant in styles if variant in variants], styles)
    return figure


def _mark_panel_empty(axes: Axes, text: str) -> None:
    axes.set(xticks=[], yticks=[])
    axes.text(0.5, 0.5, text, transform=axes.transAxes, color=MUTED_COLOUR, ha="center")


def plot_training_metrics(groups: Sequence[RunGroup], styles: LineStyles) -> Figure | None:
    """Loss terms, priorities, the share of demonstrations and throughput of one environment."""
    known = {
        key: how
        for key, how in TRAINING_METRICS.items()
        if any(line.y.any() for g in groups for line in extract_curves(g.runs, "step", key))
    }
    if not known:
        return None
    figure, grid = create_panels(len(known), panel_height=2.1)
    for axes, (key, (text, logarithmic)) in zip(grid, known.items(), strict=True):
        style_axes(axes, "")
        for group in groups:
            _plot_group(axes, group, styles[group.variant], "step", key)
        if logarithmic:
            _set_log_scale(axes)
        axes.set_xlim(left=0)
        set_panel_title(axes, text)
    add_legend(figure, [g.variant for g in groups], styles)
    return figure


def _set_log_scale(axes: Axes) -> None:
    """A logarithmic scale with labels on short ranges too; what is not positive is left out."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_yscale("log", nonpositive="mask")
    bottom, top = axes.get_ylim()
    subs = (1.0,) if top > 100 * bottom else (1.0, 2.0, 5.0)
    axes.yaxis.set_major_locator(LogLocator(subs=subs, numticks=6))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def plot_imitation(groups: Sequence[RunGroup], styles: LineStyles) -> Figure | None:
    """Imitation against inspiration: the best episodes of agent and expert over time (Fig. 2)."""
    best = {(g.env, g.variant): trace for g in groups if (trace := _best_trace([g], "agent"))}
    shown = {env for env, _ in best}
    envs = {env: members for env, members in group_by_env(groups).items() if env in shown}
    if not envs:
        return None
    figure, grid = create_panels(len(envs))
    for axes, (env, members) in zip(grid, envs.items(), strict=True):
        style_axes(axes, "cumulative return" if axes is grid[0] else "")
        expert = _best_trace(members, "expert")
        if expert is not None:
            _plot_trace(axes, env, expert, EXPERT_STYLE)
        for group in members:
            trace = best.get((env, group.variant))
            if trace is not None:
                _plot_trace(axes, env, trace, styles[group.variant])
                _mark_expert_score(axes, env, trace, expert, styles[group.variant])
        axes.set_xlabel(
            "minutes of play" if is_atari(env) else "steps", color=TEXT_COLOUR, fontsize=9
        )
        axes.set_xlim(left=0)
        set_panel_title(axes, env_title(env))
    named = {variant: styles[variant] for _, variant in best} | {"expert": EXPERT_STYLE}
    add_legend(figure, list(named), named)
    return figure


def _best_trace(groups: Sequence[RunGroup], player: str) -> ReturnCurve | None:
    """The highest episode that evaluations from no-op starts kept of a player."""
    kept = [e for g in groups for r in g.runs for e in r.evaluations.values()]
    traces = [
        e.best_curves[player]
        for e in kept
        if e.conditions.starts == "noop" and player in e.best_curves
    ]
    return max(traces, key=lambda trace: trace.returns[-1], default=None)


def _frames_to_time(env: str, frames: np.ndarray) -> np.ndarray:
    return frames / FRAMES_PER_MINUTE if is_atari(env) else frames


def _plot_trace(axes: Axes, env: str, trace: ReturnCurve, style: LineStyle) -> None:
    x = _frames_to_time(env, trace.frames)
    axes.step(
        x, trace.returns, where="post", color=style.colour, linestyle=style.dash, linewidth=1.8
    )


def _mark_expert_score(
    axes: Axes, env: str, trace: ReturnCurve, expert: ReturnCurve | None, style: LineStyle
) -> None:
    """A dot where the agent's return reaches the expert's final one."""
    there = [] if expert is None else np.flatnonzero(trace.returns >= expert.returns[-1])
    if len(there):
        i = int(there[0])
        x = _frames_to_time(env, trace.frames[i : i + 1])
        y = trace.returns[i : i + 1]
        axes.plot(x, y, "o", color=style.colour, markersize=6, zorder=4, clip_on=False)
