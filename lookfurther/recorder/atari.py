"""An Atari game in the hands of a player."""

from __future__ import annotations

from collections.abc import Set

import numpy as np

from lookfurther.config import Environment
from lookfurther.demos.episode import Tape
from lookfurther.envs import describe
from lookfurther.envs.emulator import MEANINGS, Emulator
from lookfurther.errors import ConfigError
from lookfurther.recorder.episode_log import Moment, Script, actions, pack
from lookfurther.recorder.keys import STICK, stick
from lookfurther.types import TERMINAL, TRUNCATED

RECENT = 2048  # newest steps of which every emulator state is kept (15 kB each)
SPARSE = 64  # of older steps, every so many: together under 40 MB for an hour


class AtariGame:
    """An Atari game at its own 60 frames a second, with every state of the last minutes kept."""

    buttons = STICK
    fps = 60.0
    turns = False
    aspect = 5 / 3  # of the pixels on a television, near enough
    rewindable = True

    def __init__(self, env: str, environment: Environment) -> None:
        if not environment.full_actions:
            raise ConfigError(
                "the recorder plays all 18 actions: leave environment.full_actions on"
            )
        self.spec = describe(env, environment)
        self.repeat = environment.repeat
        self._env, self._sticky = env, environment.sticky
        steps = environment.cap_unit == "steps"
        self._cap = environment.cap * (environment.repeat if steps else 1)  # frames
        self._states: dict[int, bytes] = {}

    @property
    def lives(self) -> int:
        return self._emulator.lives

    @property
    def end(self) -> int:
        if self._emulator.over:
            return TERMINAL
        return TRUNCATED if self._emulator.frames >= self._cap else 0

    def begin(self, seed: int) -> None:
        self._emulator = Emulator(self._env, self.repeat, self._sticky, seed)
        self._emulator.reset()
        self._states = {}
        self.keep(0)

    def action(self, held: Set[str]) -> int:
        return MEANINGS.index(stick(held))

    def frame(self, action: int) -> float:
        return self._emulator.frame(action)

    def plane(self) -> np.ndarray:
        return self._emulator.plane()

    def screen(self) -> np.ndarray:
        return self._emulator.screen()

    def keep(self, steps: int) -> None:
        if self._sticky:
            return  # no state tells which action the emulator would repeat
        self._states[steps] = self._emulator.state()
        if (steps - RECENT) % SPARSE:
            self._states.pop(steps - RECENT, None)

    def seek(self, script: Script) -> bool:
        """From the nearest state before the last of the steps, which is played to be seen."""
        if not script.moments:
            self.begin(script.seed)
            return pack(self.plane()) == script.opening
        before = self._emulator.state()
        start = len(script.moments) - 1
        while start and start not in self._states:
            start -= 1
        if start:
            self._emulator.restore(self._states[start])
        else:
            self._emulator.reset()
        for number, moment in enumerate(script.moments[start:], start):
            reward = sum(self.frame(moment.action) for _ in range(moment.frames))
            if Moment(moment.action, reward, moment.frames, self.end, pack(self.plane())) != moment:
                self._emulator.restore(before)
                return False
            self.keep(number + 1)
        return True

    def tape(self, script: Script) -> Tape:
        return Tape(actions(script.moments), np.zeros((0, 3), np.int32), script.seed)

    def close(self) -> None:
        """Nothing is held but memory."""
