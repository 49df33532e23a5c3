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
GROUPS = ("return", "length", "loss", "gradient", "q", "priority", "replay", "expert")

LARGEST = 1e100  # of a metric


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
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


def plain(value: Any) -> Any:
    """value as JSON can hold it: arrays as lists, and what is not finite as null."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def tag(key: str) -> str:
    """Where TensorBoard shows a metric."""
    group, _, rest = key.partition("_")
    if group in GROUPS:
        return f"{group}/{rest or 'total'}"
    return f"rate/{key}" if "_per_" in key else f"run/{key}"


def _parse(line: str) -> dict[str, Any] | None:
    """The row a line holds; None where a crash, a full disk or another program spoiled it."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or type(row.get("step")) is not int:
        return None
    return row if 0 <= row["step"] <= LARGEST else None


def number(row: Mapping[str, Any], key: str) -> float | None:
    """A metric of a row; None if it is absent or not a number that can be drawn."""
    value: Any = row.get(key)
    usable = type(value) in (int, float) and abs(value) <= LARGEST
    return value if usable else None


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl; lines cut by a crash or a full disk are left out.

    Each has a step from 0 on. Other values may be anything: `number` reads them.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise LookFurtherError(f"cannot read metrics {path}: {error.strerror}") from None
    return [row for line in text.split("\n") if (row := _parse(line)) is not None]


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)


class Metrics:
    """Rows of metrics to a JSON-lines file and to TensorBoard.

    Metrics never stop a run: without TensorBoard, or on a full disk, there is one warning (F26).
    """

    def __init__(self, path: Path, events: Path, resume_at_step: int = -1) -> None:
        """Rows beyond `resume_at_step` are dropped: by default all, for a run from the start."""
        self._keep(path, resume_at_step)
        self._file: IO[bytes] = path.open("ab", buffering=0)
        self._torn = self._warned = False
        self._board = self._open_board(events, resume_at_step)

    @staticmethod
    def _keep(path: Path, last: int) -> None:
        """A run that died after its checkpoint wrote rows that the resumed run writes again."""
        kept = [row for row in read(path) if row["step"] <= last] if path.exists() else []
        with replacing(path) as temporary:
            temporary.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")

    @staticmethod
    def _open_board(events: Path, last: int) -> Any:
        try:
            from torch.utils.tensorboard import SummaryWriter

            return SummaryWriter(str(events), purge_step=last + 1, flush_secs=30)
        except (ImportError, OSError) as error:
            _warn(f"no TensorBoard scalars ({error}); metrics.jsonl is written all the same")
            return None

    def write(self, row: Mapping[str, Any]) -> None:
        """Appends a row, which must hold its "step"; what is not finite becomes null."""
        row = {key: plain(value) for key, value in row.items()}
        line = json.dumps(row, allow_nan=False).encode() + b"\n"
        self._append(b"\n" + line if self._torn else line)
        self._scalars(row)

    def _append(self, line: bytes) -> None:
        try:
            self._torn = self._file.write(line) != len(line)
        except OSError as error:
            self._torn = True
            if not self._warned:
                self._warned = True
                _warn(f"cannot write metrics to {self._file.name}: {error.strerror}")

    def _scalars(self, row: dict[str, Any]) -> None:
        if self._board is None:
            return
        try:
            for key, value in row.items():
                if key != "step" and isinstance(value, int | float):
                    self._board.add_scalar(tag(key), value, row["step"])
        except OSError as error:
            _warn(f"no more TensorBoard scalars: {error.strerror}")
            self._board = None

    def close(self) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()


class Clock:
    """Time spent and rates that never turn negative, even if the clock steps back (F23)."""

    def __init__(self, seconds: float = 0.0, now: Callable[[], float] = time.monotonic) -> None:
        """`seconds` were spent before a resume."""
        self._now = now
        self._last = now()
        self._seconds = seconds
        self._mark = seconds
        self._counts: dict[str, float] = {}
        self._rates: dict[str, float] = {}

    def seconds(self) -> float:
        """Seconds spent, those before a resume included."""
        reading = self._now()
        self._seconds += max(0.0, reading - self._last)
        self._last = reading
        return self._seconds

    def rates(self, **counts: float) -> dict[str, float]:
        """How fast each count grew since the last call, per second; 0 at a count's first call.

        Where no time has passed the last rates stand, and the counts wait for the next call.
        """
        spent = self.seconds() - self._mark
        if spent > 0:
            self._rates = {
                name: max(0.0, count - self._counts.get(name, count)) / spent
                for name, count in counts.items()
            }
            self._mark = self._seconds
        if spent > 0 or not self._counts:
            self._counts = counts
        return {name: self._rates.get(name, 0.0) for name in counts}


class Returns:
    """Returns and lengths of the last finished episodes of m lanes; dropped ones never count."""

    def __init__(self, lanes: int, keep: int = 100) -> None:
        self._return = np.zeros(lanes)  # of the episodes in flight
        self._length = np.zeros(lanes, np.int64)
        self._recent: deque[tuple[float, int, int]] = deque(maxlen=keep)  # return, length, lane
        self.episodes = 0
        self.dropped = 0
        self.best = math.nan

    def add(self, step: Step, lanes: range) -> None:
        """Takes the environments' answer to one action of each of `lanes`."""
        here = slice(lanes.start, lanes.stop)
        self._return[here] += step.reward
        self._length[here] += 1
        self._return[here][step.first] = 0.0
        self._length[here][step.first] = 0
        self.dropped += int(step.dropped.sum())
        for lane in lanes.start + np.flatnonzero(step.terminal | step.truncated):
            self._recent.append((float(self._return[lane]), int(self._length[lane]), int(lane)))
            self.best = float(np.fmax(self.best, self._return[lane]))
            self.episodes += 1

    def cut(self, lanes: np.ndarray) -> None:
        """Forgets what the episodes in flight of `lanes` [m] have gained: they begin anew."""
        self._return[lanes] = 0.0
        self._length[lanes] = 0

    def mean(self, lanes: Sequence[int] | np.ndarray | None = None) -> float:
        """Mean return of the recent episodes, or of those of `lanes`; NaN where there are none."""
        chosen = None if lanes is None else set(np.asarray(lanes).tolist())
        values = [r for r, _, lane in self._recent if chosen is None or lane in chosen]
        return float(np.mean(values)) if values else math.nan

    def under_way(self, lanes: np.ndarray) -> float:
        """Mean of what the episodes in flight of `lanes` have gained so far.

        Where episodes last long this says what the agent can do before the first of them ends.
        """
        return float(self._return[lanes].mean())

    @property
    def under_way_best(self) -> float:
        """The most that an episode in flight has gained."""
        return float(self._return.max())

    def length(self) -> float:
        """Mean length of the recent episodes in agent steps; NaN where there are none."""
        return float(np.mean([n for _, n, _ in self._recent])) if self._recent else math.nan

    def state(self) -> dict[str, np.ndarray]:
        """Everything, for a checkpoint; episodes in flight go on where environments do."""
        return {
            "return": self._return.copy(),
            "length": self._length.copy(),
            "recent": np.array(self._recent, np.float64).reshape(-1, 3),
            "counts": np.array([self.episodes, self.dropped], np.int64),
            "best": np.array([self.best]),
        }

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """The inverse of `state`."""
        if state["return"].shape != self._return.shape:
            raise CheckpointError(
                f"the checkpoint has {len(state['return'])} lanes, this run {len(self._return)}:"
                " resume with the same actor.lanes"
            )
        self._return = state["return"].astype(np.float64)
        self._length = state["length"].astype(np.int64)
        self._recent.clear()
        self._recent.extend((float(r), int(n), int(lane)) for r, n, lane in state["recent"])
        self.episodes, self.dropped = (int(n) for n in state["counts"])
        self.best = float(state["best"][0])


def memory_gib() -> float:
    """The most memory this process has held, in GiB."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**30 if sys.platform == "darwin" else peak / 2**20
