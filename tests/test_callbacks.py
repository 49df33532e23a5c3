"""Callbacks see every event, may stop the run, and never end it silently."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lookfurther import Callback, Summary, train
from lookfurther.errors import CallbackError, ConfigError, EnvironmentFault
from lookfurther.training.callbacks import RunContext
from lookfurther.training.monitoring.episode_stats import FinishedEpisode
from lookfurther.training.monitoring.metrics import read_metrics
from tests.faulty_envs import Counting
from tests.training_runs import (
    assert_checkpoints_equal,
    newest_checkpoint,
    rows_without_times,
    tiny_config,
)


class EventRecorder(Callback):
    """Records every event with its step."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int, Any]] = []

    def of(self, name: str) -> list[tuple[int, Any]]:
        return [(step, value) for event, step, value in self.events if event == name]

    def on_start(self, run: RunContext) -> None:
        self.events.append(("start", run.step, run.folder))

    def on_episode(self, run: RunContext, episode: FinishedEpisode) -> None:
        self.events.append(("episode", run.step, episode))

    def on_evaluation(self, run: RunContext, score: float) -> None:
        self.events.append(("evaluation", run.step, score))

    def on_log(self, run: RunContext, row: Mapping[str, Any]) -> None:
        self.events.append(("log", run.step, row))

    def on_checkpoint(self, run: RunContext, path: Path) -> None:
        self.events.append(("checkpoint", run.step, path))

    def on_end(self, run: RunContext, summary: Summary) -> None:
        self.events.append(("end", run.step, summary))


def test_events_match_metrics_and_summary(tmp_path: Path) -> None:
    recorder = EventRecorder()
    config = tiny_config(
        tmp_path / "run",
        run__evaluate_period=200,
        run__evaluate_episodes=2,
        run__checkpoint_period=200,
    )
    summary = train(config, callbacks=[recorder])
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert recorder.events[0] == ("start", 0, tmp_path / "run")
    assert recorder.events[-1] == ("end", 400, summary)
    assert [row["step"] for _, row in recorder.of("log")] == [row["step"] for row in rows]
    scores = [score for _, score in recorder.of("evaluation")]
    assert scores == [row["evaluation_mean"] for row in rows if "evaluation_mean" in row]
    assert [step for step, _ in recorder.of("evaluation")] == [200, 400]
    episodes = [episode for _, episode in recorder.of("episode")]
    assert len(episodes) == summary.episodes > 0
    assert max(episode.score for episode in episodes) == summary.return_best
    assert all(episode.score == episode.length for episode in episodes)  # CartPole: 1 per step
    paths = [path for _, path in recorder.of("checkpoint")]
    assert [path.name for path in paths] == [f"step_{n:012d}" for n in (200, 400, 400)]


def test_run_with_callbacks_is_bit_equal(tmp_path: Path) -> None:
    train(tiny_config(tmp_path / "with", run__loggers=("csv",)), callbacks=[EventRecorder()])
    train(tiny_config(tmp_path / "without", run__loggers=()))
    saved = [newest_checkpoint(tmp_path / name) for name in ("with", "without")]
    assert_checkpoints_equal(saved[0], saved[1])
    assert rows_without_times(tmp_path / "with") == rows_without_times(tmp_path / "without")


class StopAtStep(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_log(self, run: RunContext, row: Mapping[str, Any]) -> None:
        if run.step >= self.step:
            run.stop("far enough")
            run.stop("a second reason")


def test_callback_stops_run_that_can_be_resumed(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / "run")
    summary = train(config, callbacks=[StopAtStep(200)])
    assert (summary.step, summary.stop_reason) == (200, "far enough")
    assert newest_checkpoint(tmp_path / "run").metadata["step"] == 200
    recorder = EventRecorder()
    assert train(config, resume=True, callbacks=[recorder]).stop_reason == "done"
    assert recorder.of("start") == [(200, tmp_path / "run")]
    train(tiny_config(tmp_path / "uninterrupted"))
    assert_checkpoints_equal(
        newest_checkpoint(tmp_path / "run"), newest_checkpoint(tmp_path / "uninterrupted")
    )


class FaultyCallback(EventRecorder):
    """Raises an error at one event."""

    def __init__(self, hook: str, error: BaseException) -> None:
        super().__init__()
        setattr(self, hook, lambda *_: (_ for _ in ()).throw(error))


@pytest.mark.parametrize(
    ("hook", "error"),
    [
        ("on_log", ZeroDivisionError("division by zero")),
        ("on_episode", SystemExit(3)),
        ("on_checkpoint", RuntimeError()),
        ("on_end", KeyError("loss")),
    ],
)
def test_failing_callback_is_disabled_with_one_warning(
    tmp_path: Path, hook: str, error: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    faulty, healthy = FaultyCallback(hook, error), EventRecorder()
    summary = train(tiny_config(tmp_path / "run"), callbacks=[faulty, healthy])
    assert (summary.step, summary.stop_reason) == (400, "done")
    warnings = [line for line in capsys.readouterr().out.splitlines() if "warning" in line]
    assert len(warnings) == 1
    prefix = f"warning: the callback FaultyCallback.{hook} failed: {type(error).__name__}"
    assert warnings[0].startswith(prefix)
    assert "disabled from step" in warnings[0]
    assert healthy.of("end") == [(400, summary)]
    assert faulty.of("end") == []


def test_fault_at_start_ends_run_with_one_line(tmp_path: Path) -> None:
    faulty = FaultyCallback("on_start", ValueError("no server"))
    with pytest.raises(
        CallbackError, match=r"FaultyCallback\.on_start failed: .*no server"
    ) as info:
        train(tiny_config(tmp_path / "run"), callbacks=[faulty])
    assert "\n" not in str(info.value)


class BreakingEnv(Counting):
    """Raises an error at the third step of each episode."""

    def step(self, action: int) -> Any:
        if self.t == 2:
            raise RuntimeError("broken")
        return super().step(action)


def test_end_is_called_when_the_run_fails(tmp_path: Path) -> None:
    recorder = EventRecorder()
    config = tiny_config(tmp_path / "run", environment__max_failures=1)
    with pytest.raises(EnvironmentFault):
        train(config, env=BreakingEnv, callbacks=[recorder])
    ((_, summary),) = recorder.of("end")
    assert summary.stop_reason == "error"


@pytest.mark.parametrize("callback", [EventRecorder, print, None])
def test_callback_of_wrong_type_is_refused(tmp_path: Path, callback: Any) -> None:
    with pytest.raises(ConfigError, match=r"instances of lookfurther\.Callback"):
        train(tiny_config(tmp_path / "run"), callbacks=[callback])
    assert not (tmp_path / "run").exists()
