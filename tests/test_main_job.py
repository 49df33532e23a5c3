"""`make train` promises a result, not a time: its budget is agent steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples import unlock_pickup
from lookfurther import Config, replace, train
from lookfurther.training import loop
from lookfurther.training.metrics import Clock
from tests.test_training import assert_equal, newest, timeless

pytest.importorskip("minigrid")


def short(config: Config) -> Config:
    """The main job with everything it does, in a few updates."""
    return replace(
        config,
        run__steps=640,
        run__evaluate_period=320,
        run__evaluate_episodes=2,
        run__log_period=160,
        run__threads=1,
        replay__start=384,
        replay__capacity=2_000,
    )


def test_main_job_has_no_limit_of_time() -> None:
    run = unlock_pickup.settings(Path("demos"), Path("run")).run
    assert (run.steps, run.minutes, run.checkpoint_minutes) == (80_000, 0, 0)


def trained(demos: Path, folder: Path, tick: float, patch: pytest.MonkeyPatch) -> Path:
    """The folder of a run; every reading of its clock is `tick` seconds after the one before."""
    readings: list[None] = []

    def now() -> float:
        readings.append(None)
        return tick * len(readings)

    patch.setattr(loop, "Clock", lambda seconds=0.0: Clock(seconds, now))
    summary = train(short(unlock_pickup.settings(demos, folder)))
    assert (summary.step, summary.stopped) == (640, "done")
    return folder


def test_main_job_outcome_does_not_depend_on_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demos, _ = unlock_pickup.demonstrate(tmp_path / "demos")
    fast = trained(demos, tmp_path / "fast", 1e-6, monkeypatch)
    slow = trained(demos, tmp_path / "slow", 3600.0, monkeypatch)
    assert timeless(fast) == timeless(slow)
    assert_equal(newest(fast), newest(slow))
    published = [[path.name for path in sorted(run.glob("*/step_*"))] for run in (fast, slow)]
    assert published[0] == published[1]


def test_main_job_says_how_long_it_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(unlock_pickup, "TRIAL", 0.0)  # one turn
    unlock_pickup.announce(short(unlock_pickup.settings(Path("demos"), Path("run"))))
    said = capsys.readouterr().out
    assert "training takes 640 steps" in said
    assert "minutes at the" in said
    assert "steps/s measured now" in said
