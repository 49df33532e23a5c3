"""An emulator that plays an agent's steps from saved states, for searches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lookfurther.demos.episode import InputLog
from lookfurther.envs.emulator import load_game, make_ale
from lookfurther.envs.factory import find_game

if TYPE_CHECKING:
    from ale_py import ALEState


class StepEmulator:
    """The game of an input log from power-on, in steps of `action_repeat` frames."""

    def __init__(self, input_log: InputLog, env: str, action_repeat: int) -> None:
        self.action_repeat = action_repeat
        self.ale = make_ale(seed=input_log.seed)
        load_game(self.ale, find_game(env), input_log.variant)

    def play_step(self, action: int) -> float:
        """Hold an action for a step; returns the reward."""
        return float(sum(self.ale.act(action) for _ in range(self.action_repeat)))

    def play_observed_step(self, action: int) -> tuple[float, np.ndarray]:
        """Hold an action for a step; returns the reward and the maximum of the last two frames."""
        reward = sum(self.ale.act(action) for _ in range(self.action_repeat - 1))
        frame = self.ale.getScreenGrayscale()
        reward += self.ale.act(action)
        return float(reward), np.maximum(frame, self.ale.getScreenGrayscale())

    def play_from(self, state: ALEState, actions: Sequence[int]) -> float:
        """Play steps after a state; returns their rewards."""
        self.ale.restoreState(state)
        return sum(self.play_step(action) for action in actions)
