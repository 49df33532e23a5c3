"""Metrics of several runs over time: one small panel per metric, one line per run.

    python -m analysis.curves OUT.png NAME=RUN ... --show METRIC ...
                                [--over minutes | updates | frames] [--until X]

RUN is a run folder or its metrics.jsonl. docs/runs.md lists the metrics.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lookfurther.errors import LookFurtherError
from lookfurther.report.figure_style import LINE_COLOURS, TEXT_COLOUR, save_png, style_axes
from lookfurther.report.learning_curve import MetricRows, MetricSeries, metric_series
from lookfurther.training.monitoring.metrics import read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANEL_COLUMNS = 3


def load_metrics(run: Path) -> MetricRows:
    """The metrics of a run, from its folder or from the file."""
    path = run / "metrics.jsonl" if run.is_dir() else run
    rows = read_metrics(path) if path.is_file() else []
    if not rows:
        raise LookFurtherError(f"{run} holds no metrics: give a run folder or its metrics.jsonl")
    return rows


def bounded_series(rows: MetricRows, metric: str, over: str, until: float) -> MetricSeries:
    """The known values of a metric, up to `until`."""
    if not any(metric in row for row in rows):
        raise LookFurtherError(f"there is no metric {metric}: docs/runs.md lists them")
    return metric_series([row for row in rows if row[over] <= until], metric, over)


def draw_panel(
    axes: Axes, runs: dict[str, MetricRows], metric: str, over: str, until: float
) -> None:
    """Draw one metric of every run."""
    style_axes(axes, "")
    axes.set_title(metric.replace("_", " "), loc="left", color=TEXT_COLOUR, fontsize=10)
    for (name, rows), colour in zip(runs.items(), LINE_COLOURS, strict=False):
        axes.plot(
            *bounded_series(rows, metric, over, until), color=colour, linewidth=1.6, label=name
        )
    axes.set_xlim(left=0)


def draw_figure(
    runs: dict[str, MetricRows], metrics: list[str], over: str, until: float, out: Path
) -> None:
    """Draw all panels and the legend."""
    from matplotlib.figure import Figure

    lines = math.ceil(len(metrics) / PANEL_COLUMNS)
    columns = min(len(metrics), PANEL_COLUMNS)
    figure = Figure(figsize=(3.6 * columns, 0.5 + 2.3 * lines), dpi=150)
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.08)
    panels = figure.subplots(lines, columns, squeeze=False).flatten()
    for axes, metric in zip(panels, metrics, strict=False):
        draw_panel(axes, runs, metric, over, until)
    for axes in panels[len(metrics) :]:
        axes.set_visible(False)
    figure.supxlabel(over, fontsize=10, color=TEXT_COLOUR)
    if len(runs) > 1:
        handles, names = panels[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper right", ncols=len(runs), frameon=False)
    save_png(figure, out)


def parse_named_run(word: str) -> tuple[str, Path]:
    """Parse NAME=RUN."""
    name, sign, run = word.partition("=")
    if not (name and sign and run):
        raise argparse.ArgumentTypeError(f"{word} is not of the form NAME=RUN")
    return name, Path(run)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, help="output file")
    parser.add_argument("runs", type=parse_named_run, nargs="+", help="NAME=RUN")
    parser.add_argument("--show", nargs="+", required=True, help="metrics, one panel each")
    parser.add_argument("--over", choices=["minutes", "updates", "frames"], default="minutes")
    parser.add_argument("--until", type=float, default=math.inf, help="end of the x axis")
    options = parser.parse_args()
    try:
        runs = {name: load_metrics(run) for name, run in options.runs}
        draw_figure(runs, options.show, options.over, options.until, options.out)
    except LookFurtherError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
