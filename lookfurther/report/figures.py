"""Figures over time: learning curves, what the learner did, and episodes of agent and expert."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lookfurther.evaluation.paper_scores import game_of
from lookfurther.evaluation.results import Trace
from lookfurther.report.curves import AXES, Line, band, lines
from lookfurther.report.figure_style import Look, headed, legend, panels
from lookfurther.report.learning_curve import GREY, INK, dress
from lookfurther.report.runs import Group
from lookfurther.report.score_columns import title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Looks = dict[str, Look]

RETURN = "return_low_epsilon"

# Metric: (title, logarithmic)
TRAINING = {
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
EXPERT = Look(GREY, (0, (5, 1.5)))
FRAMES = 60 * 60  # in a minute of an Atari game


def by_env(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """Groups by environment, in their order."""
    return {e: [g for g in groups if g.env == e] for e in dict.fromkeys(g.env for g in groups)}


def _draw(axes: Axes, group: Group, look: Look, x: str, y: str) -> list[Line]:
    """The mean over seeds and its interval; gives the seeds' own lines."""
    seeds = lines(group.runs, x, y)
    middle = band(seeds)
    if middle is not None:
        colour = look.colour
        axes.plot(middle.x, middle.mean, color=colour, ls=look.dash, linewidth=1.8, zorder=3)
        axes.fill_between(middle.x, middle.low, middle.high, color=colour, alpha=0.18, linewidth=0)
    return seeds


def curves(groups: Sequence[Group], looks: Looks, x: str) -> Figure:
    """Learning curves over steps, frames or minutes, a panel for each environment (Fig. 6)."""
    envs = by_env(groups)
    figure, grid = panels(len(envs))
    for axes, (env, members) in zip(grid, envs.items(), strict=True):
        dress(axes, "return (low ε)" if axes is grid[0] else "")
        drawn = {g.variant: _draw(axes, g, looks[g.variant], x, RETURN) for g in members}
        for variant, seeds in drawn.items():
            for seed in seeds if len(seeds) > 1 else []:
                axes.plot(*seed, color=looks[variant].colour, linewidth=0.6, alpha=0.35)
        if any(drawn.values()):
            axes.set_xlim(left=0)
        else:
            _empty(axes, "no finished episode yet")
        axes.set_xlabel(AXES[x], color=INK, fontsize=9)
        headed(axes, title(env))
    variants = {g.variant for g in groups}
    legend(figure, [variant for variant in looks if variant in variants], looks)
    return figure


def _empty(axes: Axes, text: str) -> None:
    axes.set(xticks=[], yticks=[])
    axes.text(0.5, 0.5, text, transform=axes.transAxes, color=GREY, ha="center")


def training(groups: Sequence[Group], looks: Looks) -> Figure | None:
    """Loss terms, priorities, the share of demonstrations and throughput of one environment."""
    known = {
        key: how
        for key, how in TRAINING.items()
        if any(line.y.any() for g in groups for line in lines(g.runs, "step", key))
    }
    if not known:
        return None
    figure, grid = panels(len(known), height=2.1)
    for axes, (key, (text, logarithmic)) in zip(grid, known.items(), strict=True):
        dress(axes, "")
        for group in groups:
            _draw(axes, group, looks[group.variant], "step", key)
        if logarithmic:
            _logarithmic(axes)
        axes.set_xlim(left=0)
        headed(axes, text)
    legend(figure, [g.variant for g in groups], looks)
    return figure


def _logarithmic(axes: Axes) -> None:
    """A logarithmic scale with labels on short ranges too; what is not positive is left out."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_yscale("log", nonpositive="mask")
    bottom, top = axes.get_ylim()
    subs = (1.0,) if top > 100 * bottom else (1.0, 2.0, 5.0)
    axes.yaxis.set_major_locator(LogLocator(subs=subs, numticks=6))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def imitation(groups: Sequence[Group], looks: Looks) -> Figure | None:
    """Imitation against inspiration: the best episodes of agent and expert over time (Fig. 2)."""
    best = {(g.env, g.variant): trace for g in groups if (trace := _best([g], "agent"))}
    shown = {env for env, _ in best}
    envs = {env: members for env, members in by_env(groups).items() if env in shown}
    if not envs:
        return None
    figure, grid = panels(len(envs))
    for axes, (env, members) in zip(grid, envs.items(), strict=True):
        dress(axes, "cumulative return" if axes is grid[0] else "")
        expert = _best(members, "expert")
        if expert is not None:
            _stairs(axes, env, expert, EXPERT)
        for group in members:
            trace = best.get((env, group.variant))
            if trace is not None:
                _stairs(axes, env, trace, looks[group.variant])
                _mark(axes, env, trace, expert, looks[group.variant])
        axes.set_xlabel("minutes of play" if game_of(env) else "steps", color=INK, fontsize=9)
        axes.set_xlim(left=0)
        headed(axes, title(env))
    named = {variant: looks[variant] for _, variant in best} | {"expert": EXPERT}
    legend(figure, list(named), named)
    return figure


def _best(groups: Sequence[Group], player: str) -> Trace | None:
    """The highest episode that evaluations from no-op starts kept of a player."""
    kept = [e for g in groups for r in g.runs for e in r.evaluations.values()]
    traces = [e.best[player] for e in kept if e.conditions.starts == "noop" and player in e.best]
    return max(traces, key=lambda trace: trace.returns[-1], default=None)


def _time(env: str, frames: np.ndarray) -> np.ndarray:
    return frames / FRAMES if game_of(env) else frames


def _stairs(axes: Axes, env: str, trace: Trace, look: Look) -> None:
    x = _time(env, trace.frames)
    axes.step(x, trace.returns, where="post", color=look.colour, linestyle=look.dash, linewidth=1.8)


def _mark(axes: Axes, env: str, trace: Trace, expert: Trace | None, look: Look) -> None:
    """A dot where the agent's return reaches the expert's final one."""
    there = [] if expert is None else np.flatnonzero(trace.returns >= expert.returns[-1])
    if len(there):
        i = int(there[0])
        x = _time(env, trace.frames[i : i + 1])
        y = trace.returns[i : i + 1]
        axes.plot(x, y, "o", color=look.colour, markersize=6, zorder=4, clip_on=False)
