"""What the recorder plays: the face that Atari games and Gymnasium environments share."""

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
    """One environment in the hands of a player; an action lasts `repeat` frames."""

    spec: Spec
    buttons: tuple[Button, ...]
    action_repeat: int
    fps: float  # frames a second at normal speed
    is_turn_based: bool  # whether it waits for the player before each step
    pixel_aspect: float  # width of a pixel over its height
    is_rewindable: bool

    @property
    def lives(self) -> int | None: ...

    @property
    def end_flag(self) -> int:
        """0, TERMINAL or TRUNCATED."""
        ...

    def reset(self, seed: int) -> None:
        """Open an episode."""
        ...

    def action_from_buttons(self, held: Set[str]) -> int:
        """What the buttons held down mean."""
        ...

    def step_frame(self, action: int) -> float:
        """Play one frame; the reward."""
        ...

    def get_plane(self) -> np.ndarray:
        """What training sees, [*spec.plane]."""
        ...

    def render(self) -> np.ndarray:
        """What the player sees, [height, width, 3] uint8."""
        ...

    def save_state(self, step: int) -> None:
        """Remember how things stand after so many steps."""
        ...

    def restore_steps(self, sequence: StepSequence) -> bool:
        """Go to where these steps led; False, with nothing changed, if they lead elsewhere."""
        ...

    def make_input_log(self, sequence: StepSequence) -> InputLog | None:
        """What a replay of these steps needs beside them."""
        ...

    def close(self) -> None: ...


def make_game(
    env: str, env_config: EnvConfig, key_options: Sequence[str], real_time: bool, idle_action: int
) -> PlayableGame:
    """The game of an environment's id."""
    if is_atari(env):
        if key_options:
            raise ConfigError("--keys is for other environments: Atari has its joystick's keys")
        return AtariGame(env, env_config)
    return GymGame(env, env_config, key_options, real_time, idle_action)
