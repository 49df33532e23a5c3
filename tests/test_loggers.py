"""Loggers write the rows of metrics, also after a resume; trackers are local stand-ins."""

from __future__ import annotations

import csv
import json
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lookfurther import preset, train
from lookfurther.errors import CallbackError, ConfigError
from lookfurther.training.callbacks import Callback, RunContext
from lookfurther.training.monitoring.loggers import (
    CsvLogger,
    TensorBoardLogger,
    TrackerLogger,
    TrackioLogger,
    WandbLogger,
    grouped_name,
)
from lookfurther.training.monitoring.metrics import read_metrics
from lookfurther.training.monitoring.summary import Summary
from tests.training_runs import tiny_config

ROWS = [
    {"step": 10, "loss": 0.5, "game": "Pong", "list": [1.0]},
    {"step": 20, "loss": 0.25, "return_mean": math.nan},
    {"step": 30, "loss": 9.0, "evaluation_mean": 2.5},
]


def make_context(folder: Path, step: int = 0) -> RunContext:
    network: Any = None
    return RunContext(preset("no-demos", env="CartPole-v1"), folder, network, step)


def log_rows(
    logger: Callback, folder: Path, rows: list[dict[str, Any]], step: int = 0, reason: str = "done"
) -> None:
    context = make_context(folder, step)
    logger.on_start(context)
    for row in rows:
        logger.on_log(context, row)
    logger.on_end(context, Summary(folder, 30, 1, 1, 0.0, 0.0, 0.0, 0.0, reason))


@pytest.mark.parametrize(
    ("key", "where"),
    [
        ("return_mean", "return/mean"),
        ("loss", "loss/total"),
        ("loss_td", "loss/td"),
        ("expert_share_of_gradient", "expert/share_of_gradient"),
        ("steps_per_second", "rate/steps_per_second"),
        ("samples_per_insert", "rate/samples_per_insert"),
        ("episodes", "run/episodes"),
        ("dropped_episodes", "run/dropped_episodes"),
    ],
)
def test_grouped_name_by_metric(key: str, where: str) -> None:
    assert grouped_name(key) == where


# TensorBoard


def read_scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "events"))
    events.Reload()
    return {
        name: [(event.step, event.value) for event in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }


def test_tensorboard_drops_rows_after_resume(tmp_path: Path) -> None:
    log_rows(TensorBoardLogger(), tmp_path, ROWS)
    (events,) = (tmp_path / "events").iterdir()  # named by second and a count: may sort last
    events.rename(events.with_name("events.out.tfevents.0"))
    log_rows(TensorBoardLogger(), tmp_path, [{"step": 30, "loss": 0.125, "episodes": 4}], step=20)
    scalars = read_scalars(tmp_path)
    assert scalars["loss/total"] == [(10, 0.5), (20, 0.25), (30, 0.125)]
    assert scalars["run/episodes"] == [(30, 4.0)]
    assert "return/mean" not in scalars


# CSV


def read_table(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_csv_gets_new_columns_and_empty_cells(tmp_path: Path) -> None:
    log_rows(CsvLogger(), tmp_path, ROWS)
    assert read_table(tmp_path) == [
        {"step": "10", "loss": "0.5", "evaluation_mean": ""},
        {"step": "20", "loss": "0.25", "evaluation_mean": ""},
        {"step": "30", "loss": "9.0", "evaluation_mean": "2.5"},
    ]


def test_csv_of_resumed_run_equals_uninterrupted_one(tmp_path: Path) -> None:
    log_rows(CsvLogger(), tmp_path, ROWS)
    whole = read_table(tmp_path)
    log_rows(CsvLogger(), tmp_path, ROWS[2:], step=20)
    assert read_table(tmp_path) == whole
    log_rows(CsvLogger(), tmp_path, ROWS[:1])  # a new run
    assert [row["step"] for row in read_table(tmp_path)] == ["10"]


def test_csv_of_a_run_equals_its_metrics(tmp_path: Path) -> None:
    train(tiny_config(tmp_path / "run", run__loggers=("csv",)))
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    table = read_table(tmp_path / "run")
    assert len(table) == len(rows) > 0
    for found, row in zip(table, rows, strict=True):
        given = {key: value for key, value in row.items() if value is not None}
        assert {key: float(value) for key, value in found.items() if value} == given
    assert not (tmp_path / "run" / "events").exists()


# Trackers


class TrackerModule(ModuleType):
    """A stand-in for wandb and trackio that records its calls."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.calls: list[tuple[str, Any]] = []

    def init(self, **options: Any) -> None:
        json.dumps(options["config"])  # trackers send it as JSON
        self.calls.append(("init", options))

    def log(self, values: dict[str, float], step: int) -> None:
        self.calls.append(("log", (step, values)))

    def finish(self, **options: Any) -> None:
        self.calls.append(("finish", options))


@pytest.fixture(params=["wandb", "trackio"])
def tracker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> TrackerModule:
    module = TrackerModule(request.param)
    monkeypatch.setitem(sys.modules, request.param, module)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return module


def test_tracker_gets_settings_rows_and_end(tmp_path: Path, tracker: TrackerModule) -> None:
    config = tiny_config(tmp_path / "run", run__loggers=(tracker.__name__,))
    train(config)
    (_, options), *logged, (end, _) = tracker.calls
    assert (options["project"], options["name"]) == ("lookfurther", "run")
    assert options["config"]["learner"]["gamma"] == config.learner.gamma
    assert end == "finish"
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [step for _, (step, _) in logged] == [row["step"] for row in rows]
    assert logged[-1][1][1]["loss/td"] == rows[-1]["loss_td"]
    assert all(math.isfinite(value) for _, (_, row) in logged for value in row.values())


LOGGER_BY_MODULE: dict[str, type[TrackerLogger]] = {"wandb": WandbLogger, "trackio": TrackioLogger}


def test_tracker_options_override_defaults(tmp_path: Path, tracker: TrackerModule) -> None:
    logger = LOGGER_BY_MODULE[tracker.__name__]("pong", name="mine", group="a")
    log_rows(logger, tmp_path, ROWS)
    options = tracker.calls[0][1]
    assert (options["project"], options["name"], options["group"]) == ("pong", "mine", "a")


@pytest.mark.parametrize("tracker", ["wandb"], indirect=True)
def test_wandb_keeps_id_when_resumed_only(tmp_path: Path, tracker: TrackerModule) -> None:
    for step in (0, 20, 0):
        log_rows(WandbLogger(), tmp_path, ROWS, step)
    first, resumed, new = (options["id"] for name, options in tracker.calls if name == "init")
    assert first == resumed != new


@pytest.mark.parametrize("tracker", ["wandb"], indirect=True)
def test_wandb_marks_failed_run(tmp_path: Path, tracker: TrackerModule) -> None:
    for reason in ("done", "error"):
        log_rows(WandbLogger(), tmp_path, ROWS, reason=reason)
    ends = [options for name, options in tracker.calls if name == "finish"]
    assert ends == [{"exit_code": 0}, {"exit_code": 1}]


@pytest.mark.parametrize("module", ["wandb", "trackio"])
def test_missing_tracker_names_the_extra(
    tmp_path: Path, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(CallbackError, match=rf"pip install 'lookfurther\[{module}\]'"):
        train(tiny_config(tmp_path / "run", run__loggers=(module,)))


def test_unknown_logger_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run\.loggers must be one of tensorboard, csv"):
        train(tiny_config(tmp_path / "run", run__loggers=("mlflow",)))
