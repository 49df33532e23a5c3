"""A Gymnasium environment for the recorder."""

from __future__ import annotations

import enum
from collections.abc import Sequence, Set
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np

from lookfurther.config import EnvConfig
from lookfurther.envs.factory import EnvFactory, find_env_spec, find_rendering_spec
from lookfurther.envs.lane import Lane
from lookfurther.envs.naming import base_name
from lookfurther.errors import ConfigError, EnvironmentFault
from lookfurther.recorder.episode_log import RecordedStep, StepSequence, compress_plane
from lookfurther.recorder.keys import KNOWN_ACTIONS, assign_keys
from lookfurther.types import TERMINAL, TRUNCATED


class GymGame:
    """A Gymnasium environment with Discrete actions.

    It rewinds by replaying from the seed in a second environment.
    """

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
        # An exception ends the episode: a rebuilt environment could not continue it.
        env_spec = find_rendering_spec(env) if can_render(env) else find_env_spec(env)
        self._env_factory = EnvFactory(env_spec, replace(env_config, max_failures=1))
        self._lane, self._replay_lane = (Lane(self._env_factory, i, 0) for i in range(2))
        env_object = self._lane.ensure_env()
        assert self._lane.spec is not None
        self.spec = self._lane.spec
        self._action_names = env_action_names(env_object.unwrapped, self.spec.actions)
        self.buttons = assign_keys(self._action_names, key_options)
        self.is_turn_based = not real_time
        self.fps = float(env_object.metadata.get("render_fps") or 30)
        if not 0 <= idle_action < self.spec.actions:
            raise ConfigError(f"--idle {idle_action}: the actions are 0 to {self.spec.actions - 1}")
        self._idle_action = idle_action
        self.end_flag = 0
        self.is_rewindable = self._is_deterministic()
        self.render()  # raises now if the environment cannot be rendered

    def reset(self, seed: int) -> None:
        self._store_result(self._lane.begin_episode(seed=seed))

    def action_from_buttons(self, held: Set[str]) -> int:
        actions = [i for i, name in enumerate(self._action_names) if name in held]
        return actions[0] if actions else self._idle_action

    def step_frame(self, action: int) -> float:
        return self._store_result(self._lane.step(action))

    def get_plane(self) -> np.ndarray:
        return self._plane

    def render(self) -> np.ndarray:
        env = self._lane.ensure_env()
        screen: Any = self._plane.transpose(1, 2, 0) if self._plane.ndim == 3 else self._plane
        if env.render_mode == "rgb_array":
            try:
                screen = env.render()
            except Exception as error:
                raise EnvironmentFault(f"{self.spec.env} cannot be rendered: {error}") from error
        screen = np.asarray(screen)
        if screen.ndim != 3 or screen.shape[2] not in (1, 3) or screen.dtype != np.uint8:
            raise EnvironmentFault(
                f"{self.spec.env} cannot be rendered: {screen.dtype} {screen.shape} is not RGB"
            )
        return np.broadcast_to(screen, (*screen.shape[:2], 3))

    def save_state(self, step: int) -> None:
        """Do nothing: `restore_steps` replays from the seed."""

    def restore_steps(self, sequence: StepSequence) -> bool:
        """Replay the steps in the second lane and swap the two if the replay matches."""
        before = self._lane, self._plane, self.end_flag
        self._lane, self._replay_lane = self._replay_lane, self._lane
        try:
            is_equal = self._replay_matches(sequence)
        except EnvironmentFault:
            is_equal = False
        if not is_equal:
            self._replay_lane = self._lane
            self._lane, self._plane, self.end_flag = before
        return is_equal

    def make_input_log(self, sequence: StepSequence) -> None:
        return None  # the seed and the actions are enough

    def close(self) -> None:
        self._lane.close()
        self._replay_lane.close()

    def _store_result(self, step_result: Any) -> float:
        plane, reward, terminal, truncated, *_ = step_result
        self._plane = np.array(np.broadcast_to(plane, self.spec.plane), self.spec.dtype)
        self.end_flag = TERMINAL if terminal else TRUNCATED if truncated else 0
        return reward

    def _replay_matches(self, sequence: StepSequence) -> bool:
        """Whether a replay from the seed gives the recorded planes and rewards."""
        self.reset(sequence.seed)
        if compress_plane(self._plane) != sequence.first_plane:
            return False
        return all(
            not self.end_flag and self._record_step(step.action) == step for step in sequence.steps
        )

    def _record_step(self, action: int) -> RecordedStep:
        reward = self.step_frame(action)
        return RecordedStep(action, reward, 1, self.end_flag, compress_plane(self._plane))

    def _is_deterministic(self) -> bool:
        """Whether a short episode replays equally; only then can the game be rewound."""
        self.reset(0)
        first_plane = compress_plane(self._plane)
        steps: list[RecordedStep] = []
        while len(steps) < 20 and not self.end_flag:
            steps.append(self._record_step(len(steps) % self.spec.actions))
        return self.restore_steps(StepSequence(0, first_plane, steps))


def can_render(env: str) -> bool:
    """Whether the environment renders RGB images."""
    with closing(EnvFactory(find_env_spec(env), EnvConfig()).build_env()) as env_object:
        return "rgb_array" in (env_object.metadata.get("render_modes") or [])


def env_action_names(env: Any, count: int) -> tuple[str, ...]:
    """Return the names of the actions, or their numbers if they have no names."""
    actions = getattr(env, "actions", None)
    if isinstance(actions, type) and issubclass(actions, enum.Enum) and len(actions) == count:
        return tuple(member.name for member in actions)
    meanings: Any = getattr(env, "get_action_meanings", list)
    if len(names := tuple(map(str, meanings()))) == count == len(set(names)):
        return names
    known = KNOWN_ACTIONS.get(base_name(env.spec.id) if env.spec else "", ())
    return known if len(known) == count else tuple(map(str, range(count)))
