"""Truncation of episodes by the caller, and staggered lanes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
import torch

from lookfurther.actor import Actor
from lookfurther.config import Config, EnvConfig, replace
from lookfurther.envs import Envs, make_envs
from lookfurther.envs.naming import is_atari
from lookfurther.master_weights import MasterWeights
from lookfurther.networks.dueling import make_network_builder
from lookfurther.presets import preset
from lookfurther.training.actors import ActorGroup
from lookfurther.training.build import draw_first_truncations

CASES = {
    "in this process": ("CartPole-v1", EnvConfig()),
    "in processes": ("CartPole-v1", EnvConfig(processes=2)),
    "Atari": ("ALE/Pong-v5", EnvConfig(noop_max=0)),
}


@pytest.fixture(params=CASES)
def env_pair(request: pytest.FixtureRequest) -> Iterator[tuple[Envs, Envs]]:
    """Two copies of the same four lanes."""
    env, environment = CASES[request.param]
    if is_atari(env):
        pytest.importorskip("ale_py")
    with (
        closing(make_envs(env, environment, 4, 0, 1)) as one,
        closing(make_envs(env, environment, 4, 0, 1)) as other,
    ):
        yield one, other


def test_truncated_lanes_restart_and_others_continue(env_pair: tuple[Envs, Envs]) -> None:
    truncated, _ = env_pair
    lanes, actions = np.array([True, False, False, True]), np.zeros(4, np.int64)
    for envs in env_pair:
        envs.reset()
        for _ in range(2):
            envs.send(actions)
            envs.recv()
        envs.send(actions)
    last, _ = (envs.recv() for envs in env_pair)
    ended = truncated.truncate(lanes)
    assert ended.truncated.tolist() == lanes.tolist()
    assert np.array_equal(ended.observation, last.observation)
    for t in range(3):
        steps = []
        for envs in env_pair:
            envs.send(actions)
            steps.append(envs.recv())
        ours, theirs = steps
        assert ours.first.tolist() == (lanes & (t == 0)).tolist()
        assert not ours.truncated.any()
        assert np.array_equal(ours.observation[~lanes], theirs.observation[~lanes])
        assert np.array_equal(ours.reward[~lanes], theirs.reward[~lanes])
        assert t > 0 or not ours.reward[lanes].any()


@pytest.mark.parametrize("processes", [0, 2])
def test_truncation_is_saved_in_state(processes: int) -> None:
    environment, actions = EnvConfig(processes=processes), np.zeros(4, np.int64)
    with (
        closing(make_envs("CartPole-v1", environment, 4, 0, 1)) as envs,
        closing(make_envs("CartPole-v1", environment, 4, 0, 1)) as restored,
    ):
        envs.reset()
        envs.send(actions)
        envs.recv()
        envs.truncate(np.array([False, True, False, False]))
        step, is_continued = restored.restore(envs.state())
        assert is_continued.all()
        assert step.truncated.tolist() == [False, True, False, False]
        for one in (envs, restored):
            one.send(actions)
        ours, theirs = envs.recv(), restored.recv()
        for a, b in zip(ours, theirs, strict=True):
            assert np.array_equal(a, b)
        assert ours.first.tolist() == [False, True, False, False]


def staggered_config(**overrides: object) -> Config:
    settings = {"env": "ALE/Pong-v5", "actor__lanes": 8, "actor__stagger_steps": 12} | overrides
    return replace(preset("no-demos", "small"), **settings)


def test_each_lane_is_truncated_once_at_its_step() -> None:
    pytest.importorskip("ale_py")
    config = staggered_config()
    due = draw_first_truncations(config, range(8))
    with closing(make_envs(config.env, config.environment, 8, 0, 1)) as envs:
        small = replace(config, network__convolutions=(2, 2, 2), network__hidden=(4,))
        weights = MasterWeights(make_network_builder(small.network)(envs.spec), torch.float32)
        group = ActorGroup(envs, Actor(weights, envs.spec, config, range(8)), due)
        collected = []
        for _ in range(30):
            group.start_step()
            group.collect_chunk()
            collected.append(group.last_step)
    truncated = np.stack([step.truncated for step in collected])
    assert truncated.sum(0).tolist() == [1] * 8
    assert (truncated.argmax(0) + 1).tolist() == due.tolist()
    first = np.stack([step.first for step in collected])
    assert np.array_equal(first[1:], truncated[:-1])


def test_every_episode_is_truncated_at_the_limit() -> None:
    """Lane 0 is staggered at step 3; the others start with the limit of 5 steps."""
    pytest.importorskip("ale_py")
    config = staggered_config(actor__lanes=4)
    with closing(make_envs(config.env, config.environment, 4, 0, 1)) as envs:
        small = replace(config, network__convolutions=(2, 2, 2), network__hidden=(4,))
        weights = MasterWeights(make_network_builder(small.network)(envs.spec), torch.float32)
        actor = Actor(weights, envs.spec, config, range(4))
        group = ActorGroup(envs, actor, np.array([3, 0, 0, 0]), max_episode_steps=5)
        truncated = []
        for _ in range(20):
            group.start_step()
            group.collect_chunk()
            truncated.append(group.last_step.truncated)
    # An episode of five steps and the step of its reset make six.
    steps = [(np.flatnonzero(lane) + 1).tolist() for lane in np.stack(truncated).T]
    assert steps == [[3, 9, 15], [5, 11, 17], [5, 11, 17], [5, 11, 17]]


def test_first_truncations_differ_between_lanes() -> None:
    config = staggered_config(actor__lanes=64, actor__stagger_steps=1000)
    whole = draw_first_truncations(config, range(64))
    assert 1 <= whole.min() <= whole.max() <= 1000
    assert len(set(whole.tolist())) > 50
    halves = [draw_first_truncations(config, lanes) for lanes in (range(32), range(32, 64))]
    assert np.array_equal(np.concatenate(halves), whole)
    assert not draw_first_truncations(staggered_config(actor__stagger_steps=0), range(8)).any()
