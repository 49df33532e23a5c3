"""Learning small tasks to a required score: slow, but shows that the parts work together."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from lookfurther import Agent, Config, evaluate, preset, train
from lookfurther.demos.episode import Episode
from lookfurther.demos.storage import save_episodes
from lookfurther.envs import get_spec

# Half a minute each on an idle machine, many times that on a busy one.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


class ChainEnv(gymnasium.Env):
    """Twenty cells; one of two actions advances, the other returns to the start.

    The action that advances differs between cells. The only reward is at the end, and random
    actions reach it once in a million episodes.
    """

    length = 20
    observation_space = Box(0, 1, (length,), np.float32)
    action_space = Discrete(2)
    keys = np.random.default_rng(7).integers(0, 2, length)

    def _observe(self) -> np.ndarray:
        return np.eye(self.length, dtype=np.float32)[self.cell]

    def reset(self, *, seed=None, options=None):
        self.cell, self.time = 0, 0
        return self._observe(), {}

    def step(self, action):
        self.time += 1
        if action == self.keys[self.cell]:
            if self.cell == self.length - 1:
                return self._observe(), 1.0, True, False, {}
            self.cell += 1
        else:
            self.cell = 0
        return self._observe(), 0.0, False, self.time >= 40, {}


class RewardScalesEnv(gymnasium.Env):
    """One-step episodes with four actions, in one of 24 situations of six numbers each.

    The right action gives 1,000 in half of the situations and 1 in the others: one network has to
    represent values that differ by a factor of a thousand.
    """

    count = 24
    situations = np.random.default_rng(3).normal(size=(count, 6)).astype(np.float32)
    right = np.random.default_rng(4).integers(0, 4, count)
    prize = np.where(np.arange(count) % 2 == 0, 1000.0, 1.0)
    observation_space = Box(-10, 10, (6,), np.float32)
    action_space = Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.now = int(self.np_random.integers(self.count))
        return self.situations[self.now], {}

    def step(self, action):
        reward = float(self.prize[self.now]) if action == self.right[self.now] else 0.0
        return self.situations[self.now], reward, True, False, {}


def small_config(name: str, folder: Path, **overrides) -> Config:
    """The small scale, reduced to a few seconds of training."""
    settings = {
        "env": "toy",
        "actor__lanes": 8,
        "actor__weight_sync_period": 5,
        "replay__learning_starts": 200,
        "replay__capacity": 20_000,
        "network__hidden": (64,),
        "learner__gamma": 0.99,
        "learner__target_period": 50,
        "learner__learning_rate": 1e-3,
        "run__folder": str(folder),
        "run__precision": "float32",  # auto is bfloat16 on processors that have it
        "run__threads": 1,
        "run__checkpoint_minutes": 0.0,
        "run__checkpoint_period": 0,
    }
    return preset(name, "small", **(settings | overrides))


def mean_score(folder: Path, env=None, episodes: int = 50) -> float:
    played = evaluate(Agent.load(folder), episodes, env=env, lanes=10)
    return float(np.mean([p.score for p in played]))


def chain_demo(root: Path) -> str:
    """A set with one episode along the chain."""
    planes = np.eye(ChainEnv.length, dtype=np.float32)
    planes = np.concatenate([planes, planes[-1:]])
    rewards = np.zeros(ChainEnv.length, np.float32)
    rewards[-1] = 1
    episode = Episode(planes, ChainEnv.keys.astype(np.int64), rewards, terminal=True)
    spec = get_spec(ChainEnv, Config().environment)
    return str(save_episodes("chain/walk-v0", [episode], spec, "by hand", root))


@pytest.mark.parametrize("seed", [0, 1])
def test_chain_needs_a_demonstration(tmp_path: Path, seed: int):
    steps = {"run__steps": 12_000, "run__seed": seed}
    demos = (chain_demo(tmp_path / "demos"),)
    train(small_config("apex-dqfd", tmp_path / "with", demos=demos, **steps), env=ChainEnv)
    train(small_config("no-demos", tmp_path / "without", **steps), env=ChainEnv)
    assert mean_score(tmp_path / "with", ChainEnv) >= 0.9
    assert mean_score(tmp_path / "without", ChainEnv) <= 0.1


@pytest.mark.parametrize("name", ["popart", "constrained-td"])
def test_alternatives_of_the_paper_learn_chain(tmp_path: Path, name: str):
    demos = (chain_demo(tmp_path / "demos"),)
    train(small_config(name, tmp_path / "run", demos=demos, run__steps=12_000), env=ChainEnv)
    assert mean_score(tmp_path / "run", ChainEnv) >= 0.9


class ShortChainEnv(ChainEnv):
    """Six cells: random actions reach the end once in 64 tries."""

    length = 6
    observation_space = Box(0, 1, (length,), np.float32)
    keys = ChainEnv.keys[:length]


def test_rainbow_learns_short_chain_by_noise_alone(tmp_path: Path):
    train(small_config("rainbow", tmp_path / "run", run__steps=4_000), env=ShortChainEnv)
    assert mean_score(tmp_path / "run", ShortChainEnv, episodes=20) >= 0.9


def optimal_action_rate(folder: Path) -> float:
    """The share of situations in which the agent selects the right action."""
    actions = Agent.load(folder).act(RewardScalesEnv.situations)
    return float((actions == RewardScalesEnv.right).mean())


def test_value_transform_helps_mixed_reward_scales(tmp_path: Path):
    shares = {}
    for transform in ("h", "identity"):
        runs = []
        for seed in range(3):
            folder = tmp_path / f"{transform}{seed}"
            settings = {
                "run__steps": 10_000,
                "run__seed": seed,
                "learner__value_transform": transform,
                "learner__learning_rate": 3e-3,
                "learner__samples_per_insert": 32.0,
            }
            train(small_config("no-demos", folder, **settings), env=RewardScalesEnv)
            runs.append(optimal_action_rate(folder))
        shares[transform] = float(np.mean(runs))
    assert shares["h"] >= 0.65
    assert shares["identity"] <= shares["h"] - 0.2


def test_cartpole_is_learned_without_demos(tmp_path: Path):
    train(
        small_config(
            "no-demos",
            tmp_path / "run",
            env="CartPole-v1",
            run__steps=70_000,
            network__hidden=(128,),
            learner__samples_per_insert=16.0,
            learner__learning_rate=5e-4,
            learner__target_period=100,
            run__evaluate_period=5_000,
            run__evaluate_episodes=10,
        )
    )
    assert mean_score(tmp_path / "run", episodes=20) >= 400
