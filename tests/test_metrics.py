"""Metrics survive cut lines, full disks and clocks that go backwards."""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lookfurther.errors import CheckpointError, LookFurtherError
from lookfurther.training.monitoring.episode_stats import EpisodeStats
from lookfurther.training.monitoring.metrics import (
    MetricsWriter,
    TrainingClock,
    peak_memory_gib,
    read_metrics,
    to_json_value,
)
from lookfurther.types import Step


def open_metrics(folder: Path, resume_at_step: int = -1) -> MetricsWriter:
    return MetricsWriter(folder / "metrics.jsonl", resume_at_step)


def write_rows(folder: Path, rows: list[dict[str, Any]]) -> Path:
    metrics = open_metrics(folder)
    for row in rows:
        metrics.write(row)
    metrics.close()
    return folder / "metrics.jsonl"


def parse_strict_json(line: str) -> Any:
    """Parse JSON as the standard defines it, without NaN and Infinity."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    return json.loads(line, parse_constant=refuse)


# The file


def test_written_values_read_back_non_finite_as_null(tmp_path: Path) -> None:
    row = {
        "step": np.int64(3),
        "loss": np.float32(0.5),
        "q_mean": float("nan"),
        "return_best": float("-inf"),
        "game": "Pong ε",
        "epsilons": [0.1, np.float64("inf"), 2],
        "returns": np.array([1.0, np.nan]),
    }
    path = write_rows(tmp_path, [row])
    expected = {
        "step": 3,
        "loss": 0.5,
        "q_mean": None,
        "return_best": None,
        "game": "Pong ε",
        "epsilons": [0.1, None, 2],
        "returns": [1.0, None],
    }
    assert parse_strict_json(path.read_text()) == expected
    assert read_metrics(path) == [expected]


@given(st.floats() | st.integers() | st.text() | st.lists(st.floats()))
def test_to_json_value_is_strict_json(value: Any) -> None:
    assert parse_strict_json(json.dumps(to_json_value(value), allow_nan=False)) == to_json_value(
        value
    )


def test_row_is_readable_before_close(tmp_path: Path) -> None:
    metrics = open_metrics(tmp_path)
    metrics.write({"step": 1})
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1}]
    metrics.close()


@settings(max_examples=60)
@given(data=st.data())
def test_resume_keeps_complete_rows_up_to_step(data: st.DataObject) -> None:
    steps = data.draw(st.lists(st.integers(0, 40), max_size=8).map(sorted))
    last = data.draw(st.integers(-1, 41))
    rows = [{"step": step, "loss": step / 7} for step in steps]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    cut = data.draw(st.integers(0, len(text)))
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "metrics.jsonl"
        path.write_text(text[:cut])
        # A row without only its line end is still complete.
        whole = [row for row, line in zip(rows, _line_ends(rows), strict=True) if line <= cut]
        assert read_metrics(path) == whole
        metrics = open_metrics(Path(name), last)
        metrics.write({"step": 99})
        metrics.close()
        assert read_metrics(path) == [row for row in whole if row["step"] <= last] + [{"step": 99}]
        assert os.listdir(name) == ["metrics.jsonl"]


def _line_ends(rows: list[dict[str, Any]]) -> list[int]:
    """The number of characters up to the end of each row."""
    sizes = [len(json.dumps(row)) + 1 for row in rows]
    return [sum(sizes[: i + 1]) - 1 for i in range(len(rows))]


def test_new_run_starts_without_rows(tmp_path: Path) -> None:
    path = write_rows(tmp_path, [{"step": 0}, {"step": 1}])
    open_metrics(tmp_path).close()
    assert path.read_text() == ""


def test_crash_while_dropping_rows_keeps_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_rows(tmp_path, [{"step": 1}, {"step": 2}])

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        open_metrics(tmp_path, resume_at_step=1)
    assert read_metrics(path) == [{"step": 1}, {"step": 2}]
    assert os.listdir(tmp_path) == ["metrics.jsonl"]


def test_missing_metrics_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(LookFurtherError, match=r"nowhere\.jsonl: No such file"):
        read_metrics(tmp_path / "nowhere.jsonl")


class FullDisk:
    """A file on a disk that fills up in the middle of a line."""

    name = "metrics.jsonl"

    def __init__(self, file: Any) -> None:
        self.file = file

    def write(self, line: bytes) -> int:
        self.file.write(line[: len(line) // 2])
        raise OSError(28, "No space left on device")


def test_full_disk_loses_rows_with_one_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = open_metrics(tmp_path)
    metrics.write({"step": 1})
    file = metrics._file
    metrics._file = FullDisk(file)  # type: ignore[assignment]
    metrics.write({"step": 2})
    metrics.write({"step": 3})
    metrics._file = file
    metrics.write({"step": 4})
    metrics.write({"step": 5})
    metrics.close()
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1, 4, 5]
    assert capsys.readouterr().err.splitlines() == [
        "warning: cannot write metrics to metrics.jsonl: No space left on device"
    ]


# The clock


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0, 1e6))
def test_clock_sums_forward_steps_only(readings: list[float], before: float) -> None:
    ticks = iter(readings)
    clock = TrainingClock(before, now=lambda: next(ticks))
    forward = before
    for earlier, later in pairwise(readings):
        forward += later - earlier if later > earlier else 0.0
        assert clock.elapsed_seconds() == forward


@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.integers(0, 1000)), min_size=1))
def test_rates_are_non_negative_and_finite(ticks: list[tuple[float, int]]) -> None:
    now, count = 0.0, 0
    clock = TrainingClock(now=lambda: now)
    for later, more in ticks:
        now, count = later, count + more
        assert 0 <= clock.compute_rates(steps=count)["steps"] < math.inf


def test_rates_match_hand_computation() -> None:
    now = 100.0
    clock = TrainingClock(now=lambda: now)
    assert clock.compute_rates(steps=5000, updates=0) == {
        "steps": 0,
        "updates": 0,
    }  # after a resume
    now = 102.0
    assert clock.compute_rates(steps=5010, updates=3) == {"steps": 5, "updates": 1.5}
    now = 90.0  # backwards: no time has passed, the 6 steps wait
    assert clock.compute_rates(steps=5016, updates=3) == {"steps": 5, "updates": 1.5}
    now = 94.0
    assert clock.compute_rates(steps=5018, updates=3) == {"steps": 2, "updates": 0}


# Returns

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


@pytest.mark.skipif(sys.platform != "linux", reason="it reads Linux's /proc")
def test_peak_memory_is_in_gib() -> None:
    status = Path("/proc/self/status").read_text().splitlines()
    (peak,) = (int(line.split()[1]) / 2**20 for line in status if line.startswith("VmHWM"))
    # The parent process may have had a higher peak, but not by such a factor.
    assert 0.99 * peak <= peak_memory_gib() < 64 * peak
