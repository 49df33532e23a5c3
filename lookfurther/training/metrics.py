"""What a run says of itself: metrics.jsonl, TensorBoard scalars, rates and recent returns."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from lookfurther.errors import CheckpointError, LookFurtherError
from lookfurther.types import Step

# First words of a key that name a TensorBoard group: return_mean is shown as return/mean.
TENSORBOARD_GROUPS = ("return", "length", "loss", "gradient", "q", "priority", "replay", "expert")

MAX_METRIC = 1e100  # of a metric


@contextmanager
def atomic_replace(path: Path) -> Iterator[Path]:
    """A temporary path that takes the place of `path`, whole, if the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def to_json_value(value: Any) -> Any:
    """value as JSON can hold it: arrays as lists, and what is not finite as null."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [to_json_value(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def tensorboard_tag(key: str) -> str:
    """Where TensorBoard shows a metric."""
    group, _, rest = key.partition("_")
    if group in TENSORBOARD_GROUPS:
        return f"{group}/{rest or 'total'}"
    return f"rate/{key}" if "_per_" in key else f"run/{key}"


def _parse_row(line: str) -> dict[str, Any] | None:
    """The row a line holds; None where a crash, a full disk or another program spoiled it."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or type(row.get("step")) is not int:
        return None
    return row if 0 <= row["step"] <= MAX_METRIC else None


def get_metric(row: Mapping[str, Any], key: str) -> float | None:
    """A metric of a row; None if it is absent or not a number that can be drawn."""
    value: Any = row.get(key)
    usable = type(value) in (int, float) and abs(value) <= MAX_METRIC
    return value if usable else None


RENAMED_METRICS = {
    "under_way_best": "return_in_progress_best",
    "under_way_low_epsilon": "return_in_progress_low_epsilon",
}


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl; lines cut by a crash or a full disk are left out.

    Each has a step from 0 on. Other values may be anything: `number` reads them.
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


def _print_warning(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)


class MetricsWriter:
    """Rows of metrics to a JSON-lines file and to TensorBoard.

    Metrics never stop a run: without TensorBoard, or on a full disk, there is one warning (F26).
    """

    def __init__(self, path: Path, events: Path, resume_at_step: int = -1) -> None:
        """Rows beyond `resume_at_step` are dropped: by default all, for a run from the start."""
        self._drop_rows_after(path, resume_at_step)
        self._file: IO[bytes] = path.open("ab", buffering=0)
        self._is_line_incomplete = self._has_warned = False
        self._tensorboard = self._open_tensorboard(events, resume_at_step)

    @staticmethod
    def _drop_rows_after(path: Path, last: int) -> None:
        """A run that died after its checkpoint wrote rows that the resumed run writes again."""
        kept = [row for row in read_metrics(path) if row["step"] <= last] if path.exists() else []
        with atomic_replace(path) as temporary:
            temporary.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")

    @staticmethod
    def _open_tensorboard(events: Path, last: int) -> Any:
        try:
            from torch.utils.tensorboard import SummaryWriter

            return SummaryWriter(str(events), purge_step=last + 1, flush_secs=30)
        except (ImportError, OSError) as error:
            _print_warning(
                f"no TensorBoard scalars ({error}); metrics.jsonl is written all the same"
            )
            return None

    def write(self, row: Mapping[str, Any]) -> None:
        """Appends a row, which must hold its "step"; what is not finite becomes null."""
        row = {key: to_json_value(value) for key, value in row.items()}
        line = json.dumps(row, allow_nan=False).encode() + b"\n"
        self._append_line(b"\n" + line if self._is_line_incomplete else line)
        self._write_scalars(row)

    def _append_line(self, line: bytes) -> None:
        try:
            self._is_line_incomplete = self._file.write(line) != len(line)
        except OSError as error:
            self._is_line_incomplete = True
            if not self._has_warned:
                self._has_warned = True
                _print_warning(f"cannot write metrics to {self._file.name}: {error.strerror}")

    def _write_scalars(self, row: dict[str, Any]) -> None:
        if self._tensorboard is None:
            return
        try:
            for key, value in row.items():
                if key != "step" and isinstance(value, int | float):
                    self._tensorboard.add_scalar(tensorboard_tag(key), value, row["step"])
        except OSError as error:
            _print_warning(f"no more TensorBoard scalars: {error.strerror}")
            self._tensorboard = None

    def close(self) -> None:
        self._file.close()
        if self._tensorboard is not None:
            self._tensorboard.close()


class TrainingClock:
    """Time spent and rates that never turn negative, even if the clock steps back (F23)."""

    def __init__(self, seconds: float = 0.0, now: Callable[[], float] = time.monotonic) -> None:
        """`seconds` were spent before a resume."""
        self._now = now
        self._last_reading = now()
        self._elapsed = seconds
        self._rates_computed_at = seconds
        self._last_counts: dict[str, float] = {}
        self._last_rates: dict[str, float] = {}

    def elapsed_seconds(self) -> float:
        """Seconds spent, those before a resume included."""
        reading = self._now()
        self._elapsed += max(0.0, reading - self._last_reading)
        self._last_reading = reading
        return self._elapsed

    def compute_rates(self, **counts: float) -> dict[str, float]:
        """How fast each count grew since the last call, per second; 0 at a count's first call.

        Where no time has passed the last rates stand, and the counts wait for the next call.
        """
        spent = self.elapsed_seconds() - self._rates_computed_at
        if spent > 0:
            self._last_rates = {
                name: max(0.0, count - self._last_counts.get(name, count)) / spent
                for name, count in counts.items()
            }
            self._rates_computed_at = self._elapsed
        if spent > 0 or not self._last_counts:
            self._last_counts = counts
        return {name: self._last_rates.get(name, 0.0) for name in counts}


class EpisodeStats:
    """Returns and lengths of the last finished episodes of m lanes; dropped ones never count."""

    def __init__(self, lanes: int, keep: int = 100) -> None:
        self._returns_in_progress = np.zeros(lanes)  # of the episodes in flight
        self._lengths_in_progress = np.zeros(lanes, np.int64)
        self._recent_episodes: deque[tuple[float, int, int]] = deque(
            maxlen=keep
        )  # return, length, lane
        self.episode_count = 0
        self.dropped_count = 0
        self.best_return = math.nan

    def add_step(self, step: Step, lanes: range) -> None:
        """Takes the environments' answer to one action of each of `lanes`."""
        here = slice(lanes.start, lanes.stop)
        self._returns_in_progress[here] += step.reward
        self._lengths_in_progress[here] += 1
        self._returns_in_progress[here][step.first] = 0.0
        self._lengths_in_progress[here][step.first] = 0
        self.dropped_count += int(step.dropped.sum())
        for lane in lanes.start + np.flatnonzero(step.terminal | step.truncated):
            self._recent_episodes.append(
                (
                    float(self._returns_in_progress[lane]),
                    int(self._lengths_in_progress[lane]),
                    int(lane),
                )
            )
            self.best_return = float(np.fmax(self.best_return, self._returns_in_progress[lane]))
            self.episode_count += 1

    def reset_lanes(self, lanes: np.ndarray) -> None:
        """Forgets what the episodes in flight of `lanes` [m] have gained: they begin anew."""
        self._returns_in_progress[lanes] = 0.0
        self._lengths_in_progress[lanes] = 0

    def mean_return(self, lanes: Sequence[int] | np.ndarray | None = None) -> float:
        """Mean return of the recent episodes, or of those of `lanes`; NaN where there are none."""
        chosen = None if lanes is None else set(np.asarray(lanes).tolist())
        values = [r for r, _, lane in self._recent_episodes if chosen is None or lane in chosen]
        return float(np.mean(values)) if values else math.nan

    def mean_return_in_progress(self, lanes: np.ndarray) -> float:
        """Mean of what the episodes in flight of `lanes` have gained so far.

        Where episodes last long this says what the agent can do before the first of them ends.
        """
        return float(self._returns_in_progress[lanes].mean())

    @property
    def best_return_in_progress(self) -> float:
        """The most that an episode in flight has gained."""
        return float(self._returns_in_progress.max())

    def mean_length(self) -> float:
        """Mean length of the recent episodes in agent steps; NaN where there are none."""
        return (
            float(np.mean([n for _, n, _ in self._recent_episodes]))
            if self._recent_episodes
            else math.nan
        )

    def state(self) -> dict[str, np.ndarray]:
        """Everything, for a checkpoint; episodes in flight go on where environments do."""
        return {
            "return": self._returns_in_progress.copy(),
            "length": self._lengths_in_progress.copy(),
            "recent": np.array(self._recent_episodes, np.float64).reshape(-1, 3),
            "counts": np.array([self.episode_count, self.dropped_count], np.int64),
            "best": np.array([self.best_return]),
        }

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """The inverse of `state`."""
        if state["return"].shape != self._returns_in_progress.shape:
            raise CheckpointError(
                f"the checkpoint has {len(state['return'])} lanes, this run"
                f" {len(self._returns_in_progress)}:"
                " resume with the same actor.lanes"
            )
        self._returns_in_progress = state["return"].astype(np.float64)
        self._lengths_in_progress = state["length"].astype(np.int64)
        self._recent_episodes.clear()
        self._recent_episodes.extend(
            (float(r), int(n), int(lane)) for r, n, lane in state["recent"]
        )
        self.episode_count, self.dropped_count = (int(n) for n in state["counts"])
        self.best_return = float(state["best"][0])


def peak_memory_gib() -> float:
    """The most memory this process has held, in GiB."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**30 if sys.platform == "darwin" else peak / 2**20
