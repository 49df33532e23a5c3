"""Human starts: Atari games taken up where a demonstration had come to."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from lookfurther.config import EnvConfig
from lookfurther.envs.atari import SCREEN_SIZE
from lookfurther.envs.emulator import ACTION_MEANINGS, Emulator
from lookfurther.envs.factory import EnvFactory, find_env_spec
from lookfurther.envs.subproc import SubprocEnvs
from lookfurther.errors import EnvironmentFault

COMPARED_STEPS = 40  # steps over which a restored game is compared


class HumanStart(NamedTuple):
    """A moment of a game, at the end of a step."""

    state: bytes  # of an Emulator
    last_action: int  # the action of the frame before it, which sticky actions may repeat


class HumanStartEnv(gymnasium.Env):
    """One game whose episodes begin at given moments; the seed of a reset chooses among them.

    Its planes, rewards and ends are those of the vector environment. Sticky actions are drawn
    here, frame by frame as the emulator would: its own random numbers are part of a state, so
    all episodes from one start would have the same.
    """

    def __init__(self, env: str, starts: Sequence[HumanStart], env_config: EnvConfig) -> None:
        self.spec = find_env_spec(env)
        self._starts, self._env_config = starts, env_config
        self._emulator = Emulator(env, env_config.action_repeat)
        full = range(len(ACTION_MEANINGS))
        self._actions = tuple(full) if env_config.full_actions else self._emulator.minimal_actions
        self._max_frames = max_episode_frames(env_config)
        self.observation_space = Box(0, 255, (SCREEN_SIZE, SCREEN_SIZE), np.uint8)
        self.action_space = Discrete(len(self._actions))

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        self._random = np.random.default_rng(seed)
        start = self._starts[int(self._random.integers(len(self._starts)))]
        self._emulator.restore_state(start.state)
        self._last_action = start.last_action
        return self._emulator.current_plane()[0], {}

    def step(self, action: int) -> Any:
        emulator, sticky, reward, last = self._emulator, self._env_config.sticky_prob, 0.0, None
        for _ in range(self._env_config.action_repeat):
            if not sticky or self._random.random() >= sticky:
                self._last_action = self._actions[action]
            if emulator.frame_number + 1 == self._max_frames:
                last = (
                    emulator.current_plane()
                )  # the vector environment does not look at its last frame
            reward += emulator.step_frame(self._last_action)
            if emulator.is_over or last is not None:
                break
        plane = emulator.current_plane() if last is None else last
        cut = last is not None and not emulator.is_over
        return plane[0], reward, emulator.is_over, cut, {}


def max_episode_frames(env_config: EnvConfig) -> int:
    """The longest episode in emulator frames, those before its start included."""
    return env_config.max_episode_length * (
        env_config.action_repeat if env_config.episode_length_unit == "steps" else 1
    )


def make_human_start_envs(
    env: str, starts: Sequence[HumanStart], env_config: EnvConfig, lanes: int, seed: int
) -> SubprocEnvs:
    """m lanes whose episodes begin at `starts`, stepped in `environment.processes`."""
    build = partial(HumanStartEnv, env, tuple(starts), env_config)
    return SubprocEnvs(EnvFactory(build, env_config), lanes, seed)


def check_restorable(env: str, action_repeat: int) -> None:
    """Refuse a game whose states another emulator than the one that gave them cannot take up.

    With ale-py 0.12 these are Q*bert and Tetris.
    """
    giver, taker = Emulator(env, action_repeat), Emulator(env, action_repeat)
    actions = (
        np.random.default_rng(0).integers(len(ACTION_MEANINGS), size=2 * COMPARED_STEPS).tolist()
    )
    for action in actions[:COMPARED_STEPS]:
        giver.step(action)
    taker.restore_state(giver.clone_state())
    for action in actions[COMPARED_STEPS:]:
        ours, theirs = taker.step(action), giver.step(action)
        if ours[1:] != theirs[1:] or not np.array_equal(ours[0], theirs[0]):
            raise EnvironmentFault(
                f"{env} cannot be taken up from a state of another emulator:"
                " evaluate it from no-op starts"
            )
