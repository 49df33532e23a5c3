"""The common interface of Atari games and Gymnasium environments in the recorder."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Protocol

import numpy as np

from lookfurther.config import EnvConfig
from lookfurther.demos.episode import InputLog
from lookfurther.envs.naming import is_atari
from lookfurther.errors import ConfigError
from lookfurther.recorder.atari import AtariGame
from lookfurther.recorder.episode_log import StepSequence
from lookfurther.recorder.gym import GymGame
from lookfurther.recorder.keys import Button
from lookfurther.types import Spec


class PlayableGame(Protocol):
    """An environment that a person plays; an action lasts `action_repeat` frames."""

    spec: Spec
    buttons: tuple[Button, ...]
    action_repeat: int
    fps: float  # frames per second at normal speed
    is_turn_based: bool  # whether each step waits for a key
    pixel_aspect: float  # width / height of a pixel
    is_rewindable: bool

    @property
    def lives(self) -> int | None: ...

    @property
    def end_flag(self) -> int:
        """0, TERMINAL or TRUNCATED."""
        ...

    def reset(self, seed: int) -> None:
        """Start an episode."""
        ...

    def action_from_buttons(self, held: Set[str]) -> int:
        """Return the action for the held buttons."""
        ...

    def step_frame(self, action: int) -> float:
        """Play one frame and return its reward."""
        ...

    def get_plane(self) -> np.ndarray:
        """Return the observation plane of training, [*spec.plane]."""
        ...

    def render(self) -> np.ndarray:
        """Return the screen for the player, [height, width, 3] uint8."""
        ...

    def save_state(self, step: int) -> None:
        """Save the state after `step` steps, if the game supports it."""
        ...

    def restore_steps(self, sequence: StepSequence) -> bool:
        """Restore the state after these steps; if they do not replay equally, change nothing
        and return False."""
        ...

    def make_input_log(self, sequence: StepSequence) -> InputLog | None:
        """Return the inputs per frame that a replay of these steps needs, if any."""
        ...

    def close(self) -> None: ...


def make_game(
    env: str, env_config: EnvConfig, key_options: Sequence[str], real_time: bool, idle_action: int
) -> PlayableGame:
    """Create the game for an environment id."""
    if is_atari(env):
        if key_options:
            raise ConfigError(
                "--keys does not apply to Atari, which has fixed joystick keys: remove it"
            )
        return AtariGame(env, env_config)
    return GymGame(env, env_config, key_options, real_time, idle_action)
