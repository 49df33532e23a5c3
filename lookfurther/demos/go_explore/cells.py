"""An Atari game as the search sees it: screens that look alike when small and grey are one cell."""

from __future__ import annotations

import zlib
from typing import NamedTuple

import numpy as np

from lookfurther.demos.go_explore.explorer import EXPLORATION_STEPS, GameStep, sample_held_actions
from lookfurther.envs.emulator import load_game, make_ale

FRAMES_PER_STEP = 4  # emulator frames a step
SAMPLE = 10  # trips of random play that a grid is fitted to
NEW_CELL_SHARE = 0.06  # of their steps should show a cell not seen before


class CellGrid(NamedTuple):
    """How finely cells tell screens apart."""

    rows: int
    columns: int
    levels: int  # of grey


CANDIDATE_GRIDS = [  # Go-Explore's own choice for Montezuma's Revenge is 8 x 11 x 8
    CellGrid(rows, columns, levels)
    for rows, columns in ((5, 7), (8, 11), (11, 14), (14, 18), (18, 23), (21, 28))
    for levels in (4, 8, 16, 32)
]


class AtariExplorationGame:
    """One game without sticky actions, a step being REPEAT frames.

    `envs.emulator.Emulator` plays the same frames; here are neither its planes nor states that
    hold pictures and random numbers, of which a search would make thousands.
    """

    def __init__(self, game: str, grid: CellGrid) -> None:
        self._game, self._ale = game, make_ale()
        load_game(self._ale, game)
        self.actions = tuple(action.value for action in self._ale.getMinimalActionSet())
        self._screen = np.empty(self._ale.getScreenDims(), np.uint8)
        self._cells = CellEncoder(grid, self.gray_screen().shape)

    def reset(self) -> bytes:
        """Switch the power off and on."""
        load_game(self._ale, self._game)
        self._lives = self._ale.lives()
        return self._cells.encode(self.gray_screen())

    def step(self, action: int) -> GameStep:
        reward = sum(self._ale.act(action) for _ in range(FRAMES_PER_STEP))
        lives, before = self._ale.lives(), self._lives
        self._lives = lives
        over = lives < before or self._ale.game_over(with_truncation=False)
        return GameStep(self._cells.encode(self.gray_screen()), float(reward), over)

    def state(self) -> bytes:
        return zlib.compress(self._ale.cloneState().serialize(), 1)

    def restore(self, state: bytes) -> None:
        from ale_py import ALEState

        self._ale.restoreState(ALEState(zlib.decompress(state)))
        self._lives = self._ale.lives()

    def gray_screen(self) -> np.ndarray:
        """Every other pixel, in grey: enough for a cell, and four times as fast."""
        self._ale.getScreenGrayscale(self._screen)
        return self._screen[::2, ::2].astype(np.float32)


class CellEncoder:
    """The means of a screen over the fields of a grid, in so many levels."""

    def __init__(self, grid: CellGrid, shape: tuple[int, ...]) -> None:
        height, width = shape
        self._rows = pixel_weights(grid.rows, height) * (grid.levels / 256)
        self._columns = pixel_weights(grid.columns, width).T.copy()

    def encode(self, screen: np.ndarray) -> bytes:
        return (self._rows @ screen @ self._columns).astype(np.uint8).tobytes()


def pixel_weights(parts: int, pixels: int) -> np.ndarray:
    """[parts, pixels]: how much each pixel counts in the mean of each of so many equal parts."""
    edges = np.linspace(0, pixels, parts + 1)[:, None]
    cut = np.clip(np.arange(pixels + 1), edges[:-1], edges[1:])
    return (np.diff(cut, axis=1) * (parts / pixels)).astype(np.float32)


def fit_grid(name: str, seed: int) -> CellGrid:
    """The grid by which random play from power-on sees a new cell at about SHARE of its steps.

    Too coarse a grid hides what the player does, too fine a one makes every screen a cell of its
    own, and which is which differs from game to game.
    """
    game, random = AtariExplorationGame(name, CANDIDATE_GRIDS[0]), np.random.default_rng(seed)
    screens = []
    for _ in range(SAMPLE):
        game.reset()
        for action in sample_held_actions(random, game.actions, EXPLORATION_STEPS):
            if game.step(action).done:
                break
            screens.append(game.gray_screen())
    counts = [
        len({cells.encode(screen) for screen in screens})
        for cells in _candidate_encoders(screens[0].shape)
    ]
    miss = np.abs(np.log(np.array(counts) / (NEW_CELL_SHARE * len(screens))))
    return CANDIDATE_GRIDS[int(miss.argmin())]


def _candidate_encoders(shape: tuple[int, ...]) -> list[CellEncoder]:
    return [CellEncoder(grid, shape) for grid in CANDIDATE_GRIDS]
