"""Environments for tests of the recorder."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class UnrenderableEnv(gymnasium.Env):
    """Has no render mode and no image observations."""

    observation_space = Box(-1, 1, (3,), np.float32)
    action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        return np.zeros(3, np.float32), {}

    def step(self, action: int):
        return np.zeros(3, np.float32), 0.0, False, False, {}


class NondeterministicEnv(gymnasium.Env):
    """An image environment without a render mode, deterministic only if `repeats`."""

    observation_space = Box(0, 255, (4, 4, 3), np.uint8)
    action_space = Discrete(2)

    def __init__(self, repeats: bool = False, breaks: int = 1000) -> None:
        self.repeats, self.breaks = repeats, breaks

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        self.rng = np.random.default_rng(seed if self.repeats else None)
        self.steps = 0
        return self._observe(), {}

    def step(self, action: int):
        self.steps += 1
        if self.steps == self.breaks:
            raise RuntimeError("out of order")
        return self._observe(), 1.0, False, False, {}

    def _observe(self) -> np.ndarray:
        return self.rng.integers(0, 256, (4, 4, 3), np.uint8)


gymnasium.register(
    "lookfurther/Nondeterministic-v0", lambda **options: NondeterministicEnv(**options)
)
gymnasium.register("lookfurther/Unrenderable-v0", lambda **options: UnrenderableEnv(**options))
