"""Truncation of episodes by the caller, staggered lanes, and limits of episodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
import torch

from lookfurther.actor import Actor
from lookfurther.config import Config, EnvConfig, replace
from lookfurther.demos.episode import Episode
from lookfurther.envs import Envs, make_envs
from lookfurther.envs.naming import is_atari
from lookfurther.errors import ConfigError
from lookfurther.master_weights import MasterWeights
from lookfurther.networks.dueling import make_network_builder
from lookfurther.presets import preset
from lookfurther.replay.prioritized import PrioritizedReplay
from lookfurther.training.actors import ActorGroup
from lookfurther.training.build import build_limits, draw_first_truncations
from lookfurther.training.episode_limits import EpisodeLimits, longest_reward_gap
from lookfurther.types import Step

SPARE_SLOTS = 4  # so that no stack of a replay's oldest slots is cut
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
        actor = Actor(weights, envs.spec, config, range(8))
        group = ActorGroup(envs, actor, EpisodeLimits(due))
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
        group = ActorGroup(envs, actor, EpisodeLimits(np.array([3, 0, 0, 0]), max_steps=5))
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


def play_limited(limits: EpisodeLimits, rewards: np.ndarray) -> list[list[int]]:
    """The steps at which each lane is truncated: rewards [steps, m], a reset follows each end."""
    m = rewards.shape[1]
    first, ends = np.zeros(m, bool), [[] for _ in range(m)]
    for t, reward in enumerate(rewards):
        none = np.zeros(m, bool)
        step = Step(np.zeros(m), np.where(first, 0, reward), none, none, first, none)
        first = limits.add_step(step)
        for i in np.flatnonzero(first):
            ends[i].append(t)
    return ends


def test_episode_is_truncated_after_too_long_without_positive_reward() -> None:
    """Limit 3. Lane 0 never has a reward, lane 1 at steps 2 and 4, lane 2 only loses."""
    rewards = np.zeros((12, 3))
    rewards[[2, 4], 1], rewards[:, 2] = 5, -1
    limits = EpisodeLimits(np.zeros(3, np.int64), max_unrewarded_steps=3)
    # After an end at t, the reset is at t + 1 and the three steps are t + 2 ... t + 4.
    assert play_limited(limits, rewards) == [[2, 6, 10], [7, 11], [2, 6, 10]]


def test_limits_without_values_never_truncate() -> None:
    limits = EpisodeLimits(np.zeros(2, np.int64))
    assert play_limited(limits, np.zeros((50, 2))) == [[], []]


def test_lost_episodes_begin_again() -> None:
    limits = EpisodeLimits(np.array([4, 4]), max_unrewarded_steps=3)
    play_limited(limits, np.zeros((2, 2)))
    limits.restart(np.array([True, False]))
    assert limits.unrewarded_steps.tolist() == [0, 2]
    assert limits.steps_left.tolist() == [4, 2]


def test_restored_limits_continue() -> None:
    rewards = (np.random.default_rng(0).random((60, 4)) < 0.2).astype(float)
    limits, restored = (EpisodeLimits(np.array([0, 3, 9, 30]), 20, 6) for _ in range(2))
    play_limited(limits, rewards[:25])
    restored.load_state({k: torch.from_numpy(v) for k, v in limits.state().items()})
    ends = play_limited(limits, rewards[25:])
    assert ends == play_limited(restored, rewards[25:])
    assert all(ends)


def make_episode(rewards: list[float]) -> Episode:
    n = len(rewards)
    return Episode(np.zeros((n + 1, 1)), np.zeros(n, np.int64), np.array(rewards), terminal=True)


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([[0, 0, 1, 1, 0, 1]], 3),  # the first reward comes with the third step
        ([[1, 0, 0, 0, 2, 0, 0, 0, 0, 0]], 4),  # steps after the last reward do not count
        ([[1, -1, -1, 1], [0, 1]], 3),  # the longest of all episodes; losses are not rewards
        ([[0, -1]], 0),
        ([], 0),
    ],
)
def test_longest_reward_gap_by_hand(rewards: list[list[float]], expected: int) -> None:
    assert longest_reward_gap([make_episode(r) for r in rewards]) == expected


def test_demonstration_itself_is_never_truncated() -> None:
    """A lane that plays exactly like the demonstration stays within a gap of 1."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        rewards = (rng.random(60) < 0.1).astype(float)
        rewards[-1] = 1.0
        config = staggered_config(actor__stagger_steps=0, actor__max_reward_gap=1.0)
        limits = build_limits(config, range(1), [make_episode(rewards.tolist())])
        assert play_limited(limits, rewards[:, None]) == [[]]


def test_reward_gap_needs_a_reward() -> None:
    config = staggered_config(actor__max_reward_gap=2.0)
    with pytest.raises(ConfigError, match="a demonstration with a positive reward"):
        build_limits(config, range(8), [make_episode([0, -1])])


def play_random_games(
    life_loss: str, steps: int
) -> tuple[list[Step], list[np.ndarray], PrioritizedReplay]:
    """Steps of four lanes of Breakout with random actions, lives after each step, and a replay."""
    pytest.importorskip("ale_py")
    overrides = {
        "actor__lanes": 4,
        "actor__epsilon_schedule": "constant",
        "actor__epsilon_end": 1.0,
    }
    config = staggered_config(env="ALE/Breakout-v5", actor__stagger_steps=0, **overrides)
    small = replace(config, network__convolutions=(2, 2, 2), network__hidden=(4,))
    with closing(make_envs(config.env, config.environment, 4, 0, 1)) as envs:
        weights = MasterWeights(make_network_builder(small.network)(envs.spec), torch.float32)
        limits = EpisodeLimits(np.zeros(4, np.int64), life_loss=life_loss)
        group = ActorGroup(envs, Actor(weights, envs.spec, config, range(4)), limits)
        replay = PrioritizedReplay(envs.spec, 4, 4 * (steps + SPARE_SLOTS), config.replay, 0.99)
        assert envs.lives is not None
        played, lives = [group.last_step], [envs.lives.copy()]
        for _ in range(steps):
            group.start_step()
            replay.add(group.collect_chunk())
            played.append(group.last_step)
            lives.append(envs.lives.copy())
    return played, lives, replay


def test_lost_life_is_terminal_and_a_new_game_begins() -> None:
    played, lives, _ = play_random_games("reset", steps=150)
    terminal = np.stack([step.terminal for step in played])
    first = np.stack([step.first for step in played])
    assert terminal.sum() > 4
    assert not any(step.truncated.any() for step in played)
    assert (np.stack(lives) == np.where(terminal, 4, 5)).all()
    assert np.array_equal(first[1:], terminal[:-1])


def test_lost_life_does_not_end_an_episode_by_default() -> None:
    played, lives, _ = play_random_games("continue", steps=150)
    terminal = np.stack([step.terminal for step in played])
    losses = np.diff(np.stack(lives), axis=0) < 0
    assert losses.sum() > 2 * terminal.sum()
    assert np.array_equal(terminal, np.stack(lives) == 0)


def test_terminal_life_loss_changes_returns_but_not_the_game() -> None:
    """The replay shows the same stacks, and no return or bootstrap reaches beyond a lost life."""
    steps = 150
    game, game_lives, _ = play_random_games("continue", steps)
    played, lives, replay = play_random_games("terminal", steps)
    assert np.array_equal(lives, game_lives)
    for ours, theirs in zip(played, game, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))
    is_lost = np.diff(np.stack(lives), axis=0, prepend=lives[:1]) < 0  # [T + 1, lanes]
    assert is_lost.sum() > 10
    slots = steps + SPARE_SLOTS
    masses, discounts = (x.view(4, slots, 2) for x in (replay.tree.masses, replay.discounts))
    for lane in range(4):
        for t in range(steps - 10):
            state = replay.gather_states(torch.tensor([lane * slots + t]))[0]
            assert np.array_equal(state, played[t].observation[lane])
            assert bool((masses[lane, t] == 0).all()) == is_lost[t, lane]
            if not is_lost[t, lane]:
                ends = [is_lost[t + 1 : t + 1 + n, lane].any() for n in (1, 10)]
                assert (discounts[lane, t] == 0).tolist() == ends


def test_life_loss_needs_an_atari_game() -> None:
    config = staggered_config(env="CartPole-v1", actor__lanes=4)
    with closing(make_envs("CartPole-v1", config.environment, 4, 0, 1)) as envs:
        weights = MasterWeights(make_network_builder(config.network)(envs.spec), torch.float32)
        limits = EpisodeLimits(np.zeros(4, np.int64), life_loss="reset")
        with pytest.raises(ConfigError, match="Atari games only, not CartPole-v1"):
            ActorGroup(envs, Actor(weights, envs.spec, config, range(4)), limits)
