"""Rollouts: cached Q-values, policies with CUDA graphs, and each lane's share of episodes."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator, Tensor, nn

from lookfurther import Agent, Spec, preset, rollout
from lookfurther.config import EnvConfig
from lookfurther.evaluation import evaluate as evaluation
from lookfurther.evaluation.evaluate import evaluate
from lookfurther.exploration import epsilon_greedy
from lookfurther.networks.dueling import DuelingNetwork, make_network_builder
from lookfurther.rollout import GraphedPolicy, QValueCache

GAME = "ALE/Breakout-v5"
SPEC = Spec("Test", (3,), 1, "float32", 4, 1.0)


class RecordingNetwork(nn.Module):
    """Records its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.inputs.append(x.clone())
        return x.float() @ torch.eye(3)


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Agent:
    """An agent with a small network on Breakout, with episodes of at most 100 steps."""
    pytest.importorskip("ale_py")
    monkeypatch.setattr(evaluation, "MAX_EPISODE_FRAMES", 400)
    config = preset("no-demos", env=GAME)
    torch.manual_seed(0)
    build = make_network_builder(replace(config.network, convolutions=(4, 4, 4)))
    spec = Spec(GAME, (1, 84, 84), 4, "uint8", 18, 255.0)
    return Agent(build(spec), spec, config)


# Cached Q-values


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=12))
def test_cache_computes_each_observation_once(batches: list[list[int]]) -> None:
    network, distinct = RecordingNetwork(), set()
    cache = QValueCache(network)
    for batch in batches:
        x = torch.eye(3, dtype=torch.uint8)[batch]
        assert torch.equal(cache(x), x.float())
        distinct |= set(batch)
    assert sum(len(x) for x in network.inputs) == len(distinct)


@given(st.lists(st.integers(0, 40), max_size=60), st.integers(1, 6))
def test_cache_recomputes_evicted_values(starts: list[int], max_entries: int) -> None:
    cache = QValueCache(nn.Identity(), max_entries)
    for start in starts:
        x = torch.arange(start, start + 4)[:, None].float()
        assert torch.equal(cache(x), x)
        assert len(cache.row_by_digest) <= max(max_entries, 4)


def test_cache_does_not_change_episodes(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    rewards = []
    for cached_class in (DuelingNetwork, RecordingNetwork):  # with the second, nothing is cached
        monkeypatch.setattr(rollout, "DuelingNetwork", cached_class)
        episodes = evaluate(agent, 6, lanes=3, epsilon=0.2)
        rewards.append([list(episode.rewards) for episode in episodes])
    assert rewards[0] == rewards[1]


# Graphed policies


def test_graphed_policy_is_greedy_without_epsilon() -> None:
    """For any number of observations up to the number of lanes."""
    network, random = nn.Linear(3, 4), np.random.default_rng(0)
    policy = GraphedPolicy(network, SPEC, lanes=5, epsilon=0.0, seed=0)
    for count in (5, 5, 3, 1, 5, 2):
        observations = random.normal(size=(count, 3)).astype(np.float32)
        with torch.no_grad():
            q = network(torch.from_numpy(observations))
        assert policy(observations).tolist() == q.argmax(-1).tolist()


def test_graphed_policy_follows_epsilon_greedy_stream() -> None:
    network, generator = nn.Linear(3, 4), Generator().manual_seed(7)
    policy = GraphedPolicy(network, SPEC, lanes=50, epsilon=0.5, seed=7)
    x = torch.randn(50, 3)
    for _ in range(6):
        with torch.no_grad():
            expected = epsilon_greedy(network(x), torch.full((50,), 0.5), generator)
        assert policy(x.numpy()).tolist() == expected.tolist()


def test_graphed_policy_returns_new_arrays() -> None:
    policy = GraphedPolicy(nn.Linear(3, 4), SPEC, lanes=50, epsilon=1.0, seed=0)
    first = policy(np.zeros((50, 3), np.float32))
    copy = first.copy()
    policy(np.ones((50, 3), np.float32))
    assert np.array_equal(first, copy)


def test_graphed_policy_plays_same_greedy_episodes(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CPU has no graph, but runs the same code."""
    expected = evaluate(agent, 5, lanes=3, epsilon=0.0)

    def make_policy(agent: Agent, lanes: int, epsilon: float, seed: int) -> GraphedPolicy:
        return GraphedPolicy(agent.network, agent.spec, lanes, epsilon, seed)

    monkeypatch.setattr(evaluation, "make_policy", make_policy)
    assert evaluate(agent, 5, lanes=3, epsilon=0.0) == expected


@pytest.mark.parametrize(
    ("device", "is_user_network", "is_graphed"),
    [("cuda", False, True), ("cuda", True, False), ("cpu", False, False)],
)
def test_only_own_networks_on_gpu_are_graphed(
    agent: Agent, device: str, is_user_network: bool, is_graphed: bool
) -> None:
    agent.device = torch.device(device)
    if is_user_network:
        agent.network = nn.Linear(3, 4)
    policy = evaluation.make_policy(agent, 2, 0.0, 0)
    assert isinstance(policy, GraphedPolicy) == is_graphed


# Shares of episodes


def test_finished_lanes_need_no_actions() -> None:
    pytest.importorskip("ale_py")
    batch_sizes = []

    def policy(observations: np.ndarray) -> np.ndarray:
        batch_sizes.append(len(observations))
        return np.zeros(len(observations), np.int64)

    env_config = EnvConfig(max_episode_length=50, noop_max=0)
    with closing(evaluation.make_noop_envs(GAME, env_config, 2, 0)) as envs:
        episodes = rollout.play_episodes(policy, envs, 3)
    assert [episode.steps for episode in episodes] == [50] * 3
    assert batch_sizes == [2] * 50 + [1] * 51  # the reset between two episodes is a step
