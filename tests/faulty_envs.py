"""Small environments with predictable steps, faulty ones, and functions that step them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from lookfurther.config import EnvConfig
from lookfurther.envs import Envs, make_envs
from lookfurther.envs.subproc import SubprocEnvs
from lookfurther.types import Step


def make_lanes(
    env: str | Callable[[], gymnasium.Env], count: int = 1, seed: int = 0, **settings: Any
) -> Envs:
    return make_envs(env, EnvConfig(**settings), count, seed, 1)


def play_actions(envs: Envs, actions: np.ndarray) -> list[Step]:
    """The Steps after each row of `actions`."""
    steps = []
    for action in actions:
        envs.send(action)
        steps.append(envs.recv())
    return steps


def random_actions(envs: Envs, steps: int, seed: int = 0) -> np.ndarray:
    """Random actions [steps, lanes]."""
    return np.random.default_rng(seed).integers(0, envs.spec.actions, (steps, envs.lanes))


def steps_equal(a: Step, b: Step) -> bool:
    return all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def select_lanes(step: Step, numbers: list[int]) -> Step:
    return Step(*(x[numbers] for x in step))


class Counting(gymnasium.Env):
    """Observations are (step, last action, seed / 2^32); the reward is 10·step + action."""

    def __init__(self, length: int = 3, end: str = "terminal", start: int = 0) -> None:
        self.observation_space = Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = Discrete(3, start=start)
        self.length, self.end = length, end
        self.t, self.seed = 0, 0.0

    def make_observation(self, action: float) -> Any:
        return np.array([self.t, action, self.seed], np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        assert seed is not None
        self.t, self.seed = 0, seed / 2**32
        return self.make_observation(-1), {}

    def step(self, action: int) -> Any:
        self.t += 1
        over = self.t >= self.length
        terminal, truncated = over and self.end != "truncated", over and self.end != "terminal"
        return self.make_observation(action), 10 * self.t + action, terminal, truncated, {}


class Film(gymnasium.Env):
    """Observations are arrays whose values differ for every cell, step and seed."""

    def __init__(self, box: Box, length: int = 5) -> None:
        self.observation_space, self.action_space = box, Discrete(2)
        self.length, self.t, self.seed = length, 0, 0

    def make_observation(self) -> np.ndarray:
        box: Any = self.observation_space
        cells = np.arange(np.prod(box.shape), dtype=np.int64).reshape(box.shape)
        values = cells + 31 * self.t + self.seed + 1
        if box.dtype == bool:
            return values % 2 == 1
        return (values % (int(min(box.high.max(), 250)) + 1)).astype(box.dtype)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        assert seed is not None
        self.t, self.seed = 0, seed % 97
        return self.make_observation(), {}

    def step(self, action: int) -> Any:
        self.t += 1
        return self.make_observation(), 1.0, self.t == self.length, False, {}


class Faulty(Counting):
    """Counting, with `fault(self, where)` called in the constructor, reset and step.

    The fault may raise, or return replacements of the observation and the reward.
    """

    built = 0  # in this process; tests reset it

    def __init__(self, fault: Callable[[Faulty, str], Any], length: int = 4) -> None:
        super().__init__(length)
        Faulty.built += 1
        self.number, self.closed, self.fault = Faulty.built, False, fault
        fault(self, "build")

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        observation, info = super().reset(seed=seed)
        swap = self.fault(self, "reset") or {}
        return swap.get("observation", observation), info

    def step(self, action: int) -> Any:
        observation, reward, *rest = super().step(action)
        swap = self.fault(self, "step") or {}
        return swap.get("observation", observation), swap.get("reward", reward), *rest

    def close(self) -> None:
        self.closed = True


def fault_at(
    where: str, t: int, replacement: Any, number: int | None = None
) -> Callable[[Faulty, str], Any]:
    """A fault at step t: raises an exception, or returns any other replacement.

    With `number`, only in the environment that was built as that one.
    """

    def fault(env: Faulty, place: str) -> Any:
        if place != where or env.t != t or number not in (None, env.number):
            return None
        if isinstance(replacement, Exception):
            raise replacement
        return replacement

    return fault


class Moody(Counting):
    """Counting with randomness that does not depend on the seed."""

    def make_observation(self, action: float) -> np.ndarray:
        return np.frombuffer(os.urandom(3), np.uint8).astype(np.float32)


class Waiting(Counting):
    """Counting whose step waits until a file exists."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file

    def step(self, action: int) -> Any:
        while not self.file.exists():
            time.sleep(0.01)
        return super().step(action)


class Hanging(Counting):
    """Counting where the first step of all environments that share a file never ends."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file

    def step(self, action: int) -> Any:
        try:
            self.file.touch(exist_ok=False)
        except FileExistsError:
            return super().step(action)
        while True:
            time.sleep(60)


class Acting(Counting):
    """Counting that calls `act` once, at step `at` after its construction."""

    def __init__(self, act: Callable[[], None], at: int) -> None:
        super().__init__()
        self.act, self.left = act, at

    def step(self, action: int) -> Any:
        self.left -= 1
        if self.left == 0:
            self.act()
        return super().step(action)


class Dying(Counting):
    """Counting whose process exits at a step of the episode."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def step(self, action: int) -> Any:
        if self.t + 1 == self.at:
            os._exit(9)
        return super().step(action)


class Orphaning(Counting):
    """Counting whose process exits at a step; its child process exits when a file exists."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file

    def step(self, action: int) -> Any:
        if os.fork() == 0:
            while not self.file.exists():
                time.sleep(0.01)
        os._exit(9)


class PlusOne(gymnasium.Wrapper):
    def step(self, action: Any) -> Any:
        observation, reward, *rest = self.env.step(action)
        return observation, float(reward) + 1, *rest


class Twice(gymnasium.Wrapper):
    def step(self, action: Any) -> Any:
        observation, reward, *rest = self.env.step(action)
        return observation, float(reward) * 2, *rest


def make_subproc_lanes(env: Any, m: int, **settings: Any) -> SubprocEnvs:
    envs = make_lanes(env, m, processes=2, **settings)
    assert isinstance(envs, SubprocEnvs)
    return envs


def worker_pid(envs: SubprocEnvs, lane: int) -> int:
    """The process that steps a lane."""
    (found,) = (w.pid for w in envs._workers if w.low <= lane < w.high)
    assert found is not None
    return found
