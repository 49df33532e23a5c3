"""Loggers: callbacks that send the rows of metrics to TensorBoard, a CSV file or a tracker."""

from __future__ import annotations

import csv
import math
import os
import sys
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from lookfurther.errors import CallbackError
from lookfurther.system.files import atomic_replace, write_text
from lookfurther.training.callbacks import Callback, RunContext
from lookfurther.training.monitoring.summary import Summary

# First words of metric names that are groups: return_mean becomes return/mean.
METRIC_GROUPS = ("return", "length", "loss", "gradient", "q", "priority", "replay", "expert")


def grouped_name(key: str) -> str:
    """The name of a metric in TensorBoard and in trackers."""
    group, _, rest = key.partition("_")
    if group in METRIC_GROUPS:
        return f"{group}/{rest or 'total'}"
    return f"rate/{key}" if "_per_" in key else f"run/{key}"


def select_scalars(row: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a row."""
    numbers = {key: value for key, value in row.items() if isinstance(value, int | float)}
    return {key: value for key, value in numbers.items() if math.isfinite(value)}


class TensorBoardLogger(Callback):
    """Writes scalars to the folder `events/`. Without TensorBoard there is one warning."""

    def __init__(self) -> None:
        self._writer: Any = None

    def on_start(self, run: RunContext) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter

            events = str(run.folder / "events")
            # A resumed run replaces the scalars after its step, a new one all.
            purge_step = run.step + 1 if run.step else 0
            self._writer = SummaryWriter(events, purge_step=purge_step, flush_secs=30)
        except (ImportError, OSError) as error:
            text = f"no TensorBoard scalars ({error}); metrics.jsonl is still written"
            print(f"warning: {text}", file=sys.stderr, flush=True)

    def on_log(self, run: RunContext, row: Mapping[str, Any]) -> None:
        if self._writer is None:
            return
        for key, value in select_scalars(row).items():
            if key != "step":
                self._writer.add_scalar(grouped_name(key), value, row["step"])

    def on_end(self, run: RunContext, summary: Summary) -> None:
        if self._writer is not None:
            self._writer.close()


class CsvLogger(Callback):
    """Writes `metrics.csv`: a column for each metric, empty where a value does not exist.

    A new metric, such as the first loss, adds a column and rewrites the file.
    """

    def __init__(self) -> None:
        self._path = Path()
        self._columns: list[str] = []

    def on_start(self, run: RunContext) -> None:
        """Keep the rows up to the step of a resumed run."""
        self._path = run.folder / "metrics.csv"
        rows = self._read_rows() if run.step else []
        self._columns = list(rows[0]) if rows else ["step"]
        self._rewrite([row for row in rows if int(row["step"]) <= run.step])

    def on_log(self, run: RunContext, row: Mapping[str, Any]) -> None:
        values = select_scalars(row)
        new_columns = [key for key in values if key not in self._columns]
        if new_columns:
            rows = self._read_rows()
            self._columns += new_columns
            self._rewrite(rows)
        with self._path.open("a", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, self._columns).writerow(values)

    def _read_rows(self) -> list[dict[str, Any]]:
        with self._path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def _rewrite(self, rows: list[dict[str, Any]]) -> None:
        with (
            atomic_replace(self._path) as temporary,
            temporary.open("w", encoding="utf-8", newline="") as file,
        ):
            writer = csv.DictWriter(file, self._columns)
            writer.writeheader()
            writer.writerows(rows)


class TrackerLogger(Callback, ABC):
    """Sends scalars to a tracker with the interface of Weights & Biases: init, log and finish."""

    module = ""
    """the tracker's package, which is imported when the run starts"""

    def __init__(self, project: str = "", **init_options: Any) -> None:
        """`init_options` are passed to the tracker's `init`, such as `entity` or `tags`."""
        self._project, self._init_options = project, init_options
        self._tracker: Any = None

    def on_start(self, run: RunContext) -> None:
        try:
            self._tracker = import_module(self.module)
        except ImportError as error:
            raise CallbackError(
                f"the logger {self.module} needs its package ({error}):"
                f" pip install 'lookfurther[{self.module}]'"
            ) from None
        self._tracker.init(**self._identify_run(run) | self._init_options)

    @abstractmethod
    def _identify_run(self, run: RunContext) -> dict[str, Any]:
        """The arguments of `init`; a resumed run continues its own curve."""

    def on_log(self, run: RunContext, row: Mapping[str, Any]) -> None:
        values = select_scalars(row)
        scalars = {grouped_name(key): value for key, value in values.items() if key != "step"}
        self._tracker.log(scalars, step=row["step"])

    def on_end(self, run: RunContext, summary: Summary) -> None:
        self._tracker.finish()


class WandbLogger(TrackerLogger):
    """Weights & Biases. The project is `project`, else $WANDB_PROJECT, else lookfurther."""

    module = "wandb"

    def _identify_run(self, run: RunContext) -> dict[str, Any]:
        id_file = run.folder / "wandb_id.txt"
        if not (run.step and id_file.exists()):
            write_text(id_file, uuid.uuid4().hex)
        return {
            "project": self._project or os.environ.get("WANDB_PROJECT") or "lookfurther",
            "name": run.folder.name,
            "config": asdict(run.config),
            "dir": str(run.folder),
            "id": id_file.read_text(encoding="utf-8"),
            "resume": "allow",
        }

    def on_end(self, run: RunContext, summary: Summary) -> None:
        self._tracker.finish(exit_code=int(summary.stop_reason == "error"))


class TrackioLogger(TrackerLogger):
    """Trackio, which stores runs on this machine. The default project is lookfurther."""

    module = "trackio"

    def _identify_run(self, run: RunContext) -> dict[str, Any]:
        return {
            "project": self._project or "lookfurther",
            "name": run.folder.name,
            "config": asdict(run.config),
            "resume": "allow" if run.step else "never",
        }


# Loggers by their name in the setting `run.loggers`.
LOGGERS: dict[str, Callable[[], Callback]] = {
    "tensorboard": TensorBoardLogger,
    "csv": CsvLogger,
    "wandb": WandbLogger,
    "trackio": TrackioLogger,
}
