"""MiniGrid and BabyAI levels as networks like them: the whole grid, one plane for each property."""

from __future__ import annotations

from collections.abc import Sequence

import gymnasium
import numpy as np
from gymnasium.spaces import Box

NUM_OBJECTS, NUM_COLOURS, NUM_STATES = (
    11,
    6,
    4,
)  # MiniGrid's own counts; an agent's state is its direction


class OneHotGrid(gymnasium.ObservationWrapper):
    """The full grid as 0 or 1 per cell and property: [width, height, 21] uint8.

    What the agent carries is missing from the grid, and so can be told from it.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        grid = env.unwrapped
        width, height = grid.width, grid.height  # type: ignore[attr-defined]
        planes = NUM_OBJECTS + NUM_COLOURS + NUM_STATES
        self.observation_space = Box(0, 1, (width, height, planes), np.uint8)
        self._identities = [
            np.eye(n, dtype=np.uint8) for n in (NUM_OBJECTS, NUM_COLOURS, NUM_STATES)
        ]

    def observation(self, observation: object) -> np.ndarray:
        grid = self.env.unwrapped
        cells = grid.grid.encode()  # type: ignore[attr-defined]
        x, y = grid.agent_pos  # type: ignore[attr-defined]
        cells[x, y] = 10, 0, grid.agent_dir  # type: ignore[attr-defined]
        return np.concatenate([eye[cells[..., i]] for i, eye in enumerate(self._identities)], -1)


class LayoutSubset(gymnasium.Wrapper):
    """Only these of a level's endless layouts: a handful of demonstrations can show them all."""

    def __init__(self, env: gymnasium.Env, layouts: Sequence[int]) -> None:
        super().__init__(env)
        self.layouts = layouts
        self._random = np.random.default_rng()  # the level's own generator starts anew each time

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        drawn = int(self._random.integers(2**31)) if seed is None else seed
        return self.env.reset(seed=self.layouts[drawn % len(self.layouts)], options=options)


# The first eight in which MiniGrid's scripted expert never turns back on itself: elsewhere it shows
# two actions for one state, which no margin can satisfy.
UNLOCK_LAYOUTS = (0, 1, 2, 4, 5, 6, 9, 10)


def make_unlock_pickup(**options: object) -> gymnasium.Env:
    """BabyAI's UnlockPickup: find the key, open the door, pick up the box behind it."""
    import minigrid  # noqa: F401  registers its levels

    level = gymnasium.make("BabyAI-UnlockPickup-v0", **options)  # type: ignore[arg-type]
    return OneHotGrid(LayoutSubset(level, UNLOCK_LAYOUTS))


UNLOCK_PICKUP = "lookfurther/UnlockPickup-v0"
gymnasium.register(UNLOCK_PICKUP, make_unlock_pickup)
