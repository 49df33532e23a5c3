"""Figures over time: returns, training metrics, and the best episodes of agent and expert."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lookfurther.envs.naming import env_title, is_atari
from lookfurther.evaluation.results import ReturnCurve
from lookfurther.report.curves import (
    RETURN_METRIC,
    TIME_AXES,
    MetricCurve,
    compute_confidence_band,
    extract_curves,
)
from lookfurther.report.figure_style import (
    MUTED_COLOUR,
    LineStyle,
    LineStyles,
    add_legend,
    create_panels,
    mark_panel_empty,
    set_log_scale,
    set_panel_title,
    set_xlabel,
    style_axes,
)
from lookfurther.report.runs import RunGroup

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Metric: (panel title, is the scale logarithmic)
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
FRAMES_PER_MINUTE = 60 * 60  # of an Atari game


def group_by_env(groups: Sequence[RunGroup]) -> dict[str, list[RunGroup]]:
    """Collect the groups of each environment; both keep their order."""
    return {e: [g for g in groups if g.env == e] for e in dict.fromkeys(g.env for g in groups)}


def _plot_group(
    axes: Axes, group: RunGroup, style: LineStyle, x_metric: str, y_metric: str
) -> list[MetricCurve]:
    """Plot the mean over seeds with its interval; return the curves of the seeds."""
    seed_curves = extract_curves(group.runs, x_metric, y_metric)
    band = compute_confidence_band(seed_curves)
    if band is not None:
        colour = style.colour
        axes.plot(band.x, band.mean, color=colour, ls=style.dash, linewidth=1.8, zorder=3)
        axes.fill_between(band.x, band.low, band.high, color=colour, alpha=0.18, linewidth=0)
    return seed_curves


def plot_return_curves(groups: Sequence[RunGroup], styles: LineStyles, x_metric: str) -> Figure:
    """Plot returns over steps, frames or minutes, one panel per environment (Fig. 6)."""
    envs = group_by_env(groups)
    figure, panels = create_panels(len(envs))
    for axes, (env, members) in zip(panels, envs.items(), strict=True):
        style_axes(axes, "return (low ε)" if axes is panels[0] else "")
        curves = {
            g.variant: _plot_group(axes, g, styles[g.variant], x_metric, RETURN_METRIC)
            for g in members
        }
        for variant, seed_curves in curves.items():
            for curve in seed_curves if len(seed_curves) > 1 else []:
                axes.plot(*curve, color=styles[variant].colour, linewidth=0.6, alpha=0.35)
        if any(curves.values()):
            axes.set_xlim(left=0)
        else:
            axes.set(xticks=[], yticks=[])
            mark_panel_empty(axes, "no finished episode yet")
        set_xlabel(axes, TIME_AXES[x_metric])
        set_panel_title(axes, env_title(env))
    variants = {g.variant for g in groups}
    add_legend(figure, [variant for variant in styles if variant in variants], styles)
    return figure


def plot_training_metrics(groups: Sequence[RunGroup], styles: LineStyles) -> Figure | None:
    """Plot losses, priorities, the share of demonstrations and throughput of one environment."""
    known = {
        key: panel
        for key, panel in TRAINING_METRICS.items()
        if any(curve.y.any() for g in groups for curve in extract_curves(g.runs, "step", key))
    }
    if not known:
        return None
    figure, panels = create_panels(len(known), panel_height=2.1)
    for axes, (key, (title, is_logarithmic)) in zip(panels, known.items(), strict=True):
        style_axes(axes, "")
        for group in groups:
            _plot_group(axes, group, styles[group.variant], "step", key)
        if is_logarithmic:
            set_log_scale(axes)
        axes.set_xlim(left=0)
        set_panel_title(axes, title)
    add_legend(figure, [g.variant for g in groups], styles)
    return figure


def plot_imitation(groups: Sequence[RunGroup], styles: LineStyles) -> Figure | None:
    """Plot the best episodes of agent and expert: imitation against inspiration (Fig. 2)."""
    best = {(g.env, g.variant): curve for g in groups if (curve := _best_curve([g], "agent"))}
    evaluated = {env for env, _ in best}
    envs = {env: members for env, members in group_by_env(groups).items() if env in evaluated}
    if not envs:
        return None
    figure, panels = create_panels(len(envs))
    has_expert = False
    for axes, (env, members) in zip(panels, envs.items(), strict=True):
        style_axes(axes, "cumulative return" if axes is panels[0] else "")
        expert = _best_curve(members, "expert")
        if expert is not None:
            has_expert = True
            _plot_episode(axes, env, expert, EXPERT_STYLE)
        for group in members:
            curve = best.get((env, group.variant))
            if curve is not None:
                _plot_episode(axes, env, curve, styles[group.variant])
                _mark_expert_score(axes, env, curve, expert, styles[group.variant])
        set_xlabel(axes, "minutes of play" if is_atari(env) else "steps")
        axes.set_xlim(left=0)
        set_panel_title(axes, env_title(env))
    legend = {variant: styles[variant] for _, variant in best}
    if has_expert:
        legend["expert"] = EXPERT_STYLE
    add_legend(figure, list(legend), legend)
    return figure


def _best_curve(groups: Sequence[RunGroup], player: str) -> ReturnCurve | None:
    """A player's episode with the highest return in evaluations from no-op starts."""
    evaluations = [e for g in groups for r in g.runs for e in r.evaluations.values()]
    curves = [
        e.best_curves[player]
        for e in evaluations
        if e.conditions.starts == "noop" and player in e.best_curves
    ]
    return max(curves, key=lambda curve: curve.returns[-1], default=None)


def _frames_to_time(env: str, frames: np.ndarray) -> np.ndarray:
    """Minutes of an Atari game, steps of other environments."""
    return frames / FRAMES_PER_MINUTE if is_atari(env) else frames


def _plot_episode(axes: Axes, env: str, curve: ReturnCurve, style: LineStyle) -> None:
    x = _frames_to_time(env, curve.frames)
    axes.step(
        x, curve.returns, where="post", color=style.colour, linestyle=style.dash, linewidth=1.8
    )


def _mark_expert_score(
    axes: Axes, env: str, curve: ReturnCurve, expert: ReturnCurve | None, style: LineStyle
) -> None:
    """Draw a dot where the agent reaches the expert's final return."""
    reached = [] if expert is None else np.flatnonzero(curve.returns >= expert.returns[-1])
    if len(reached):
        i = int(reached[0])
        x = _frames_to_time(env, curve.frames[i : i + 1])
        y = curve.returns[i : i + 1]
        axes.plot(x, y, "o", color=style.colour, markersize=6, zorder=4, clip_on=False)
