"""A Gymnasium environment in the hands of a player."""

from __future__ import annotations

import copy
import enum
from collections.abc import Sequence, Set
from dataclasses import replace
from typing import Any

import numpy as np

from lookfurther.config import EnvConfig
from lookfurther.envs.factory import EnvFactory, find_env_spec
from lookfurther.envs.lane import Lane
from lookfurther.errors import ConfigError, EnvironmentFault
from lookfurther.recorder.episode_log import RecordedStep, StepSequence, compress_plane
from lookfurther.recorder.keys import assign_keys
from lookfurther.types import TERMINAL, TRUNCATED


class GymGame:
    """A Gymnasium environment with Discrete actions; a twin of it proves what can be rewound."""

    action_repeat = 1
    pixel_aspect = 1.0
    lives = None

    def __init__(
        self,
        env: str,
        env_config: EnvConfig,
        key_options: Sequence[str],
        real_time: bool,
        idle_action: int,
    ) -> None:
        # An exception ends the take at once: a rebuilt environment could not go on with it.
        self._env_factory = EnvFactory(
            spec_with_rendering(env), replace(env_config, max_failures=1)
        )
        self._lane, self._replay_lane = (Lane(self._env_factory, i, 0) for i in range(2))
        inside = self._lane.ensure_env()
        assert self._lane.spec is not None
        self.spec = self._lane.spec
        self._action_names = action_names(inside.unwrapped, self.spec.actions)
        self.buttons = assign_keys(self._action_names, key_options)
        self.is_turn_based = not real_time
        self.fps = float(inside.metadata.get("render_fps") or 30)
        if not 0 <= idle_action < self.spec.actions:
            raise ConfigError(f"--idle {idle_action}: the actions are 0 to {self.spec.actions - 1}")
        self._idle_action = idle_action
        self.end_flag = 0
        self.is_rewindable = self._is_deterministic()
        self.render()  # what cannot be drawn is refused now

    def reset(self, seed: int) -> None:
        self._store_result(self._lane.begin_episode(seed=seed))

    def action_from_buttons(self, held: Set[str]) -> int:
        down = [number for number, name in enumerate(self._action_names) if name in held]
        return down[0] if down else self._idle_action

    def step_frame(self, action: int) -> float:
        return self._store_result(self._lane.step(action))

    def get_plane(self) -> np.ndarray:
        return self._plane

    def render(self) -> np.ndarray:
        env = self._lane.ensure_env()
        picture: Any = self._plane.transpose(1, 2, 0) if self._plane.ndim == 3 else self._plane
        if env.render_mode == "rgb_array":
            try:
                picture = env.render()
            except Exception as error:
                raise EnvironmentFault(f"{self.spec.env} cannot be shown: {error}") from error
        picture = np.asarray(picture)
        if picture.ndim != 3 or picture.shape[2] not in (1, 3) or picture.dtype != np.uint8:
            raise EnvironmentFault(
                f"{self.spec.env} cannot be shown: {picture.dtype} {picture.shape} is not RGB"
            )
        return np.broadcast_to(picture, (*picture.shape[:2], 3))

    def save_state(self, step: int) -> None:
        """An environment cannot be asked for its state: `seek` plays again from the seed."""

    def restore_steps(self, sequence: StepSequence) -> bool:
        """Play the steps again in the twin, which takes the place of a lane it equals."""
        kept = self._lane, self._plane, self.end_flag
        self._lane, self._replay_lane = self._replay_lane, self._lane
        try:
            equal = self._replay_matches(sequence)
        except EnvironmentFault:
            equal = False
        if not equal:
            self._replay_lane = self._lane
            self._lane, self._plane, self.end_flag = kept
        return equal

    def make_input_log(self, sequence: StepSequence) -> None:
        return None  # the seed and the actions are all

    def close(self) -> None:
        self._lane.close()
        self._replay_lane.close()

    def _store_result(self, step_result: Any) -> float:
        plane, reward, terminal, truncated, *_ = step_result
        shape = np.broadcast_to(plane, self.spec.plane)
        self._plane = np.array(shape, self.spec.dtype)
        self.end_flag = TERMINAL if terminal else TRUNCATED if truncated else 0
        return reward

    def _replay_matches(self, sequence: StepSequence) -> bool:
        """Whether the script, played from its seed, shows what it says."""
        self.reset(sequence.seed)
        if compress_plane(self._plane) != sequence.opening:
            return False
        for moment in sequence.moments:
            if self.end_flag:
                return False
            reward = self.step_frame(moment.action)
            if (
                RecordedStep(moment.action, reward, 1, self.end_flag, compress_plane(self._plane))
                != moment
            ):
                return False
        return True

    def _is_deterministic(self) -> bool:
        """Whether a short play is the same when played again: what cannot be is not rewound."""
        self.reset(0)
        opening, moments = compress_plane(self._plane), []
        while len(moments) < 20 and not self.end_flag:
            action = len(moments) % self.spec.actions
            reward = self.step_frame(action)
            moments.append(
                RecordedStep(action, reward, 1, self.end_flag, compress_plane(self._plane))
            )
        return self.restore_steps(StepSequence(0, opening, moments))


def spec_with_rendering(env: str) -> Any:
    """The environment's registration, asking for pictures where it can draw them."""
    spec = copy.deepcopy(find_env_spec(env))
    plain = EnvFactory(spec, EnvConfig()).build_env()
    modes = plain.metadata.get("render_modes") or []
    plain.close()
    if "rgb_array" in modes:
        spec.kwargs["render_mode"] = "rgb_array"
    return spec


def action_names(env: Any, count: int) -> tuple[str, ...]:
    """What an environment calls its actions, or their numbers."""
    named = getattr(env, "actions", None)
    if isinstance(named, type) and issubclass(named, enum.Enum) and len(named) == count:
        return tuple(member.name for member in named)
    meanings: Any = getattr(env, "get_action_meanings", list)
    if len(names := tuple(map(str, meanings()))) == count == len(set(names)):
        return names
    return tuple(map(str, range(count)))
