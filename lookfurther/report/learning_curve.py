"""The learning curve of a run as a PNG file: its returns above its losses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lookfurther.errors import LookFurtherError
from lookfurther.report.curves import RETURN_METRIC
from lookfurther.report.figure_style import (
    LINE_COLOURS,
    LINE_DASHES,
    MUTED_COLOUR,
    TEXT_COLOUR,
    mark_panel_empty,
    save_png,
    set_log_scale,
    style_axes,
)
from lookfurther.training.monitoring.metrics import get_metric, read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RECENT_COLOUR = "#6BA6D0"  # a light LINE_COLOURS[0]
LOSS_LINES = {
    "loss_td": ("TD", TEXT_COLOUR),
    "loss_tc": ("TC", LINE_COLOURS[5]),
    "loss_im": ("IM", LINE_COLOURS[4]),
}

MetricRows = list[dict[str, Any]]
MetricSeries = tuple[np.ndarray, np.ndarray]


def _read_rows(path: Path) -> MetricRows:
    rows = read_metrics(path)
    if not rows:
        raise LookFurtherError(f"{path} holds no metrics yet: wait until the run writes some")
    return rows


def metric_series(rows: MetricRows, key: str, x_key: str = "step") -> MetricSeries:
    """The rows' values of two metrics, where both are known."""
    pairs = [(get_metric(row, x_key), get_metric(row, key)) for row in rows]
    known = [pair for pair in pairs if None not in pair]
    x, y = np.array(known, np.float64).reshape(-1, 2).T
    return x, y


def plot_learning_curve(
    metrics: str | Path,
    out: str | Path,
    references: Mapping[str, float] | None = None,
    other_runs: Mapping[str, str | Path] | None = None,
) -> None:
    """Plot a run's returns and losses, with reference scores and the returns of other runs."""
    from matplotlib.figure import Figure

    rows = _read_rows(Path(metrics))
    figure = Figure(figsize=(8, 5.5), dpi=200)
    figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.08)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    style_axes(upper, "return")
    style_axes(lower, "loss")
    _plot_returns(upper, rows, {name: Path(p) for name, p in (other_runs or {}).items()})
    _plot_references(upper, references or {})
    _plot_losses(lower, rows)
    for axes in (upper, lower):
        _add_legend(axes)
    lower.set_xlim(left=0)
    lower.set_xlabel("agent steps", color=TEXT_COLOUR, fontsize=11)
    figure.align_ylabels()
    save_png(figure, Path(out))


def _plot_returns(axes: Axes, rows: MetricRows, other_runs: Mapping[str, Path]) -> None:
    """Plot recent and low-epsilon returns of this run, and low-epsilon returns of other runs."""
    prefix = "this run, " if other_runs else ""
    lines = [(f"{prefix}recent", metric_series(rows, "return_mean"), RECENT_COLOUR, 1.2)]
    lines += [(f"{prefix}low ε", metric_series(rows, RETURN_METRIC), LINE_COLOURS[0], 2.2)]
    for i, (name, path) in enumerate(other_runs.items()):
        colour = LINE_COLOURS[1 + i % (len(LINE_COLOURS) - 1)]
        series = metric_series(_read_rows(path), RETURN_METRIC)
        lines.append((f"{name}, low ε", series, colour, 1.6))
    known = [line for line in lines if len(line[1][0])]
    for name, series, colour, width in known:
        axes.plot(*series, color=colour, linewidth=width, label=name)
    if not known:
        mark_panel_empty(axes, "no finished episode yet")


def _plot_references(axes: Axes, references: Mapping[str, float]) -> None:
    """Draw reference scores, such as the expert's, as dashed lines."""
    for i, (name, score) in enumerate(references.items()):
        dash = LINE_DASHES[1 + i % (len(LINE_DASHES) - 1)]
        axes.axhline(score, color=MUTED_COLOUR, linewidth=1.2, linestyle=dash, zorder=1, label=name)


def _plot_losses(axes: Axes, rows: MetricRows) -> None:
    """Plot the loss terms that were positive at some step."""
    for key, (name, colour) in LOSS_LINES.items():
        steps, values = metric_series(rows, key)
        steps, values = steps[values > 0], values[values > 0]
        if len(steps):
            axes.plot(steps, values, color=colour, linewidth=1.2, label=name)
    if axes.lines:
        set_log_scale(axes)


def _add_legend(axes: Axes) -> None:
    """Name the lines to the right of the panel, in their colours."""
    if axes.lines:
        axes.legend(
            loc="upper left",
            bbox_to_anchor=(1, 1),
            frameon=False,
            labelcolor="linecolor",
            handlelength=1.4,
        )
