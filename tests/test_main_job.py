"""`make train` has a budget of agent steps, so its result does not depend on time."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples import unlock_pickup
from lookfurther import Config, replace, train
from lookfurther.training import run
from lookfurther.training.monitoring.metrics import TrainingClock
from tests.training_runs import assert_checkpoints_equal, newest_checkpoint, rows_without_times

pytest.importorskip("minigrid")


def shorten_config(config: Config) -> Config:
    """The main job with all its parts, in a few updates."""
    return replace(
        config,
        run__steps=640,
        run__evaluate_period=320,
        run__evaluate_episodes=2,
        run__log_period=160,
        run__threads=1,
        replay__learning_starts=384,
        replay__capacity=2_000,
    )


def test_main_job_has_no_time_limit() -> None:
    run = unlock_pickup.make_config(Path("demos"), Path("run")).run
    assert (run.steps, run.minutes, run.checkpoint_minutes) == (80_000, 0, 0)


def train_example(demos: Path, folder: Path, tick: float, patch: pytest.MonkeyPatch) -> Path:
    """The folder of a run whose clock gains `tick` seconds at every reading."""
    readings: list[None] = []

    def now() -> float:
        readings.append(None)
        return tick * len(readings)

    patch.setattr(run, "TrainingClock", lambda seconds=0.0: TrainingClock(seconds, now))
    summary = train(shorten_config(unlock_pickup.make_config(demos, folder)))
    assert (summary.step, summary.stop_reason) == (640, "done")
    return folder


def test_main_job_result_does_not_depend_on_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demos, _ = unlock_pickup.collect_demos(tmp_path / "demos")
    fast = train_example(demos, tmp_path / "fast", 1e-6, monkeypatch)
    slow = train_example(demos, tmp_path / "slow", 3600.0, monkeypatch)
    assert rows_without_times(fast) == rows_without_times(slow)
    assert_checkpoints_equal(newest_checkpoint(fast), newest_checkpoint(slow))
    published = [[path.name for path in sorted(run.glob("*/step_*"))] for run in (fast, slow)]
    assert published[0] == published[1]


def test_main_job_prints_estimated_duration(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(unlock_pickup, "TRIAL_SECONDS", 0.0)  # one iteration
    unlock_pickup.print_time_estimate(
        shorten_config(unlock_pickup.make_config(Path("demos"), Path("run")))
    )
    output = capsys.readouterr().out
    assert "training takes 640 steps" in output
    assert "minutes at the" in output
    assert "steps/s measured now" in output
