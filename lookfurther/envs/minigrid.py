"""MiniGrid and BabyAI levels as networks like them: the whole grid, one plane for each property."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium.spaces import Box

OBJECTS, COLOURS, STATES = 11, 6, 4  # MiniGrid's own counts; an agent's state is its direction


class OneHotGrid(gymnasium.ObservationWrapper):
    """The full grid as 0 or 1 per cell and property: [width, height, 21] uint8.

    What the agent carries is missing from the grid, and so can be told from it.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        grid = env.unwrapped
        width, height = grid.width, grid.height  # type: ignore[attr-defined]
        planes = OBJECTS + COLOURS + STATES
        self.observation_space = Box(0, 1, (width, height, planes), np.uint8)
        self._eye = [np.eye(n, dtype=np.uint8) for n in (OBJECTS, COLOURS, STATES)]

    def observation(self, observation: object) -> np.ndarray:
        grid = self.env.unwrapped
        cells = grid.grid.encode()  # type: ignore[attr-defined]
        x, y = grid.agent_pos  # type: ignore[attr-defined]
        cells[x, y] = 10, 0, grid.agent_dir  # type: ignore[attr-defined]
        return np.concatenate([eye[cells[..., i]] for i, eye in enumerate(self._eye)], -1)
