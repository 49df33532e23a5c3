"""What the recorder plays: the face that Atari games and Gymnasium environments share."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from typing import Protocol

import numpy as np

from lookfurther.config import Environment
from lookfurther.demos.episode import Tape
from lookfurther.envs.factory import find
from lookfurther.errors import ConfigError
from lookfurther.recorder.atari import AtariGame
from lookfurther.recorder.episode_log import Script
from lookfurther.recorder.gym import GymGame
from lookfurther.recorder.keys import Button
from lookfurther.types import Spec


class Game(Protocol):
    """One environment in the hands of a player; an action lasts `repeat` frames."""

    spec: Spec
    buttons: tuple[Button, ...]
    repeat: int
    fps: float  # frames a second at normal speed
    turns: bool  # whether it waits for the player before each step
    aspect: float  # width of a pixel over its height
    rewindable: bool

    @property
    def lives(self) -> int | None: ...

    @property
    def end(self) -> int:
        """0, TERMINAL or TRUNCATED."""
        ...

    def begin(self, seed: int) -> None:
        """Open an episode."""
        ...

    def action(self, held: Set[str]) -> int:
        """What the buttons held down mean."""
        ...

    def frame(self, action: int) -> float:
        """Play one frame; the reward."""
        ...

    def plane(self) -> np.ndarray:
        """What training sees, [*spec.plane]."""
        ...

    def screen(self) -> np.ndarray:
        """What the player sees, [height, width, 3] uint8."""
        ...

    def keep(self, steps: int) -> None:
        """Remember how things stand after so many steps."""
        ...

    def seek(self, script: Script) -> bool:
        """Go to where these steps led; False, with nothing changed, if they lead elsewhere."""
        ...

    def tape(self, script: Script) -> Tape | None:
        """What a replay of these steps needs beside them."""
        ...

    def close(self) -> None: ...


def make_game(
    env: str, environment: Environment, keys: Sequence[str], real_time: bool, idle: int
) -> Game:
    """The game of an environment's id."""
    if find(env).namespace == "ALE":
        if keys:
            raise ConfigError("--keys is for other environments: Atari has its joystick's keys")
        return AtariGame(env, environment)
    return GymGame(env, environment, keys, real_time, idle)


def title(env: str) -> str:
    """Montezuma Revenge for ALE/MontezumaRevenge-v5."""
    namespace, _, name = env.rpartition("/")
    name = re.sub(r"-v[0-9]+$", "", name)
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name) if namespace == "ALE" else name
