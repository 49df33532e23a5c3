"""The metrics of a run: metrics.jsonl, elapsed time and rates."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from lookfurther.errors import LookFurtherError
from lookfurther.system.files import write_text

MAX_METRIC = 1e100  # larger values are not plotted


def to_json_value(value: Any) -> Any:
    """The value as JSON: arrays become lists, and numbers that are not finite become null."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [to_json_value(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _parse_row(line: str) -> dict[str, Any] | None:
    """The row in a line; None if a crash, a full disk or another program damaged it."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or type(row.get("step")) is not int:
        return None
    return row if 0 <= row["step"] <= MAX_METRIC else None


def get_metric(row: Mapping[str, Any], key: str) -> float | None:
    """A metric of a row; None if it is absent or not a number that can be plotted."""
    value: Any = row.get(key)
    is_usable = type(value) in (int, float) and abs(value) <= MAX_METRIC
    return value if is_usable else None


RENAMED_METRICS = {
    "under_way_best": "return_in_progress_best",
    "under_way_low_epsilon": "return_in_progress_low_epsilon",
}


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl, without lines that a crash or a full disk damaged.

    Each row has a valid step. Other values may be anything: use `get_metric`.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise LookFurtherError(f"cannot read metrics {path}: {error.strerror}") from None
    rows = [row for line in text.split("\n") if (row := _parse_row(line)) is not None]
    for old, new in RENAMED_METRICS.items():
        if any(old in row for row in rows):
            raise LookFurtherError(f"cannot read metrics {path}: {old} is now {new}")
    return rows


class MetricsWriter:
    """Writes rows of metrics to a JSON-lines file.

    Metrics never stop a run: on a full disk, there is one warning.
    """

    def __init__(self, path: Path, resume_at_step: int = -1) -> None:
        """Rows after `resume_at_step` are dropped: by default all, for a new run."""
        self._drop_rows_after(path, resume_at_step)
        self._file: IO[bytes] = path.open("ab", buffering=0)
        self._is_line_incomplete = self._has_warned = False

    @staticmethod
    def _drop_rows_after(path: Path, last: int) -> None:
        """Drop rows that were written after the checkpoint: the resumed run writes them again."""
        kept = [row for row in read_metrics(path) if row["step"] <= last] if path.exists() else []
        write_text(path, "".join(json.dumps(row) + "\n" for row in kept))

    def write(self, row: Mapping[str, Any]) -> None:
        """Append a row, which must have a "step"; numbers that are not finite become null."""
        row = {key: to_json_value(value) for key, value in row.items()}
        line = json.dumps(row, allow_nan=False).encode() + b"\n"
        self._append_line(b"\n" + line if self._is_line_incomplete else line)

    def _append_line(self, line: bytes) -> None:
        try:
            self._is_line_incomplete = self._file.write(line) != len(line)
        except OSError as error:
            self._is_line_incomplete = True
            if not self._has_warned:
                self._has_warned = True
                text = f"cannot write metrics to {self._file.name}: {error.strerror}"
                print(f"warning: {text}", file=sys.stderr, flush=True)

    def close(self) -> None:
        self._file.close()


class TrainingClock:
    """Elapsed time and rates that are never negative, even if the clock goes backwards."""

    def __init__(self, seconds: float = 0.0, now: Callable[[], float] = time.monotonic) -> None:
        """`seconds` were used before a resume."""
        self._now = now
        self._last_reading = now()
        self._elapsed = seconds
        self._rates_computed_at = seconds
        self._last_counts: dict[str, float] = {}
        self._last_rates: dict[str, float] = {}

    def elapsed_seconds(self) -> float:
        """Seconds used, including those before a resume."""
        reading = self._now()
        self._elapsed += max(0.0, reading - self._last_reading)
        self._last_reading = reading
        return self._elapsed

    def compute_rates(self, **counts: float) -> dict[str, float]:
        """The growth of each count per second since the last call; 0 at its first call.

        If no time has passed, the last rates are returned and the counts wait for the next call.
        """
        passed = self.elapsed_seconds() - self._rates_computed_at
        if passed > 0:
            self._last_rates = {
                name: max(0.0, count - self._last_counts.get(name, count)) / passed
                for name, count in counts.items()
            }
            self._rates_computed_at = self._elapsed
        if passed > 0 or not self._last_counts:
            self._last_counts = counts
        return {name: self._last_rates.get(name, 0.0) for name in counts}


def peak_memory_gib() -> float:
    """The peak memory of this process, in GiB."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**30 if sys.platform == "darwin" else peak / 2**20
