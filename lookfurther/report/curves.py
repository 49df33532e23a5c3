"""Metric curves of several seeds: their mean with its confidence interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lookfurther.evaluation.aggregates import mean_confidence_band
from lookfurther.report.runs import RunData
from lookfurther.training.monitoring.metrics import get_metric

CURVE_POINTS = 120  # of a band
RETURN_METRIC = "return_low_epsilon"  # of the least exploring lanes, close to an evaluation
TIME_AXES = {"step": "agent steps", "frames": "frames", "minutes": "minutes"}


class MetricCurve(NamedTuple):
    """One run's values of a metric."""

    x: np.ndarray  # [n], increasing
    y: np.ndarray  # [n]


class ConfidenceBand(NamedTuple):
    """The mean over runs with its interval; the interval of a single run is NaN."""

    x: np.ndarray  # [CURVE_POINTS]
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def extract_curve(run: RunData, x_metric: str, y_metric: str) -> MetricCurve | None:
    """One metric over another where both are known; many points become means of neighbours."""
    pairs = [(get_metric(row, x_metric), get_metric(row, y_metric)) for row in run.rows]
    known = [pair for pair in pairs if None not in pair]
    if not known:
        return None
    values = np.array(known, np.float64)
    parts = np.array_split(values, min(len(values), 2 * CURVE_POINTS))
    return MetricCurve(*np.stack([part.mean(0) for part in parts]).T)


def extract_curves(runs: Sequence[RunData], x_metric: str, y_metric: str) -> list[MetricCurve]:
    """The curves of the runs that have the metric."""
    curves = [extract_curve(run, x_metric, y_metric) for run in runs]
    return [curve for curve in curves if curve is not None]


def compute_confidence_band(curves: Sequence[MetricCurve]) -> ConfidenceBand | None:
    """The mean over runs where all of them have values; None if their ranges do not overlap."""
    if not curves:
        return None
    start = max(curve.x[0] for curve in curves)
    end = min(curve.x[-1] for curve in curves)
    if start > end:
        return None
    x = np.linspace(start, end, CURVE_POINTS)
    values = np.stack([np.interp(x, curve.x, curve.y) for curve in curves])
    return ConfidenceBand(x, values.mean(0), *mean_confidence_band(values))
