"""Returns and lengths of episodes, counted by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lookfurther.errors import CheckpointError
from lookfurther.training.monitoring.episode_stats import EpisodeStats
from lookfurther.types import Step

Episode = tuple[list[float], str]  # the rewards of its actions, and how it ends
episodes = st.tuples(
    st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=4),
    st.sampled_from(["terminal", "truncated", "dropped"]),
)


def lane_slots(lane: list[Episode]) -> list[dict[str, Any]]:
    """What a lane's environment returns, slot by slot."""
    result: list[dict[str, Any]] = [{"first": True}]
    for rewards, end in lane:
        result += [{"reward": reward} for reward in rewards]
        if end == "dropped":
            result.append({"first": True, "dropped": True})
        else:
            result[-1][end] = True
            result.append({"first": True})
    return result


def steps_of_lanes(lanes: list[list[Episode]]) -> list[Step]:
    """The steps of several lanes, until the shortest ends."""
    steps = []
    for answers in zip(*(lane_slots(lane) for lane in lanes), strict=False):

        def column(name: str, answers: Any = answers) -> np.ndarray:
            return np.array([answer.get(name, 0) for answer in answers])

        ends = ("terminal", "truncated", "first", "dropped")
        marks = {name: column(name).astype(bool) for name in ends}
        steps.append(Step(np.zeros(len(lanes)), column("reward").astype(np.float32), **marks))
    return steps


def finished_episodes(lanes: list[list[Episode]], slots_seen: int) -> list[tuple[float, int, int]]:
    """(return, length, lane) of the episodes that ended within these slots, in order."""
    found = []
    for lane, lane_episodes in enumerate(lanes):
        slot = 0
        for rewards, end in lane_episodes:
            slot += len(rewards)
            if end != "dropped" and slot < slots_seen:
                found.append((slot, lane, sum(rewards), len(rewards)))
            slot += 1
    return [(total, length, lane) for _, lane, total, length in sorted(found)]


def mean_or_nan(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


@settings(max_examples=60)
@given(st.lists(st.lists(episodes, max_size=6), min_size=1, max_size=4))
def test_episode_stats_match_hand_count(lanes: list[list[Episode]]) -> None:
    stats, steps = EpisodeStats(len(lanes), keep=5), steps_of_lanes(lanes)
    for i, step in enumerate(steps):
        if i == len(steps) // 2:  # a resume in the middle changes nothing
            state = stats.state()
            stats = EpisodeStats(len(lanes), keep=5)
            stats.load_state(state)
        stats.add_step(step, range(len(lanes)))
    every = finished_episodes(lanes, len(steps))
    recent = every[-5:]
    assert stats.episode_count == len(every)
    assert stats.dropped_count == sum(int(step.dropped.sum()) for step in steps)
    assert stats.mean_return() == pytest.approx(mean_or_nan([r for r, _, _ in recent]), nan_ok=True)
    assert stats.mean_length() == pytest.approx(mean_or_nan([n for _, n, _ in recent]), nan_ok=True)
    low = mean_or_nan([r for r, _, lane in recent if lane in (0, 2)])
    assert stats.mean_return([0, 2]) == pytest.approx(low, nan_ok=True)
    best = max((r for r, _, _ in every), default=math.nan)
    assert stats.best_return == pytest.approx(best, nan_ok=True)


def test_episode_stats_state_is_copy() -> None:
    (first, second) = steps_of_lanes([[([1.0, 1.0], "terminal")]])[:2]
    stats = EpisodeStats(1)
    stats.add_step(first, range(1))
    stats.add_step(second, range(1))
    state = stats.state()
    before = {name: array.copy() for name, array in state.items()}
    stats.add_step(second, range(1))
    for name, array in state.items():
        np.testing.assert_array_equal(array, before[name])


def test_state_with_other_lanes_is_refused() -> None:
    with pytest.raises(CheckpointError, match="3 lanes, this run 2"):
        EpisodeStats(2).load_state(EpisodeStats(3).state())


def test_reset_lanes_start_from_zero() -> None:
    opening, *actions = steps_of_lanes([[([1.0, 2.0], "terminal")], [([1.0, 2.0], "terminal")]])[:3]
    stats = EpisodeStats(2)
    stats.add_step(opening, range(2))
    stats.add_step(actions[0], range(2))
    stats.reset_lanes(np.array([False, True]))
    stats.add_step(actions[1], range(2))
    assert (stats.mean_return([0]), stats.mean_return([1])) == (3.0, 2.0)


def test_return_in_progress_counts_before_episode_end() -> None:
    stats, none = EpisodeStats(3), np.zeros(3, bool)
    steps = [([0, 0, 0], [True] * 3), ([2, 5, 9], none), ([1, -1, 0], none), ([7, 0, 0], [0, 1, 0])]
    for reward, first in steps:
        reward, first = np.array(reward, np.float32), np.array(first, bool)
        stats.add_step(Step(np.zeros(3), reward, none, none, first, none), range(3))
    assert stats.mean_return_in_progress(np.array([0, 1])) == 5.0  # 10 and, in a new episode, 0
    assert stats.best_return_in_progress == 10.0
    assert math.isnan(stats.mean_return())
