"""Aggregates and intervals: golden numbers of rliable 1.2.0, small cases by hand, properties."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookfurther.evaluation import aggregates
from lookfurther.evaluation.aggregates import (
    confidence_interval,
    estimate_improvement,
    estimate_with_interval,
    human_normalised_score,
    iqm,
    mean,
    mean_confidence_band,
    median,
    performance_profile,
    pooled_median,
    probability_of_improvement,
    relative_score,
    stratified_bootstrap,
)

# Six tasks with five runs, and with four.
X = [
    np.array(task)
    for task in (
        [1.67, 1.81, 1.6, 1.53, 0.55],
        [1.34, 1.63, 0.37, 1.75, 2.53],
        [1.15, 0.46, 1.86, 1.77, 2.71],
        [1.75, 0.24, 0.83, 0.36, 2.69],
        [1.11, 0.51, 0.83, 1.83, 0.94],
        [2.38, 1.88, 3.09, 5.81, 1.14],
    )
]
Y = [
    np.array(task)
    for task in (
        [1.6, 1.63, 0.53, 0.03],
        [0.71, 0.58, 1.59, 0.29],
        [2.33, 3.03, 1.61, 4.75],
        [0.34, 0.63, 2.17, 0.43],
        [0.03, 0.77, 1.5, 1.38],
        [0.79, 0.21, 1.21, 0.7],
    )
]
TAUS = np.array([0.5, 1.0, 2.0, 3.0, 4.0])

scores = st.floats(-1e6, 1e6, width=32)
task = st.lists(scores, min_size=1, max_size=9).map(np.array)
strata = st.lists(task, min_size=1, max_size=5)


@pytest.mark.parametrize(
    ("kind", "x", "y", "low", "high"),
    [
        (mean, 1.604, 1.2016666667, 1.29233, 1.94167),
        (median, 1.478, 0.90625, 1.144, 1.765),
        (iqm, 1.481875, 0.9991666667, 1.185, 1.76875),
    ],
)
def test_aggregates_match_rliable(
    kind: aggregates.Statistic, x: float, y: float, low: float, high: float
) -> None:
    """Values are exact; rliable computed the interval from 50,000 resamples."""
    assert float(kind(X)) == pytest.approx(x)
    assert float(kind(Y)) == pytest.approx(y)
    np.testing.assert_allclose(
        confidence_interval(X, kind, resamples=20_000), [low, high], atol=0.015
    )
    found = estimate_with_interval(X, kind)
    np.testing.assert_allclose(found, [x, low, high], atol=0.05)


def test_probability_of_improvement_matches_rliable() -> None:
    assert float(probability_of_improvement(X, Y)) == pytest.approx(0.6291666667)
    found = estimate_improvement(X, Y)
    np.testing.assert_allclose(found, [0.62917, 0.48333, 0.7625], atol=0.02)


def test_performance_profile_matches_rliable() -> None:
    expected = [26 / 30, 21 / 30, 6 / 30, 2 / 30, 1 / 30]
    np.testing.assert_allclose(performance_profile(X, TAUS), expected)
    low, high = confidence_interval(X, lambda s: performance_profile(s, TAUS))
    np.testing.assert_allclose(low, [0.75, 0.5667, 0.0833, 0, 0], atol=0.035)
    np.testing.assert_allclose(high, [0.9667, 0.8333, 0.3333, 0.1333, 0.1], atol=0.035)


def test_interquartile_mean_by_hand() -> None:
    assert iqm([np.array([9.0, 1, 2, 3])]) == 2.5  # without 1 and 9
    assert iqm([np.array([7.0, 1, 4])]) == 4.0  # a quarter of three is less than one
    assert iqm([np.array([0.0, 100]), np.array([1, 2, 3, 4, 5, 6])]) == 3.5


@given(strata)
def test_mean_and_median_match_plain_loops(tasks: list[np.ndarray]) -> None:
    means = [sum(t.tolist()) / len(t) for t in tasks]
    assert float(mean(tasks)) == pytest.approx(sum(means) / len(means), abs=1e-3)
    every = sorted(value for t in tasks for value in t.tolist())
    half = len(every) // 2
    middle = every[half] if len(every) % 2 else (every[half - 1] + every[half]) / 2
    assert float(pooled_median(tasks)) == pytest.approx(middle)


@given(st.data())
def test_probability_of_improvement_counts_pairs(data: st.DataObject) -> None:
    few = st.lists(st.integers(0, 3).map(float), min_size=1, max_size=4).map(np.array)
    ours = data.draw(st.lists(few, min_size=1, max_size=3))
    theirs = data.draw(st.lists(few, min_size=len(ours), max_size=len(ours)))
    wins = []
    for a, b in zip(ours, theirs, strict=True):
        pairs = list(itertools.product(a, b))
        wins.append(sum((x > y) + 0.5 * (x == y) for x, y in pairs) / len(pairs))
    assert float(probability_of_improvement(ours, theirs)) == pytest.approx(np.mean(wins))
    assert float(
        probability_of_improvement(ours, theirs) + probability_of_improvement(theirs, ours)
    ) == pytest.approx(1)


@given(strata, st.integers(0, 99))
def test_bootstrap_draws_each_task_from_its_runs(tasks: list[np.ndarray], seed: int) -> None:
    drawn = stratified_bootstrap(tasks, 7, seed)
    for own, new in zip(tasks, drawn, strict=True):
        assert new.shape == (7, len(own))
        assert np.isin(new, own).all()
    for kind in (mean, median, iqm, pooled_median):
        together = kind(drawn)
        apart = [kind([new[i] for new in drawn]) for i in range(7)]
        np.testing.assert_allclose(together, apart, rtol=1e-12, atol=1e-6)


@given(strata)
def test_interval_stays_within_runs(tasks: list[np.ndarray]) -> None:
    low, high = confidence_interval(tasks, iqm, resamples=50)
    if max(map(len, tasks)) == 1:
        assert np.isnan([low, high]).all()
    else:
        every = np.concatenate(tasks)
        assert every.min() - 1e-3 <= low <= high <= every.max() + 1e-3


def test_interval_has_nominal_coverage() -> None:
    """A 95 % percentile interval of the mean of 30 normal runs misses it about 6 times in 100."""
    random = np.random.default_rng(1)
    missed = 0
    for _ in range(300):
        low, high = confidence_interval([random.normal(size=30)], mean, resamples=400)
        missed += not low <= 0 <= high
    assert 0.02 < missed / 300 < 0.11


@given(st.integers(2, 6), st.integers(1, 4))
def test_confidence_band_is_interval_at_each_point(runs: int, points: int) -> None:
    """Curves that are constant over points have the same interval everywhere."""
    curve = np.arange(runs, dtype=float)
    band = mean_confidence_band(np.repeat(curve[:, None], points, axis=1), resamples=4000)
    assert band.shape == (2, points)
    assert (band == band[:, :1]).all()
    np.testing.assert_allclose(
        band[:, 0], confidence_interval([curve], mean, resamples=4000), atol=0.2
    )


def test_one_run_has_no_confidence_band() -> None:
    assert np.isnan(mean_confidence_band(np.zeros((1, 3)))).all()


def test_normalised_and_relative_scores_by_hand() -> None:
    assert human_normalised_score(0.0, 0.0, 50.0) == 0
    assert human_normalised_score(100.0, 0.0, 50.0) == 200
    assert human_normalised_score(-10.0, -20.0, 20.0) == 25
    assert relative_score(50.0, 50.0, 0.0) == 0
    assert relative_score(100.0, 50.0, 0.0) == 100
    assert relative_score(-20.0, 20.0, -20.0) == -100


@given(scores, scores, st.floats(1, 1e6))
def test_human_relative_score_is_normalised_minus_100(
    score: float, random: float, lead: float
) -> None:
    human = random + lead
    apart = human_normalised_score(score, random, human) - relative_score(score, human, random)
    assert apart == pytest.approx(100, abs=1e-5 * max(1, abs(score - random) / lead))
