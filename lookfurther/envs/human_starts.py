"""Human starts: Atari episodes that begin in the middle of a demonstration."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from lookfurther.config import EnvConfig
from lookfurther.envs.atari import SCREEN_SIZE, max_episode_frames
from lookfurther.envs.clock import make_clock_display
from lookfurther.envs.emulator import ACTION_MEANINGS, Emulator
from lookfurther.envs.factory import EnvFactory, find_env_spec
from lookfurther.envs.subproc import SubprocEnvs
from lookfurther.errors import EnvironmentFault

COMPARED_STEPS = 40  # steps over which a restored game is compared


class HumanStart(NamedTuple):
    """The state of a game at the end of a step."""

    state: bytes  # from Emulator.clone_state
    last_action: int  # of the frame before, which sticky actions may repeat


class HumanStartEnv(gymnasium.Env):
    """One game whose episodes begin at given states; the seed of a reset chooses among them.

    Its planes, rewards and ends equal those of the vector environment. Sticky actions are drawn
    here, frame by frame as in the emulator. The emulator itself would draw the same ones in all
    episodes from one start, because its random state is part of a saved state.
    """

    def __init__(self, env: str, starts: Sequence[HumanStart], env_config: EnvConfig) -> None:
        self.spec = find_env_spec(env)
        self._starts, self._env_config = starts, env_config
        clock = make_clock_display(env_config)
        self._emulator = Emulator(env, env_config.action_repeat, clock=clock)
        all_actions = tuple(range(len(ACTION_MEANINGS)))
        self._actions = all_actions if env_config.full_actions else self._emulator.minimal_actions
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
        emulator, sticky_prob = self._emulator, self._env_config.sticky_prob
        reward, last_plane = 0.0, None
        for _ in range(emulator.frames_to_step_end):
            if not sticky_prob or self._random.random() >= sticky_prob:
                self._last_action = self._actions[action]
            if emulator.frame_number + 1 == self._max_frames:
                last_plane = emulator.current_plane()  # the vector environment skips its last frame
            reward += emulator.step_frame(self._last_action)
            if emulator.is_over or last_plane is not None:
                break
        plane = emulator.current_plane() if last_plane is None else last_plane
        truncated = last_plane is not None and not emulator.is_over
        return plane[0], reward, emulator.is_over, truncated, {}


def make_human_start_envs(
    env: str, starts: Sequence[HumanStart], env_config: EnvConfig, lanes: int, seed: int
) -> SubprocEnvs:
    """m lanes whose episodes begin at `starts`, in `env_config.processes` worker processes."""
    build = partial(HumanStartEnv, env, tuple(starts), env_config)
    return SubprocEnvs(EnvFactory(build, env_config), lanes, seed)


def check_restorable(
    env: str, action_repeat: int, fix: str = "evaluate it from no-op starts"
) -> None:
    """Refuse a game whose saved states only the emulator that saved them can restore.

    With ale-py 0.12 these are Q*bert and Tetris. The message ends with what to do instead.
    """
    original, restored = Emulator(env, action_repeat), Emulator(env, action_repeat)
    random = np.random.default_rng(0)
    actions = random.integers(len(ACTION_MEANINGS), size=2 * COMPARED_STEPS).tolist()
    for action in actions[:COMPARED_STEPS]:
        original.step(action)
    restored.restore_state(original.clone_state())
    for action in actions[COMPARED_STEPS:]:
        expected_plane, *expected = original.step(action)
        plane, *outcome = restored.step(action)
        if outcome != expected or not np.array_equal(plane, expected_plane):
            raise EnvironmentFault(f"{env} cannot restore a state of another emulator: {fix}")
