"""Training runs stop or continue after faults, and no checkpoint is lost."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lookfurther import Agent, Spec, replace, train
from lookfurther.errors import (
    CheckpointError,
    ConfigError,
    EnvironmentFault,
    RunLocked,
    TrainingDiverged,
)
from lookfurther.training.checkpoints import checkpoint
from lookfurther.training.monitoring.metrics import read_metrics
from lookfurther.training.run_dir import RunDir
from tests.faulty_envs import Counting
from tests.training_runs import WalkEnv, flatten_tensors, newest_checkpoint, tiny_config

# Divergence


class ExplodingEnv(WalkEnv):
    """WalkEnv with huge rewards after 330 steps of all lanes together."""

    steps = 0

    def step(self, action: int) -> Any:
        observation, _, *rest = super().step(action)
        ExplodingEnv.steps += 1
        return observation, 3e38 if ExplodingEnv.steps > 330 else 0.0, *rest


def test_non_finite_loss_stops_run_without_saving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reward fits in float32, but the sum of a batch does not."""
    monkeypatch.setattr(ExplodingEnv, "steps", 0)
    changed = {"learner__value_transform": "identity", "replay__horizons": (1,)}
    config = tiny_config(tmp_path / "run", env="explodes", run__checkpoint_period=200, **changed)
    with pytest.raises(TrainingDiverged, match=r"the loss .* at update \d+ is not finite"):
        train(config, env=ExplodingEnv)
    saved = newest_checkpoint(tmp_path / "run")
    assert saved.metadata["step"] == 200
    for value in flatten_tensors(saved).values():
        assert not value.is_floating_point() or torch.isfinite(value).all()
    assert np.isfinite(Agent.load(tmp_path / "run").q_values(np.eye(5, dtype=np.float32))).all()


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_non_finite_network_stops_run_at_start(tmp_path: Path, value: float) -> None:
    def network(spec: Spec) -> nn.Module:
        layer = nn.Linear(4, spec.actions)
        layer.bias.data.fill_(value)
        return layer

    with pytest.raises(TrainingDiverged, match="are not finite"):
        train(tiny_config(tmp_path / "run"), network=network)
    assert not (tmp_path / "run" / "checkpoints").exists()


# Environment faults


class PoisonedEnv(Counting):
    """Episodes of 24 steps; every fifth gives a NaN reward when part of it is already sampled."""

    def __init__(self) -> None:
        super().__init__(length=24)
        self.episode = 0

    def make_observation(self, action: float) -> Any:
        bad = float(self.episode % 5 == 0)
        return np.array([bad, self.t, self.seed], np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        self.episode += 1
        return super().reset(seed=seed)

    def step(self, action: int) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, np.nan if observation[0] and self.t == 18 else reward, *rest


def test_environment_fault_saves_resumable_checkpoint(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / "run", env="poisoned", run__steps=600)
    with pytest.raises(EnvironmentFault, match=r"PoisonedEnv, lane 0, episode 4, step 18: .*nan"):
        train(config, env=PoisonedEnv)
    saved = newest_checkpoint(tmp_path / "run")
    turns = (
        4 * 25 + 18 - 1
    )  # four complete episodes with their resets, and the steps before the NaN
    assert saved.metadata["step"] == 4 * turns
    summary = train(replace(config, run__steps=4 * turns + 40), env=PoisonedEnv, resume=True)
    assert summary.step == 4 * turns + 40
    mass = newest_checkpoint(tmp_path / "run").files["agent_replay"]["mass"] > 0
    assert not mass[:, turns - 10 :].any()


def test_fault_in_first_step_saves_checkpoint(tmp_path: Path) -> None:
    class Stillborn(Counting):
        def step(self, action: int) -> Any:
            observation, _, *rest = super().step(action)
            return observation, np.inf, *rest

    config = tiny_config(tmp_path / "run", env="stillborn")
    with pytest.raises(EnvironmentFault, match="Stillborn, lane 0, episode 0, step 1"):
        train(config, env=Stillborn)
    assert newest_checkpoint(tmp_path / "run").metadata["step"] == 0
    assert train(config, env=Counting, resume=True).step == 400


def test_dropped_episodes_are_counted_not_sampled(tmp_path: Path) -> None:
    config = tiny_config(
        tmp_path / "run", env="poisoned", environment__on_fault="drop", run__steps=1200,
        replay__capacity=2000, learner__samples_per_insert=0.5,
    )  # fmt: skip
    summary = train(config, env=PoisonedEnv)
    assert summary.stop_reason == "done"
    dropped = read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]["dropped_episodes"]
    assert dropped >= 4
    replay = newest_checkpoint(tmp_path / "run").files["agent_replay"]
    mass = (replay["mass"] > 0).any(-1)
    bad = replay["planes"][:, :, 0] == 1
    complete = ~bad & ((replay["marks"][:, :, 0] & 6) == 0)
    assert bad.sum() >= 18 * dropped
    assert not mass[bad].any()
    assert mass[complete].float().mean() > 0.8  # the rest is sampled, except pending slots


def test_run_stops_when_every_episode_is_dropped(tmp_path: Path) -> None:
    class Always(Counting):
        def step(self, action: int) -> Any:
            observation, reward, *rest = super().step(action)
            return observation, np.nan if self.t == 2 else reward, *rest

    with pytest.raises(EnvironmentFault, match="every episode was dropped"):
        train(tiny_config(tmp_path / "run", env="always", environment__on_fault="drop"), env=Always)
    assert newest_checkpoint(tmp_path / "run").metadata["updates"] == 0


# Full disk


def test_failed_checkpoint_prints_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write, calls = checkpoint.save, []

    def full_at_first(*arguments: Any) -> Path:
        calls.append(arguments[1])
        if len(calls) == 1:
            raise CheckpointError("no space left")
        return write(*arguments)

    monkeypatch.setattr(checkpoint, "save", full_at_first)
    assert train(tiny_config(tmp_path / "run", run__checkpoint_period=100)).stop_reason == "done"
    out = capsys.readouterr().out
    assert out.count("warning: no checkpoint at step 100: no space left\n") == 1
    assert calls == [100, 200, 300, 400, 400]
    assert sorted(os.listdir(tmp_path / "run" / "checkpoints")) == [
        "step_000000000300",
        "step_000000000400",
    ]


# Locks


def test_second_run_in_run_dir_is_refused(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / "run")
    with RunDir.open(tmp_path / "run", config, resume=False):
        for resume in (False, True):
            with pytest.raises(RunLocked, match=f"is held by process {os.getpid()} on"):
                train(config, resume=resume)
    assert train(config, resume=True).step == 400  # no checkpoint yet: from the beginning
    with pytest.raises(ConfigError, match="already holds a run: add --resume"):
        train(config)


# Missing TensorBoard and closed output


def test_without_tensorboard_prints_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)  # cannot be imported
    train(tiny_config(tmp_path / "run"))
    err = capsys.readouterr().err
    assert err.startswith("warning: no TensorBoard scalars (")
    assert err.count("\n") == 1
    assert len(read_metrics(tmp_path / "run" / "metrics.jsonl")) == 4
    assert not (tmp_path / "run" / "events").exists()


def test_closed_stdout_does_not_stop_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Closed())
    assert train(tiny_config(tmp_path / "run", run__steps=120)).stop_reason == "done"
