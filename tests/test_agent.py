"""Agents act as their trained network; evaluations are unbiased and repeatable."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor, nn

from lookfurther import Agent, Config, Spec, evaluate, preset, train
from lookfurther.errors import CheckpointError
from lookfurther.networks.dueling import make_network_builder
from lookfurther.training.checkpoints import checkpoint
from tests.training_runs import tiny_config


def make_config(folder: Path) -> Config:
    """A learner so slow that each action remains the best somewhere."""
    return tiny_config(folder, run__checkpoint_period=200, learner__learning_rate=1e-5)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on CartPole with two checkpoints."""
    folder = tmp_path_factory.mktemp("agent") / "run"
    return train(make_config(folder)).folder


def random_observations(count: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(count, 4)).astype(np.float32)


def load_network(path: Path) -> nn.Module:
    """The network of a checkpoint, built by hand."""
    saved = checkpoint.load(path)
    module = make_network_builder(make_config(path).network)(
        Spec("CartPole-v1", (4,), 1, "float32", 2, 1.0)
    )
    module.load_state_dict(saved.files["weights"])
    return module


# Loading


@pytest.mark.parametrize("step", [200, 400])
def test_agent_has_network_of_checkpoint(run: Path, step: int) -> None:
    """The given checkpoint, or the newest one of a run folder."""
    path = run / "checkpoints" / f"step_{step:012}"
    agent = Agent.load(path)
    x = random_observations(100)
    with torch.no_grad():
        q = load_network(path)(torch.from_numpy(x)).numpy()
    assert np.array_equal(agent.q_values(x), q)
    assert np.array_equal(agent.act(x), q.argmax(-1))
    assert len(set(agent.act(x).tolist())) == 2  # both actions occur, so argmax means something
    assert np.array_equal(Agent.load(run).q_values(x), q) == (step == 400)
    assert np.array_equal(Agent.load(str(run)).q_values(x), q) == (step == 400)


def test_agent_has_spec_and_config_of_run(run: Path) -> None:
    agent = Agent.load(run)
    assert agent.spec == Spec("CartPole-v1", (4,), 1, "float32", 2, 1.0)
    assert agent.config == make_config(run)
    assert not agent.network.training


def test_folder_without_checkpoint_raises(tmp_path: Path) -> None:
    (tmp_path / "empty" / "checkpoints").mkdir(parents=True)
    for path in (tmp_path, tmp_path / "empty", tmp_path / "none"):
        with pytest.raises(CheckpointError, match=f"^{path} holds no checkpoint$"):
            Agent.load(path)


def test_broken_checkpoint_is_skipped_unless_last(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    x = random_observations(5)
    for step, left in ((400, 1), (200, 0)):
        weights = folder / "checkpoints" / f"step_{step:012}" / "weights.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1])
        if left:
            older = Agent.load(run / "checkpoints" / "step_000000000200")
            assert np.array_equal(Agent.load(folder).q_values(x), older.q_values(x))
        with pytest.raises(CheckpointError, match=r"weights\.safetensors is cut"):
            Agent.load(weights.parent)
    with pytest.raises(CheckpointError, match="has no valid checkpoint"):
        Agent.load(folder)


def test_agent_load_does_not_read_replays(run: Path, tmp_path: Path) -> None:
    """They can be far larger than memory. A broken file that is not read does no harm."""
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    path = folder / "checkpoints" / "step_000000000400"
    replay = path / "agent_replay.safetensors"
    data = bytearray(replay.read_bytes())
    data[-1] ^= 1
    replay.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"agent_replay\.safetensors is altered"):
        checkpoint.load(path)
    x = random_observations(5)
    for place in (folder, path):
        agent = Agent.load(place)
        assert np.array_equal(agent.q_values(x), Agent.load(run).q_values(x))
        assert agent.step == 400
    assert list(checkpoint.load(path, ["weights"]).files) == ["weights"]
    with pytest.raises(CheckpointError, match=f"^{path} holds no weight$"):
        checkpoint.load(path, ["weight"])


def test_other_network_raises(run: Path) -> None:
    with pytest.raises(CheckpointError, match="do not fit this network") as caught:
        Agent.load(run, network=lambda spec: nn.Linear(4, spec.actions))
    assert "\n" not in str(caught.value)
    assert 'Missing key(s) in state_dict: "weight", "bias"' in str(caught.value)


# Acting


def test_single_observation_equals_batch_of_one(run: Path) -> None:
    agent, x = Agent.load(run), random_observations(20)
    alone = [agent.act(row) for row in x]
    assert all(np.shape(action) == () for action in alone)
    assert [int(action) for action in alone] == agent.act(x).tolist()
    assert agent.act(x.astype(np.float64)).tolist() == agent.act(x).tolist()


@pytest.mark.parametrize("shape", [(), (5,), (3, 5), (2, 3, 4), (4, 1)])
def test_other_observation_shape_raises(run: Path, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"must have shape \(4,\) or \(m, 4\), not \(") as caught:
        Agent.load(run).act(np.zeros(shape, np.float32))
    assert str(caught.value).endswith(f"not {shape}")


def test_epsilon_is_share_of_uniform_actions(run: Path) -> None:
    agent = Agent.load(run)
    x = np.repeat(random_observations(1), 20_000, axis=0)
    best = agent.act(x[0])
    assert (agent.act(x, epsilon=0.0) == best).all()
    for epsilon in (0.2, 1.0):
        other = (agent.act(x, epsilon) != best).mean()
        assert abs(other - epsilon / 2) < 4 * np.sqrt(0.25 / len(x))  # half of them are the best


def test_same_seed_gives_same_exploration(run: Path) -> None:
    first, second = Agent.load(run), Agent.load(run)
    x = random_observations(200)
    once = first.act(x, 0.5)
    assert np.array_equal(once, second.act(x, 0.5))
    assert not np.array_equal(once, first.act(x, 0.5))


# Evaluation


class VariableLengthEnv(gymnasium.Env):
    """Episodes whose length depends on the seed, with reward 1 + action / 8; records lengths."""

    lengths: tuple[int, ...] = (2, 3, 40)
    started: list[int] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.observation_space, self.action_space = Box(0, 1, (2,), np.float32), Discrete(3)
        self.length, self.t = 0, 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        assert seed is not None
        self.length, self.t = self.lengths[seed % len(self.lengths)], 0
        VariableLengthEnv.started.append(self.length)
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> Any:
        self.t += 1
        over = self.t == self.length
        return np.zeros(2, np.float32), 1.0 + action / 8, over, False, {}


class ConstantNetwork(nn.Module):
    """Action 1 is always the best."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Parameter(torch.tensor([0.0, 1.0, 0.5]))

    def forward(self, x: Tensor) -> Tensor:
        return self.q.expand(len(x), 3)


def make_tally_agent() -> Agent:
    config: Config = preset("no-demos", env="tally")
    return Agent(ConstantNetwork(), Spec("Tally", (2,), 1, "float32", 3, 1.0), config)


@pytest.fixture(autouse=True)
def reset_lengths() -> Iterator[None]:
    VariableLengthEnv.started.clear()
    yield
    VariableLengthEnv.started.clear()


def test_same_seed_gives_same_scores(run: Path) -> None:
    agent = Agent.load(run)
    options: dict[str, Any] = {"episodes": 6, "epsilon": 0.3, "lanes": 3}
    first = evaluate(agent, seed=5, **options)
    agent.act(random_observations(7), 0.5)  # draws in between do not matter
    assert evaluate(agent, seed=5, **options) == first
    assert evaluate(agent, seed=6, **options) != first
    assert all(played.score == played.steps for played in first)  # CartPole pays 1 a step


@pytest.mark.parametrize(
    ("episodes", "lanes", "shares"),
    [(7, 3, [3, 2, 2]), (4, 4, [1] * 4), (2, 20, [1, 1]), (5, 1, [5])],
)
def test_each_lane_plays_its_share(episodes: int, lanes: int, shares: list[int]) -> None:
    """The lanes' episodes in order: none is left out because it is long."""
    played = evaluate(
        make_tally_agent(), episodes, epsilon=0.0, lanes=lanes, seed=3, env=VariableLengthEnv
    )
    expected = []
    for lane, share in enumerate(shares):
        seeds = [np.random.SeedSequence((3, lane, k)).generate_state(1)[0] for k in range(share)]
        expected += [VariableLengthEnv.lengths[seed % 3] for seed in seeds]
    assert [p.steps for p in played] == expected
    assert [p.score for p in played] == [n * 1.125 for n in expected]  # action 1 at every step


def test_mean_episode_length_is_unbiased() -> None:
    """A third of 300 episodes lasts 40 steps; the first 300 to finish would have almost none."""
    played = evaluate(make_tally_agent(), 300, epsilon=0.0, lanes=20, seed=0, env=VariableLengthEnv)
    assert len(played) == 300
    assert np.mean([p.steps == 40 for p in played]) == pytest.approx(1 / 3, abs=0.09)
    finished = sorted(p.steps for p in played)[: len(played) // 2]
    assert max(finished) < 40


def test_evaluation_uses_epsilon() -> None:
    played = evaluate(make_tally_agent(), 60, epsilon=1.0, lanes=20, seed=0, env=VariableLengthEnv)
    steps = sum(p.steps for p in played)
    bonus = sum(p.score for p in played) - steps
    assert bonus / steps == pytest.approx(1 / 8, abs=0.02)  # the mean of 0, 1/8 and 2/8
    assert any(p.score != p.steps * 1.125 for p in played)


def test_failed_episode_is_not_counted() -> None:
    class FailingEnv(VariableLengthEnv):
        """Fails at the third step of its first episode."""

        def step(self, action: int) -> Any:
            if len(VariableLengthEnv.started) == 1 and self.t == 2:
                raise RuntimeError("failed")
            return super().step(action)

    FailingEnv.lengths = (4,)
    played = evaluate(make_tally_agent(), 2, epsilon=0.0, lanes=1, env=FailingEnv)
    assert [p.steps for p in played] == [4, 4]
    assert VariableLengthEnv.started[:3] == [4, 4, 4]
