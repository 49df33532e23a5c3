"""Human starts: Atari games taken up where a demonstration had come to."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from lookfurther.config import Environment
from lookfurther.envs.atari import SIDE
from lookfurther.envs.emulator import MEANINGS, Emulator
from lookfurther.envs.factory import Blueprint, find
from lookfurther.envs.subproc import Workers
from lookfurther.errors import EnvironmentFault

SAMENESS = 40  # steps over which a restored game is compared


class Start(NamedTuple):
    """A moment of a game, at the end of a step."""

    state: bytes  # of an Emulator
    held: int  # the action of the frame before it, which sticky actions may repeat


class Restarted(gymnasium.Env):
    """One game whose episodes begin at given moments; the seed of a reset chooses among them.

    Its planes, rewards and ends are those of the vector environment. Sticky actions are drawn
    here, frame by frame as the emulator would: its own random numbers are part of a state, so
    all episodes from one start would have the same.
    """

    def __init__(self, env: str, starts: Sequence[Start], environment: Environment) -> None:
        self.spec = find(env)
        self._starts, self._settings = starts, environment
        self._emulator = Emulator(env, environment.repeat)
        full = range(len(MEANINGS))
        self._actions = tuple(full) if environment.full_actions else self._emulator.actions
        self._cap = frames_of(environment)
        self.observation_space = Box(0, 255, (SIDE, SIDE), np.uint8)
        self.action_space = Discrete(len(self._actions))

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        self._random = np.random.default_rng(seed)
        start = self._starts[int(self._random.integers(len(self._starts)))]
        self._emulator.restore(start.state)
        self._held = start.held
        return self._emulator.plane()[0], {}

    def step(self, action: int) -> Any:
        emulator, sticky, reward, last = self._emulator, self._settings.sticky, 0.0, None
        for _ in range(self._settings.repeat):
            if not sticky or self._random.random() >= sticky:
                self._held = self._actions[action]
            if emulator.frames + 1 == self._cap:
                last = emulator.plane()  # the vector environment does not look at its last frame
            reward += emulator.frame(self._held)
            if emulator.over or last is not None:
                break
        plane = emulator.plane() if last is None else last
        cut = last is not None and not emulator.over
        return plane[0], reward, emulator.over, cut, {}


def frames_of(environment: Environment) -> int:
    """The longest episode in emulator frames, those before its start included."""
    return environment.cap * (environment.repeat if environment.cap_unit == "steps" else 1)


def make_started(
    env: str, starts: Sequence[Start], environment: Environment, lanes: int, seed: int
) -> Workers:
    """m lanes whose episodes begin at `starts`, stepped in `environment.processes`."""
    build = partial(Restarted, env, tuple(starts), environment)
    return Workers(Blueprint(build, environment), lanes, seed)


def check(env: str, repeat: int) -> None:
    """Refuse a game whose states another emulator than the one that gave them cannot take up.

    With ale-py 0.12 these are Q*bert and Tetris.
    """
    giver, taker = Emulator(env, repeat), Emulator(env, repeat)
    actions = np.random.default_rng(0).integers(len(MEANINGS), size=2 * SAMENESS).tolist()
    for action in actions[:SAMENESS]:
        giver.step(action)
    taker.restore(giver.state())
    for action in actions[SAMENESS:]:
        ours, theirs = taker.step(action), giver.step(action)
        if ours[1:] != theirs[1:] or not np.array_equal(ours[0], theirs[0]):
            raise EnvironmentFault(
                f"{env} cannot be taken up from a state of another emulator:"
                " evaluate it from no-op starts"
            )
