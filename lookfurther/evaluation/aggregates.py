"""Aggregates over tasks and runs, with stratified bootstrap confidence intervals.

After Agarwal et al. (2021), "Deep reinforcement learning at the edge of the statistical
precipice". Strata are one array for each task. The last axis of an array holds the runs of that
task (or, for a single evaluation, its episodes). The axes before it are batch axes, so that
resamples need no loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

Strata = Sequence[np.ndarray]  # [..., runs of the task] for each task
Statistic = Callable[[Strata], np.ndarray]

CONFIDENCE_LEVEL = 0.95
BOOTSTRAP_RESAMPLES = 2000


class IntervalEstimate(NamedTuple):
    """A value and its confidence interval; NaN to NaN if no task has two runs."""

    value: float
    low: float
    high: float


def mean(strata: Strata) -> np.ndarray:
    """Mean over tasks of the mean over runs."""
    return np.mean([task.mean(-1) for task in strata], axis=0)


def median(strata: Strata) -> np.ndarray:
    """Median over tasks of the mean over runs."""
    return np.median([task.mean(-1) for task in strata], axis=0)


def pooled_median(strata: Strata) -> np.ndarray:
    """Median of all tasks' runs together."""
    return np.median(np.concatenate(strata, axis=-1), axis=-1)


def iqm(strata: Strata) -> np.ndarray:
    """Interquartile mean: the mean of all tasks' runs without their lowest and highest quarter."""
    values = np.sort(np.concatenate(strata, axis=-1), axis=-1)
    count = values.shape[-1]
    return values[..., count // 4 : count - count // 4].mean(-1)


def performance_profile(strata: Strata, thresholds: np.ndarray) -> np.ndarray:
    """Performance profile [..., thresholds]: the share of runs above each, mean over tasks."""
    return np.mean([(task[..., None] > thresholds).mean(-2) for task in strata], axis=0)


def probability_of_improvement(ours: Strata, theirs: Strata) -> np.ndarray:
    """Probability that a run of ours beats one of theirs on a random task; ties count half."""
    pairs = [(a[..., :, None], b[..., None, :]) for a, b in zip(ours, theirs, strict=True)]
    return np.mean([((a > b) + 0.5 * (a == b)).mean((-2, -1)) for a, b in pairs], axis=0)


def stratified_bootstrap(
    strata: Strata, resamples: int = BOOTSTRAP_RESAMPLES, seed: int = 0
) -> list[np.ndarray]:
    """Resampled runs [resamples, runs] of each task, drawn with replacement from that task."""
    random = np.random.default_rng(seed)
    return [task[random.integers(len(task), size=(resamples, len(task)))] for task in strata]


def confidence_interval(
    strata: Strata,
    statistic: Statistic,
    level: float = CONFIDENCE_LEVEL,
    resamples: int = BOOTSTRAP_RESAMPLES,
) -> np.ndarray:
    """Percentile interval [2, ...] of a statistic; NaN if no task has two runs."""
    if max(len(task) for task in strata) < 2:
        return np.full((2, *np.shape(statistic(strata))), np.nan)
    tails = [(1 - level) / 2, (1 + level) / 2]
    return np.quantile(statistic(stratified_bootstrap(strata, resamples)), tails, axis=0)


def mean_confidence_band(
    curves: np.ndarray, level: float = CONFIDENCE_LEVEL, resamples: int = BOOTSTRAP_RESAMPLES
) -> np.ndarray:
    """Pointwise interval [2, points] of the mean of curves [runs, points]; NaN for one run."""
    runs = len(curves)
    if runs < 2:
        return np.full((2, curves.shape[1]), np.nan)
    counts = np.random.default_rng(0).multinomial(runs, np.full(runs, 1 / runs), size=resamples)
    return np.quantile(counts / runs @ curves, [(1 - level) / 2, (1 + level) / 2], axis=0)


def estimate_with_interval(strata: Strata, statistic: Statistic) -> IntervalEstimate:
    """A statistic with its confidence interval."""
    low, high = confidence_interval(strata, statistic)
    return IntervalEstimate(float(statistic(strata)), float(low), float(high))


def estimate_improvement(ours: Strata, theirs: Strata) -> IntervalEstimate:
    """The probability of improvement with its confidence interval, both sides resampled."""

    def statistic(strata: Strata) -> np.ndarray:
        return probability_of_improvement(strata[: len(ours)], strata[len(ours) :])

    return estimate_with_interval([*ours, *theirs], statistic)


def human_normalised_score(score: float, random: float, human: float) -> float:
    """The score of Table 2 in percent: 0 is random play, 100 the average human."""
    return 100 * (score - random) / (human - random)


def relative_score(score: float, player: float, random: float) -> float:
    """The lead over a player, in percent of that player's lead over random play; 0 is equal.

    For the average human this is the paper's human-relative score, for the best expert episode
    its expert-relative score.
    """
    return 100 * (score - player) / (player - random)
