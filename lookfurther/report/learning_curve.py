"""Learning curves as PNG."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lookfurther.errors import LookFurtherError
from lookfurther.system.files import atomic_replace
from lookfurther.training.metrics import get_metric, read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers can tell apart too.
LINE_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#56B4E9", "#CC79A7", "#E69F00")
TEXT_COLOUR, MUTED_COLOUR, GRID_COLOUR = "#222222", "#767676", "#E4E4E4"
RECENT_COLOUR = "#6BA6D0"  # of COLOURS[0]
LOW_EPSILON_METRIC = "return_low_epsilon"
LOSS_LINES = {
    "loss_td": ("TD", TEXT_COLOUR),
    "loss_tc": ("TC", LINE_COLOURS[5]),
    "loss_im": ("IM", LINE_COLOURS[4]),
}

MetricRows = list[dict[str, Any]]
MetricSeries = tuple[np.ndarray, np.ndarray]
LineLabel = tuple[float, str, str]  # height, text, colour


def _read_rows(path: Path) -> MetricRows:
    rows = read_metrics(path)
    if not rows:
        raise LookFurtherError(f"{path} holds no metrics yet: let the run go on for a while")
    return rows


def metric_series(rows: MetricRows, key: str, x_key: str = "step") -> MetricSeries:
    """Steps, or another measure of time, and values of one metric, where it is known."""
    pairs = [(get_metric(row, x_key), get_metric(row, key)) for row in rows]
    known = [pair for pair in pairs if None not in pair]
    times, values = np.array(known, np.float64).reshape(-1, 2).T
    return times, values


def _format_steps(value: float, _: object = None) -> str:
    """A number of steps as 0, 250k or 1.5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def _format_value(value: float, _: object = None) -> str:
    """A score or a loss as 0.01, 0.5 or 35,000."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def style_axes(axes: Axes, ylabel: str) -> None:
    """The look all panels share."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(MUTED_COLOUR)
    axes.grid(axis="y", color=GRID_COLOUR, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=MUTED_COLOUR, labelcolor=TEXT_COLOUR, length=0, labelsize=10)
    axes.set_ylabel(ylabel, color=TEXT_COLOUR, fontsize=11)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(FuncFormatter(_format_steps))
    axes.yaxis.set_major_formatter(FuncFormatter(_format_value))
    axes.margins(x=0)


def _plot_references(axes: Axes, references: Mapping[str, float] | None) -> list[LineLabel]:
    """Reference lines, such as the expert's score."""
    for height in (references or {}).values():
        axes.axhline(height, color=MUTED_COLOUR, linewidth=1.2, linestyle=(0, (4, 3)), zorder=1)
    return [(height, name, MUTED_COLOUR) for name, height in (references or {}).items()]


def _draw_labels(axes: Axes, labels: list[LineLabel]) -> None:
    """Names at the right end of their lines, moved apart where they would touch."""
    if not labels:
        return
    gap = 15 / axes.get_window_extent().height * axes.figure.dpi / 72  # of the axes' height
    labels = sorted(labels)
    to_axes = axes.transData + axes.transAxes.inverted()
    heights = np.array([to_axes.transform((0, y))[1] for y, _, _ in labels])
    for _ in range(100):  # push close neighbours apart until none is left
        for i in range(len(heights) - 1):
            short = gap - (heights[i + 1] - heights[i])
            if short > 0:
                heights[i : i + 2] += -short / 2, short / 2
    for height, (_, text, colour) in zip(heights, labels, strict=True):
        axes.annotate(
            text,
            (1, height),
            xycoords="axes fraction",
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            color=colour,
            fontsize=10,
            annotation_clip=False,
        )


def _create_figure(heights: tuple[float, ...]) -> tuple[Figure, list[Axes]]:
    """Panels one below the other on the same steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.5 + 0.5 * sum(heights)), dpi=200)
    figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.08)
    panels = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)
    panels[-1, 0].set_xlabel("agent steps", color=TEXT_COLOUR, fontsize=11)
    return figure, list(panels[:, 0])


def _save_figure(figure: Figure, labels: dict[Axes, list[LineLabel]], out: Path) -> None:
    """Labels need the final layout, so they come last."""
    for axes in labels:
        axes.set_xlim(left=0)
    figure.align_ylabels()
    figure.draw_without_rendering()
    for axes, names in labels.items():
        _draw_labels(axes, names)
    with atomic_replace(out) as temporary:
        figure.savefig(temporary, format="png")


def _plot_returns(axes: Axes, rows: MetricRows, other_runs: Mapping[str, Path]) -> list[LineLabel]:
    """Recent and low-epsilon returns of this run, and the latter of the others."""
    own = "this run, " if other_runs else ""
    lines = [(f"{own}recent", metric_series(rows, "return_mean"), RECENT_COLOUR, 1.2)]
    lines += [(f"{own}low ε", metric_series(rows, LOW_EPSILON_METRIC), LINE_COLOURS[0], 2.2)]
    for i, (name, path) in enumerate(other_runs.items()):
        colour = LINE_COLOURS[1 + i % (len(LINE_COLOURS) - 1)]
        lines.append(
            (f"{name}, low ε", metric_series(_read_rows(path), LOW_EPSILON_METRIC), colour, 1.6)
        )
    labels = []
    for name, (steps, values), colour, width in lines:
        if len(steps):
            axes.plot(steps, values, color=colour, linewidth=width)
            labels.append((values[-1], name, colour))
    if not labels:
        axes.text(
            0.5,
            0.5,
            "no finished episode yet",
            transform=axes.transAxes,
            color=MUTED_COLOUR,
            ha="center",
        )
    return labels


def _plot_losses(axes: Axes, rows: MetricRows) -> list[LineLabel]:
    """The terms of the loss on a logarithmic scale."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    labels = []
    for key, (name, colour) in LOSS_LINES.items():
        steps, values = metric_series(rows, key)
        steps, values = steps[values > 0], values[values > 0]
        if len(steps):
            axes.plot(steps, values, color=colour, linewidth=1.2)
            labels.append((values[-1], name, colour))
    if labels:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(numticks=5))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(_format_value))
    return labels


def plot_learning_curve(
    metrics: Path,
    out: Path,
    references: Mapping[str, float] | None = None,
    other_runs: Mapping[str, Path] | None = None,
) -> None:
    """A run's returns above its losses, against reference scores and other runs' metrics."""
    rows = _read_rows(metrics)
    figure, (upper, lower) = _create_figure((3, 1))
    style_axes(upper, "return")
    style_axes(lower, "loss")
    labels = {upper: _plot_returns(upper, rows, other_runs or {}), lower: _plot_losses(lower, rows)}
    labels[upper] += _plot_references(upper, references)
    _save_figure(figure, labels, out)


def _align_runs(paths: list[Path]) -> tuple[np.ndarray, np.ndarray]:
    """Low-epsilon returns [runs, steps] of several runs at the steps that all of them cover."""
    each = [metric_series(_read_rows(path), LOW_EPSILON_METRIC) for path in paths]
    for path, (steps, _) in zip(paths, each, strict=True):
        if not len(steps):
            raise LookFurtherError(f"{path} holds no return of low-ε lanes: train for longer")
    start = max(steps[0] for steps, _ in each)
    end = min(steps[-1] for steps, _ in each)
    if start > end:
        raise LookFurtherError(f"{paths[0]} and its companions share no steps: train for longer")
    grid = np.linspace(start, end, 400)
    return grid, np.stack([np.interp(grid, *pair) for pair in each])


def plot_seed_curves(
    runs: Mapping[str, list[Path]],
    out: Path,
    references: Mapping[str, float] | None = None,
    title: str = "",
) -> None:
    """For each named group of seeds the mean low-epsilon return, in a band from least to most."""
    figure, (axes,) = _create_figure((3,))
    style_axes(axes, "return (low ε)")
    axes.set_title(title, loc="left", color=TEXT_COLOUR, fontsize=12, pad=12)
    seeds = "–".join(str(n) for n in sorted({len(paths) for paths in runs.values()}))
    axes.set_title(
        f"mean and range, seeds: {seeds}", loc="right", color=MUTED_COLOUR, fontsize=9, pad=12
    )
    labels = _plot_references(axes, references)
    for i, (name, paths) in enumerate(runs.items()):
        colour = LINE_COLOURS[i % len(LINE_COLOURS)]
        grid, values = _align_runs(paths)
        mean = values.mean(0)
        axes.fill_between(grid, values.min(0), values.max(0), color=colour, alpha=0.18, linewidth=0)
        axes.plot(grid, mean, color=colour, linewidth=2.2)
        labels.append((mean[-1], name, colour))
    _save_figure(figure, {axes: labels}, out)
