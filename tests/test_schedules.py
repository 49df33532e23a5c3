"""Schedules and pre-training: their values, their effect on a run, and resuming in the middle."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from lookfurther import Config, train
from lookfurther.replay.shared import AnnealedMixture
from lookfurther.schedules import linear_schedule
from lookfurther.training.loop import TrainingLoop, updates_due
from tests.test_updates import actor_pool, make_config, make_loop
from tests.training_runs import (
    assert_checkpoints_equal,
    newest_checkpoint,
    rows_without_times,
    tiny_config,
)

ALL_SCHEDULES: dict[str, Any] = {
    "actor__epsilon_schedule": "linear",
    "actor__epsilon_end": 0.1,
    "actor__epsilon_steps": 100,
    "replay__beta_schedule": "linear",
    "learner__demonstrations": "annealed",
    "learner__learning_rate_schedule": "linear",
    "run__steps": 240,
}


@pytest.mark.parametrize(
    ("step", "value"),
    [(0, 1.0), (50, 1.0), (60, 0.82), (100, 0.1), (10**9, 0.1)],
)
def test_linear_schedule_by_hand(step: int, value: float) -> None:
    assert linear_schedule(step, 50, 100, 1.0, 0.1) == pytest.approx(value)


def test_schedule_that_ends_before_it_starts_jumps_to_its_end() -> None:
    assert [linear_schedule(s, 50, 20, 1.0, 0.1) for s in (0, 50, 51)] == pytest.approx([1, 1, 0.1])


def test_loop_sets_scheduled_values_of_its_step() -> None:
    """Learning starts at step 40: epsilon ends at 140, beta, share and learning rate at 240."""
    with make_loop(make_config(**ALL_SCHEDULES), parts=2) as loop:
        for _ in range(45):  # of two lanes each
            loop.run_iteration()
        assert loop.step == 90
        # The last iteration began at step 88.
        epsilon = torch.cat([group.actor.epsilon for group in actor_pool(loop).groups])
        assert epsilon.tolist() == pytest.approx([1 - 0.9 * 48 / 100] * 4)
        assert isinstance(loop.mixture, AnnealedMixture)
        assert loop.mixture.scheduled_share == pytest.approx(0.25 * (1 - 48 / 200))
        for replay in loop.mixture.replays:
            assert float(replay.beta) == pytest.approx(0.4 + 0.6 * 48 / 200)
        rate = loop.config.learner.learning_rate
        assert float(loop.learner.optimizer.learning_rate) == pytest.approx(rate * (1 - 48 / 200))


def test_importance_weights_follow_scheduled_beta() -> None:
    with make_loop(make_config(**ALL_SCHEDULES), parts=1) as loop:
        replay, (_, beta, _, _) = loop.mixture.replays[1], loop.schedules
        replay.update_priorities(torch.arange(40), torch.linspace(0.1, 3, 40))
        for value in (0.4, 0.9):
            beta.set_value(value)
            batch = replay.sample(16)
            mass = replay.tree.masses[batch.item]
            expected = (mass / mass.min()) ** -value
            assert torch.allclose(batch.w.double(), expected, rtol=1e-6)


def test_constant_settings_have_no_schedules() -> None:
    with make_loop(make_config(), parts=1) as loop:
        assert loop.schedules == []
        assert [replay.beta for replay in loop.mixture.replays] == [0.4, 0.4]


def test_pretraining_learns_from_demonstrations_before_the_first_step() -> None:
    with make_loop(make_config(learner__pretraining_updates=70), parts=1) as loop:
        actor_weights = actor_pool(loop).weight_sync.actor_weights
        before = [p.clone() for p in actor_weights.network.parameters()]
        loop.run_iteration()
        assert (loop.step, loop.learner.updates, loop.pretraining_updates_left) == (0, 50, 20)
        after_burst = list(actor_weights.network.parameters())
        assert all(map(torch.equal, before, after_burst))
        loop.run_iteration()
        assert (loop.step, loop.learner.updates, loop.pretraining_updates_left) == (0, 70, 0)
        pairs = zip(after_burst, loop.learner.parameters, strict=True)
        assert all(torch.equal(actor, learner) for actor, learner in pairs)
        assert loop.mixture.agent.tree.total_mass == 0
        loop.run_iteration()
        assert (loop.step, loop.learner.updates) == (4, 70)
        assert updates_due(loop.config, 40) == 70


# Resuming


class StoppedForTestError(Exception):
    """Raised instead of a crash."""


def train_until(config: Config, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train and crash at a step."""
    run_iteration = TrainingLoop.run_iteration

    def run_or_crash(self: TrainingLoop) -> None:
        if self.step >= step:
            raise StoppedForTestError
        run_iteration(self)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingLoop, "run_iteration", run_or_crash)
        with pytest.raises(StoppedForTestError):
            train(config)


DQFD_SETTINGS: dict[str, Any] = {
    "actor__epsilon_schedule": "linear",
    "actor__epsilon_steps": 200,
    "replay__beta_schedule": "linear",
    "replay__horizon_losses": "summed",
    "replay__expert_priority_offset": 1.0,
    "learner__agent_items": 16,
    "learner__expert_items": 0,
    "learner__demonstrations": "priority",
    "learner__pretraining_updates": 120,
    "learner__optimizer": "rmsprop",
    "learner__learning_rate_schedule": "linear",
    "learner__l2_weight": 1e-5,
    "learner__td_loss": "squared",
}
ANNEALED_SETTINGS: dict[str, Any] = {
    "learner__demonstrations": "annealed",
    "learner__learning_rate_schedule": "linear",
    "replay__beta_schedule": "linear",
}


@pytest.mark.parametrize("settings", [DQFD_SETTINGS, ANNEALED_SETTINGS], ids=["dqfd", "annealed"])
def test_run_with_schedules_resumes_to_identical_result(
    tmp_path: Path,
    balance_demos: Path,
    settings: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Crashed 60 steps after its checkpoint, when every schedule is on its way."""
    uninterrupted, resumed = (
        tiny_config(tmp_path / name, balance_demos, run__checkpoint_period=200, **settings)
        for name in ("uninterrupted", "resumed")
    )
    train(uninterrupted)
    train_until(resumed, 260, monkeypatch)
    train(resumed, resume=True)
    folders = [Path(config.run.folder) for config in (uninterrupted, resumed)]
    assert_checkpoints_equal(newest_checkpoint(folders[0]), newest_checkpoint(folders[1]))
    assert rows_without_times(folders[0]) == rows_without_times(folders[1])


def test_pretraining_resumes_where_a_signal_stopped_it(
    tmp_path: Path,
    balance_demos: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Stopped twice, at 50 and 100 of 120 updates: each checkpoint of step 0 replaces the last."""
    settings = DQFD_SETTINGS | {"run__steps": 120}
    uninterrupted = tiny_config(tmp_path / "uninterrupted", balance_demos, **settings)
    stopped = tiny_config(tmp_path / "stopped", balance_demos, **settings)
    train(uninterrupted)
    assert "pre-training: 120 of 120 updates, loss " in capsys.readouterr().out
    pretrain = TrainingLoop.pretrain

    def pretrain_and_stop(self: TrainingLoop, count: int) -> None:
        pretrain(self, count)
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingLoop, "pretrain", pretrain_and_stop)
        for updates in (50, 100):
            assert train(stopped, resume=updates > 50).stop_reason == "SIGTERM"
            saved = newest_checkpoint(tmp_path / "stopped")
            assert (saved.metadata["step"], saved.metadata["updates"]) == (0, updates)
    train(stopped, resume=True)
    assert_checkpoints_equal(
        newest_checkpoint(tmp_path / "uninterrupted"), newest_checkpoint(tmp_path / "stopped")
    )
