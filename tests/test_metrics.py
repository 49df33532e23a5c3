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

from lookfurther.errors import LookFurtherError
from lookfurther.training.monitoring.metrics import (
    MetricsWriter,
    TrainingClock,
    peak_memory_gib,
    read_metrics,
    to_json_value,
)


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


def test_renamed_metric_error_gives_new_name(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0}\n{"step": 1, "under_way_best": 3.0}\n')
    with pytest.raises(LookFurtherError, match=r"under_way_best is now return_in_progress_best$"):
        read_metrics(path)


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


@pytest.mark.skipif(sys.platform != "linux", reason="it reads Linux's /proc")
def test_peak_memory_is_in_gib() -> None:
    status = Path("/proc/self/status").read_text().splitlines()
    (peak,) = (int(line.split()[1]) / 2**20 for line in status if line.startswith("VmHWM"))
    # The parent process may have had a higher peak, but not by such a factor.
    assert 0.99 * peak <= peak_memory_gib() < 64 * peak
