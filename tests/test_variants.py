"""Other heads and objectives in complete runs: resume, evaluation, export, learning."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lookfurther import Agent, evaluate, preset, train
from lookfurther.config import Config, replace
from lookfurther.errors import ConfigError
from lookfurther.learner import Learner
from lookfurther.networks.dueling import make_network_builder
from lookfurther.networks.heads import PopArtHead
from lookfurther.objective_variants import choose_objective
from lookfurther.report.model_card import export_run
from lookfurther.types import Spec
from tests.test_learner import make_batch, run_update
from tests.training_runs import (
    WalkEnv,
    assert_checkpoints_equal,
    build_noisy_network,
    newest_checkpoint,
    tiny_config,
)

VARIANTS: dict[str, dict[str, Any]] = {
    "popart": {
        "network__head": "popart",
        "learner__value_transform": "identity",
        "learner__popart_step": 0.01,
    },
    "constrained": {"learner__constrained_td": True, "learner__tc_weight": 0.0},
    "categorical": {"network__head": "categorical"},
    "plain categorical": {"network__head": "categorical", "network__dueling": False},
    "glorot": {"network__initialization": "glorot"},
    "noisy": {"network__noisy_std": 0.5},
    "noisy categorical": {"network__head": "categorical", "network__noisy_std": 0.5},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_resumed_run_equals_uninterrupted_run(tmp_path: Path, name: str) -> None:
    """Including PopArt's moments and the generator of the noise."""
    uninterrupted, resumed = (
        tiny_config(tmp_path / part, env="walk", **VARIANTS[name]) for part in ("one", "two")
    )
    train(replace(uninterrupted, run__steps=140), env=WalkEnv)
    train(replace(resumed, run__steps=120), env=WalkEnv)
    train(replace(resumed, run__steps=140), env=WalkEnv, resume=True)
    assert_checkpoints_equal(
        newest_checkpoint(tmp_path / "one"), newest_checkpoint(tmp_path / "two")
    )


@pytest.mark.parametrize("name", ["popart", "plain categorical", "noisy categorical"])
def test_exported_agent_has_values_of_trained_one(tmp_path: Path, name: str) -> None:
    train(tiny_config(tmp_path / "run", env="walk", run__steps=140, **VARIANTS[name]), env=WalkEnv)
    trained = Agent.load(tmp_path / "run", modules=["tests.test_training"])
    exported = Agent.load(export_run(tmp_path / "run", tmp_path / "export"))
    x = np.eye(5, dtype=np.float32)
    assert trained.q_values(x).shape == (5, 2)
    assert np.array_equal(trained.q_values(x), exported.q_values(x))
    assert np.array_equal(trained.act(x), exported.q_values(x).argmax(-1))
    played = evaluate(exported, 4, env=WalkEnv, lanes=2)
    assert all(np.isfinite(episode.score) for episode in played)


def test_half_precision_export_keeps_popart_moments(tmp_path: Path) -> None:
    """A second moment is often beyond float16."""
    config = tiny_config(tmp_path / "run", env="walk", run__steps=140, **VARIANTS["popart"])
    train(config, env=WalkEnv)
    agents = [
        Agent.load(path)
        for path in (tmp_path / "run", export_run(tmp_path / "run", tmp_path / "out", half=True))
    ]
    heads = [agent.network.head for agent in agents]
    assert all(isinstance(head, PopArtHead) for head in heads)
    assert heads[0].moments == heads[1].moments  # type: ignore[union-attr]
    x = np.eye(5, dtype=np.float32)
    assert np.allclose(agents[0].q_values(x), agents[1].q_values(x), atol=0.01)


SPEC = Spec("toy", (3,), 1, "float32", 4, 1.0)


def make_learner(config: Config, compiled: bool) -> Learner:
    torch.manual_seed(0)
    network, precision = make_network_builder(config.network)(SPEC), torch.float32
    objective = choose_objective(config)
    return Learner(network, config.learner, torch.device("cpu"), precision, compiled, objective)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the compiler
@pytest.mark.parametrize("name", ["popart", "constrained", "plain categorical"])
def test_compiled_updates_equal_eager(tmp_path: Path, name: str) -> None:
    """Three updates of each, up to rounding."""
    config = tiny_config(tmp_path, tmp_path, **VARIANTS[name])
    learners = [make_learner(config, compiled) for compiled in (False, True)]
    for learner in learners:
        torch.manual_seed(1)
        for k in range(3):
            run_update(learner, make_batch(16, seed=k, agent=12))
    weights = [torch.cat([p.flatten() for p in one.parameters]) for one in learners]
    assert torch.allclose(weights[0], weights[1], atol=1e-5)


def test_rainbow_explores_without_epsilon(tmp_path: Path) -> None:
    """The preset with its own sizes but those of a tiny run: all lanes act by noise alone."""
    settings = tiny_config(tmp_path / "run", env="walk", run__steps=140)
    sizes = ("env", "actor__lanes", "replay__capacity", "network__name", "network__hidden")
    overrides = {name: attrgetter(name.replace("__", "."))(settings) for name in sizes}
    config = preset("rainbow", **overrides, replay__learning_starts=100, run=settings.run)
    train(config, env=WalkEnv)
    saved = newest_checkpoint(tmp_path / "run")
    assert saved.metadata["updates"] > 0
    assert len(saved.files["agent_replay"]["actions"].unique()) == 2


def test_head_of_custom_network_is_refused(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / "run", env="walk", **VARIANTS["categorical"])
    with pytest.raises(ConfigError, match="use values for a custom network"):
        train(config, env=WalkEnv, network=build_noisy_network)
