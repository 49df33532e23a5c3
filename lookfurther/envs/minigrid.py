"""One-hot grid observations for MiniGrid and BabyAI."""

from __future__ import annotations

from collections.abc import Sequence

import gymnasium
import numpy as np
from gymnasium.spaces import Box

# MiniGrid's own counts; the state of an agent is its direction.
NUM_OBJECTS, NUM_COLOURS, NUM_STATES = 11, 6, 4


class OneHotGrid(gymnasium.ObservationWrapper):
    """The full grid, one-hot for each cell and property: [width, height, 21] uint8.

    An object that the agent carries is missing from the grid: that identifies it.
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
    """Restricts a level to a few layouts, so that a few demonstrations cover all of them."""

    def __init__(self, env: gymnasium.Env, layouts: Sequence[int]) -> None:
        super().__init__(env)
        self.layouts = layouts
        self._random = np.random.default_rng()  # every reset seeds the level's own generator

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        index = int(self._random.integers(2**31)) if seed is None else seed
        return self.env.reset(seed=self.layouts[index % len(self.layouts)], options=options)


def silence_level_generator() -> None:
    """Keep BabyAI's generator from printing a line for each level that it rejects."""
    from minigrid.envs.babyai.core import roomgrid_level

    roomgrid_level.print = lambda *_: None  # type: ignore[attr-defined]


# The first eight layouts in which MiniGrid's scripted expert never turns back. In the others it
# takes two actions in one state, and no margin loss can satisfy both.
UNLOCK_LAYOUTS = (0, 1, 2, 4, 5, 6, 9, 10)


def make_unlock_pickup(**options: object) -> gymnasium.Env:
    """BabyAI's UnlockPickup: find the key, open the door, pick up the box behind it."""
    import minigrid  # noqa: F401  registers its levels

    level = gymnasium.make("BabyAI-UnlockPickup-v0", **options)  # type: ignore[arg-type]
    return OneHotGrid(LayoutSubset(level, UNLOCK_LAYOUTS))


UNLOCK_PICKUP = "lookfurther/UnlockPickup-v0"
gymnasium.register(UNLOCK_PICKUP, make_unlock_pickup)
