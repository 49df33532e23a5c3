"""Metrics of several seeds on one axis: the mean where all of them have values, in its interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lookfurther.evaluation.aggregates import mean_band
from lookfurther.report.runs import Run
from lookfurther.training.metrics import number

POINTS = 120  # of a curve on the page
AXES = {"step": "agent steps", "frames": "frames", "minutes": "minutes"}


class Line(NamedTuple):
    """One run's values of a metric."""

    x: np.ndarray  # [n], rising
    y: np.ndarray  # [n]


class Band(NamedTuple):
    """The mean over runs with its interval, NaN for one run."""

    x: np.ndarray  # [POINTS]
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def line(run: Run, x: str, y: str) -> Line | None:
    """A metric over another where both are known, thinned to means of neighbours."""
    pairs = [(number(row, x), number(row, y)) for row in run.rows]
    known = [pair for pair in pairs if None not in pair]
    if not known:
        return None
    values = np.array(known, np.float64)
    parts = np.array_split(values, min(len(values), 2 * POINTS))
    return Line(*np.stack([part.mean(0) for part in parts]).T)


def lines(runs: Sequence[Run], x: str, y: str) -> list[Line]:
    """The lines of those runs that know the metric."""
    return [found for run in runs if (found := line(run, x, y)) is not None]


def band(curves: Sequence[Line]) -> Band | None:
    """The mean over runs on the stretch that all of them cover; None where there is none."""
    if not curves:
        return None
    start = max(curve.x[0] for curve in curves)
    end = min(curve.x[-1] for curve in curves)
    if start > end:
        return None
    x = np.linspace(start, end, POINTS)
    values = np.stack([np.interp(x, curve.x, curve.y) for curve in curves])
    return Band(x, values.mean(0), *mean_band(values))
