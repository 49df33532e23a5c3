"""Atari lanes: exact episode lengths, frame stacks without gaps, and the game's own rewards."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import gymnasium
import numpy as np
import pytest

from lookfurther.config import EnvConfig
from lookfurther.envs import Envs, get_spec, make_envs
from lookfurther.errors import ConfigError, EnvironmentFault
from lookfurther.types import Step

pytest.importorskip("ale_py")

LEFT, FIRE_RIGHT = np.array([4]), np.array([11])  # of the full 18 actions


@contextmanager
def atari(game: str, lanes: int = 2, seed: int = 0, threads: int = 1, **settings) -> Iterator[Envs]:
    envs = make_envs(f"ALE/{game}-v5", EnvConfig(**settings), lanes, seed, threads)
    try:
        yield envs
    finally:
        envs.close()


def play_random(envs: Envs, steps: int, seed: int = 0) -> list[Step]:
    """The Steps of a reset and of random actions."""
    actions = np.random.default_rng(seed).integers(0, envs.spec.actions, (steps, envs.lanes))
    trajectory = [envs.reset()]
    for action in actions:
        envs.send(action)
        trajectory.append(envs.recv())
    return trajectory


def test_atari_spec_matches_paper():
    spec = get_spec("ALE/MontezumaRevenge-v5", EnvConfig())
    assert spec == ("ALE/MontezumaRevenge-v5", (1, 84, 84), 4, "uint8", 18, 255.0)
    assert spec.observation_shape == (4, 84, 84)
    minimal = get_spec("ALE/Pong-v5", EnvConfig(full_actions=False, frame_stack=2))
    assert (minimal.actions, minimal.observation_shape) == (6, (2, 84, 84))


@pytest.mark.parametrize(
    ("max_length", "unit", "repeat", "steps"),
    [
        (1, "steps", 4, 1),
        (9, "steps", 4, 9),
        (9, "steps", 3, 9),
        (9, "frames", 4, 3),
        (8, "frames", 4, 2),
    ],
)
def test_max_episode_length_is_exact(max_length, unit, repeat, steps):
    """An episode is truncated after `max_length` steps, or at the first step that reaches that many
    frames. The number of no-ops before it does not matter."""
    with atari(
        "Pong",
        max_episode_length=max_length,
        episode_length_unit=unit,
        action_repeat=repeat,
        noop_max=30,
    ) as envs:
        trajectory = play_random(envs, 3 * (steps + 1))
    for t, step in enumerate(trajectory):
        age = t % (steps + 1)
        assert (step.first == (age == 0)).all()
        assert (step.truncated == (age == steps)).all()
        assert not step.terminal.any()


def test_stacked_frames_have_no_gaps():
    """The newest plane of x_t is the second newest of x_{t+1}, except across a reset, which has
    three zero planes and a frame. Resets follow ends and nothing else. Their reward is 0."""
    with atari("Breakout", lanes=3, threads=2, max_episode_length=60) as envs:
        trajectory = play_random(envs, 200)
    assert trajectory[0].first.all()
    for before, after in pairwise(trajectory):
        ended = before.terminal | before.truncated
        assert (after.first == ended).all()
        assert not (after.terminal & after.truncated).any()
        continues = ~after.first
        assert (after.observation[continues, :-1] == before.observation[continues, 1:]).all()
        assert (after.reward[after.first] == 0).all()
    for step in trajectory:
        opening = step.observation[step.first]
        assert not opening[:, :3].any()
        assert opening[:, 3].any(axis=(1, 2)).all()
    assert sum(step.first.sum() for step in trajectory) >= 9
    assert any(step.truncated.any() for step in trajectory)


def test_returned_steps_are_never_overwritten():
    with atari("Breakout", lanes=3, threads=2) as envs:
        trajectory = [envs.reset()]
        copies = [trajectory[0].observation.copy()]
        for _ in range(40):
            envs.send(np.array([1, 3, 4]))
            trajectory.append(envs.recv())
            copies.append(trajectory[-1].observation.copy())
    assert all(
        np.array_equal(step.observation, x) for step, x in zip(trajectory, copies, strict=True)
    )
    assert len({step.observation.ctypes.data for step in trajectory}) == len(trajectory)


@pytest.fixture(scope="module")
def game() -> list[Step]:
    """One whole game of Breakout, lost by always pressing fire and right."""
    with atari("Breakout", lanes=1, noop_max=0) as envs:
        trajectory = [envs.reset()]
        while not trajectory[-1].terminal[0]:
            envs.send(FIRE_RIGHT)
            trajectory.append(envs.recv())
    return trajectory


def test_rewards_and_end_match_plain_emulator(game: list[Step]):
    """A plain single emulator with the same actions agrees step by step. Of Breakout's five lives
    only the last one ends the episode."""
    plain = gymnasium.make(
        "ALE/Breakout-v5", repeat_action_probability=0.0, full_action_space=True, frameskip=4
    )
    plain.reset(seed=0)
    lives = set()
    for step in game[1:]:
        _, reward, terminal, _, info = plain.step(FIRE_RIGHT[0])
        lives.add(info["lives"])
        assert (step.reward[0], step.terminal[0]) == (reward, terminal)
    plain.close()
    assert lives == {5, 4, 3, 2, 1, 0}
    assert sum(step.reward[0] for step in game) > 0


def test_end_at_max_length_is_terminal(game: list[Step]):
    """A game that is over exactly at the maximum length is terminal: nothing is bootstrapped."""
    with atari("Breakout", lanes=1, noop_max=0, max_episode_length=len(game) - 1) as envs:
        last = envs.reset()
        for _ in game[1:]:
            envs.send(FIRE_RIGHT)
            last = envs.recv()
        envs.send(FIRE_RIGHT)
        opening = envs.recv()
    assert (last.terminal[0], last.truncated[0], last.first[0]) == (True, False, False)
    assert (opening.terminal[0], opening.truncated[0], opening.first[0]) == (False, False, True)
    assert opening.reward[0] == 0
    assert not opening.observation[0, :3].any()


def test_rewards_are_not_clipped():
    """A pellet of Ms. Pac-Man is worth 10; clipped it would be 1."""
    with atari("MsPacman", lanes=1, noop_max=0) as envs:
        envs.reset()
        rewards = []
        for _ in range(100):
            envs.send(LEFT)
            rewards.append(envs.recv().reward)
    assert rewards[0].dtype == np.float32
    assert set(np.concatenate(rewards).tolist()) == {0.0, 10.0}


def trajectories_equal(a: list[Step], b: list[Step]) -> bool:
    return all(
        np.array_equal(x, y) for s, t in zip(a, b, strict=True) for x, y in zip(s, t, strict=True)
    )


def test_episodes_depend_on_seed_not_threads():
    trajectories = []
    for seed, threads in [(5, 1), (5, 2), (6, 1)]:
        with atari(
            "Breakout", lanes=2, seed=seed, threads=threads, sticky_prob=0.25, max_episode_length=9
        ) as envs:
            trajectories.append(play_random(envs, 25))
    assert trajectories_equal(trajectories[0], trajectories[1])
    assert not trajectories_equal(trajectories[0], trajectories[2])


def test_atari_restore_begins_new_episodes():
    with atari("Pong") as envs:
        play_random(envs, 5)
        assert envs.state() == {}
        step, continued = envs.restore({})
        assert step.first.all()
        assert not continued.any()


def test_close_ends_threads_and_is_idempotent():
    before = set(os.listdir("/proc/self/task"))  # some of these may end in the meantime
    envs = make_envs("ALE/Pong-v5", EnvConfig(), 4, 0, 3)
    envs.reset()
    envs.send(np.zeros(4, int))
    assert set(os.listdir("/proc/self/task")) - before
    envs.close()
    envs.close()
    assert not set(os.listdir("/proc/self/task")) - before


def test_unsupported_atari_settings_raise(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ConfigError, match="Did you mean: `Pong`"):
        get_spec("ALE/Pongg-v5", EnvConfig())
    with pytest.raises(ConfigError, match="old or short name of an Atari game: use ALE/"):
        get_spec("PongNoFrameskip-v4", EnvConfig())
    with pytest.raises(ConfigError, match="wrappers do not fit ALE/Pong-v5"):
        get_spec("ALE/Pong-v5", EnvConfig(wrappers=("gymnasium.wrappers:FlattenObservation",)))
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(EnvironmentFault, match=r"needs ale_py: install lookfurther\[atari\]$"):
        get_spec("ALE/Pong-v5", EnvConfig())
