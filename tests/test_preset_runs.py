"""Every preset trains, is saved and resumes; systems of other papers learn small tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box

from lookfurther import Config, preset, replace, train
from lookfurther.presets import PRESETS
from lookfurther.training.monitoring.metrics import read_metrics
from tests.test_learning import ChainEnv, chain_demo, mean_score, small_config
from tests.training_runs import newest_checkpoint

TINY: dict[str, Any] = {
    "env": "chain",
    "actor__lanes": 4,
    "replay__capacity": 800,
    "replay__learning_starts": 100,
    "network__hidden": (16,),
    "learner__samples_per_insert": 16.0,
    "run__steps": 240,
    "run__log_period": 80,
    "run__precision": "float32",
    "run__threads": 1,
    "run__checkpoint_minutes": 0.0,
}


def tiny_run(name: str, folder: Path) -> Config:
    """A run of a preset at the scale small, with a tenth of the pre-training."""
    config = preset(name, "small")
    updates = config.learner.pretraining_updates // 20
    own = {"learner__pretraining_updates": updates, "run__folder": str(folder)}
    demos = {"demos": (chain_demo(folder.parent / "demos"),)} if config.uses_demos else {}
    return preset(name, "small", **(TINY | own | demos))


@pytest.mark.parametrize("name", PRESETS)
def test_preset_trains_and_resumes(name: str, tmp_path: Path) -> None:
    config = tiny_run(name, tmp_path / "run")
    if config.network.name == "dueling-deeper":
        pytest.skip("its network is for images")
    train(config, env=ChainEnv)
    last = read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]
    assert last["updates"] > config.learner.pretraining_updates
    assert np.isfinite([last["loss"], last["gradient_norm"], last["q_mean"]]).all()
    saved = newest_checkpoint(tmp_path / "run")
    assert config.learner.optimizer in saved.files
    assert train(replace(config, run__steps=320), env=ChainEnv, resume=True).step == 320


@pytest.mark.slow
def test_dqfd_learns_chain_from_one_demonstration(tmp_path: Path) -> None:
    """Pre-training alone gives the way; random actions find it once in a million episodes."""
    config = small_config(
        "dqfd",
        tmp_path / "run",
        demos=(chain_demo(tmp_path / "demos"),),
        run__steps=6_000,
        learner__pretraining_updates=1_000,
    )
    train(config, env=ChainEnv)
    assert mean_score(tmp_path / "run", ChainEnv) >= 0.9


class ShortChainEnv(ChainEnv):
    """Five cells, and a wrong action ends the episode: 1 of 32 policies obtains the reward."""

    length = 5
    observation_space = Box(0, 1, (length,), np.float32)

    def step(self, action) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        is_wrong = action != self.keys[self.cell]
        observation, reward, terminal, truncated, info = super().step(action)
        return observation, reward, terminal or bool(is_wrong), truncated, info


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dqn", "double-dqn", "per", "dueling", "apex-dqn-horgan"])
def test_systems_without_demonstrations_learn_short_chain(name: str, tmp_path: Path) -> None:
    config = small_config(
        name,
        tmp_path / "run",
        actor__epsilon_steps=4_000,
        learner__learning_rate=2.5e-4,
        learner__agent_items=32,
        learner__samples_per_insert=8.0,
        run__steps=6_000,
    )
    train(config, env=ShortChainEnv)
    assert mean_score(tmp_path / "run", ShortChainEnv) >= 0.9
