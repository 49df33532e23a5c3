"""Atari games as cells: screens that look alike when small and gray are one cell."""

from __future__ import annotations

import zlib
from typing import NamedTuple

import numpy as np

from lookfurther.demos.go_explore.explorer import EXPLORATION_STEPS, GameStep, sample_held_actions
from lookfurther.envs.emulator import load_game, make_ale

FRAMES_PER_STEP = 4
SAMPLE_ROLLOUTS = 10  # random rollouts that a grid is fitted to
NEW_CELL_SHARE = 0.06  # target share of their steps that reach a new cell


class CellGrid(NamedTuple):
    """The resolution of cells."""

    rows: int
    columns: int
    levels: int  # of gray


CANDIDATE_GRIDS = [  # Go-Explore uses 8 x 11 x 8 for Montezuma's Revenge
    CellGrid(rows, columns, levels)
    for rows, columns in ((5, 7), (8, 11), (11, 14), (14, 18), (18, 23), (21, 28))
    for levels in (4, 8, 16, 32)
]


class AtariExplorationGame:
    """A game without sticky actions, in steps of FRAMES_PER_STEP frames.

    It plays the same frames as `envs.emulator.Emulator` but makes no planes, and its states hold
    neither frames nor random numbers: a search saves thousands of them.
    """

    def __init__(self, game: str, grid: CellGrid) -> None:
        self._game, self._ale = game, make_ale()
        load_game(self._ale, game)
        self.actions = tuple(action.value for action in self._ale.getMinimalActionSet())
        self._screen = np.empty(self._ale.getScreenDims(), np.uint8)
        self._encoder = CellEncoder(grid, self.gray_screen().shape)

    def reset(self) -> bytes:
        """Power-cycle the console and return the first cell."""
        load_game(self._ale, self._game)
        self._lives = self._ale.lives()
        return self._encoder.encode(self.gray_screen())

    def step(self, action: int) -> GameStep:
        reward = sum(self._ale.act(action) for _ in range(FRAMES_PER_STEP))
        previous_lives, self._lives = self._lives, self._ale.lives()
        done = self._lives < previous_lives or self._ale.game_over(with_truncation=False)
        return GameStep(self._encoder.encode(self.gray_screen()), float(reward), done)

    def save_state(self) -> bytes:
        return zlib.compress(self._ale.cloneState().serialize(), 1)

    def restore_state(self, state: bytes) -> None:
        from ale_py import ALEState

        self._ale.restoreState(ALEState(zlib.decompress(state)))
        self._lives = self._ale.lives()

    def gray_screen(self) -> np.ndarray:
        """Return every second pixel in gray: enough for a cell, and four times as fast."""
        self._ale.getScreenGrayscale(self._screen)
        return self._screen[::2, ::2].astype(np.float32)


class CellEncoder:
    """Averages a screen over the fields of a grid and quantizes the means."""

    def __init__(self, grid: CellGrid, shape: tuple[int, ...]) -> None:
        height, width = shape
        self._rows = pixel_weights(grid.rows, height) * (grid.levels / 256)
        self._columns = pixel_weights(grid.columns, width).T.copy()

    def encode(self, screen: np.ndarray) -> bytes:
        return (self._rows @ screen @ self._columns).astype(np.uint8).tobytes()


def pixel_weights(parts: int, pixels: int) -> np.ndarray:
    """Return [parts, pixels]: the weight of each pixel in the mean of each of equal parts."""
    edges = np.linspace(0, pixels, parts + 1)[:, None]
    clipped = np.clip(np.arange(pixels + 1), edges[:-1], edges[1:])
    return (np.diff(clipped, axis=1) * (parts / pixels)).astype(np.float32)


def fit_grid(name: str, seed: int) -> CellGrid:
    """Choose the grid with which about NEW_CELL_SHARE of the steps of random play reach a new cell.

    A grid that is too coarse hides the player's actions; one that is too fine makes every screen a
    new cell. The right resolution depends on the game.
    """
    game, rng = AtariExplorationGame(name, CANDIDATE_GRIDS[0]), np.random.default_rng(seed)
    screens = []
    for _ in range(SAMPLE_ROLLOUTS):
        game.reset()
        for action in sample_held_actions(rng, game.actions, EXPLORATION_STEPS):
            if game.step(action).done:
                break
            screens.append(game.gray_screen())
    encoders = [CellEncoder(grid, screens[0].shape) for grid in CANDIDATE_GRIDS]
    counts = [len({encoder.encode(screen) for screen in screens}) for encoder in encoders]
    errors = np.abs(np.log(np.array(counts) / (NEW_CELL_SHARE * len(screens))))
    return CANDIDATE_GRIDS[int(errors.argmin())]
