"""Atari games: ale-py's vector environment with the paper's settings (Sec. 4, App. C, Table 6)."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np
from gymnasium.envs.registration import EnvSpec

from lookfurther.config import EnvConfig
from lookfurther.envs.clock import draw_clock_in_stacks, make_clock_display
from lookfurther.errors import ConfigError
from lookfurther.types import Spec, Step

if TYPE_CHECKING:
    from ale_py.vector_env import AtariVectorEnv

SCREEN_SIZE = 84  # height and width of a greyscale frame, in pixels
NOOP_MAX = 30  # no-op frames at the start of an evaluation


class AtariEnvs:
    """m games stepped by ale-py's own threads. ale-py cannot save the state of these emulators."""

    dropped_episodes = 0
    restarts = 0
    replacements = ()

    def __init__(
        self, env_spec: EnvSpec, env_config: EnvConfig, lanes: int, seed: int, threads: int
    ) -> None:
        if env_config.wrappers:
            raise ConfigError(
                f"environment.wrappers do not fit {env_spec.id}: Atari is adapted here"
            )
        frame_stack = env_config.frame_stack or 4
        self._vector_env = _make_vector_env(
            env_spec.kwargs["game"], env_config, lanes, frame_stack, threads
        )
        # ale-py would use seed, seed + 1, ... for the lanes: runs with near seeds would share them.
        states = np.random.SeedSequence(seed).generate_state(lanes)
        self._seeds: np.ndarray | None = (states >> 1).astype(np.int32)
        self._ended = np.zeros(lanes, bool)
        self._truncated = np.zeros(lanes, bool)  # by `truncate`, not by the emulator
        self.lanes = lanes
        # Emulator frames of each episode, with the no-op frames of its start [m].
        self.episode_frames = np.zeros(lanes, np.int32)
        self.lives = np.zeros(lanes, np.int32)
        self._clock = make_clock_display(env_config)
        self._elapsed_steps = np.zeros(lanes, np.int32)  # of each episode, without no-op frames
        actions = int(self._vector_env.single_action_space.n)  # type: ignore[attr-defined]
        plane = (1, SCREEN_SIZE, SCREEN_SIZE)
        self.spec = Spec(env_spec.id, plane, frame_stack, "uint8", actions, 255.0)

    def reset(self) -> Step:
        observation, info = self._vector_env.reset(seed=self._seeds)
        self.episode_frames, self.lives = info["episode_frame_number"], info["lives"]
        self._seeds = None  # a second reset begins other episodes
        self._ended, self._truncated = np.zeros((2, self.lanes), bool)
        self._draw_clock(observation, np.ones(self.lanes, bool))
        no_lanes = np.zeros(self.lanes, bool)
        reward = np.zeros(self.lanes, np.float32)
        return Step(observation, reward, no_lanes, no_lanes, np.ones(self.lanes, bool), no_lanes)

    def send(self, actions: np.ndarray) -> None:
        self._vector_env.send(np.asarray(actions, np.int64))

    def recv(self) -> Step:
        # ale-py returns new arrays every time: no copy is needed.
        observation, reward, terminal, truncated, info = self._vector_env.recv()
        if self._truncated.any():
            observation, info = self._vector_env.reset(options={"reset_mask": self._truncated})
            reward = np.where(self._truncated, 0, reward)
            terminal, truncated = terminal & ~self._truncated, truncated & ~self._truncated
            self._truncated = np.zeros(self.lanes, bool)
        self.episode_frames, self.lives = info["episode_frame_number"], info["lives"]
        first, self._ended = self._ended, terminal | truncated
        self._draw_clock(observation, first)
        dropped = np.zeros(self.lanes, bool)
        reward = reward.astype(np.float32)
        self._last_step = Step(observation, reward, terminal, truncated, first, dropped)
        return self._last_step

    def _draw_clock(self, observation: np.ndarray, first: np.ndarray) -> None:
        """Draw the time since power-on into the frame stacks, if the setting says so."""
        self._elapsed_steps = np.where(first, 0, self._elapsed_steps + 1)
        frames, steps = self.episode_frames, self._elapsed_steps
        draw_clock_in_stacks(observation, frames, steps, self._clock)

    def truncate(self, lanes: np.ndarray) -> Step:
        self._truncated, self._ended = lanes, self._ended | lanes
        return self._last_step._replace(truncated=self._last_step.truncated | lanes)

    def state(self) -> dict[str, np.ndarray]:
        return {}

    def restore(self, state: dict[str, np.ndarray]) -> tuple[Step, np.ndarray]:
        return self.reset(), np.zeros(self.lanes, bool)

    def close(self) -> None:
        with contextlib.suppress(AttributeError):  # already closed
            # ale-py stops its threads when the last reference is deleted, not on close().
            del self._vector_env


def max_episode_frames(env_config: EnvConfig) -> int:
    """The maximum episode length in emulator frames, including those before a human start."""
    in_steps = env_config.episode_length_unit == "steps"
    return env_config.max_episode_length * (env_config.action_repeat if in_steps else 1)


def _make_vector_env(
    game: str, env_config: EnvConfig, lanes: int, frame_stack: int, threads: int
) -> AtariVectorEnv:
    """ale-py's vector environment with every setting where its default differs from the paper."""
    from ale_py.vector_env import AtariVectorEnv  # an optional extra
    from gymnasium.vector import AutoresetMode

    return AtariVectorEnv(
        game,
        lanes,
        num_threads=threads,
        max_num_frames_per_episode=max_episode_frames(env_config),
        repeat_action_probability=env_config.sticky_prob,
        full_action_space=env_config.full_actions,
        autoreset_mode=AutoresetMode.NEXT_STEP,
        img_height=SCREEN_SIZE,
        img_width=SCREEN_SIZE,
        grayscale=True,
        stack_num=frame_stack,
        frameskip=env_config.action_repeat,
        maxpool=True,
        noop_max=env_config.noop_max,
        episodic_life=False,
        reward_clipping=False,
        use_fire_reset=False,
    )
