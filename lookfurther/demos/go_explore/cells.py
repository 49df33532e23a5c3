"""An Atari game as the search sees it: screens that look alike when small and grey are one cell."""

from __future__ import annotations

import zlib
from typing import NamedTuple

import numpy as np

from lookfurther.demos.go_explore.explorer import STEPS, Seen, plan
from lookfurther.envs.emulator import console, switch_on

REPEAT = 4  # emulator frames a step
SAMPLE = 10  # trips of random play that a grid is fitted to
SHARE = 0.06  # of their steps should show a cell not seen before


class Grid(NamedTuple):
    """How finely cells tell screens apart."""

    rows: int
    columns: int
    levels: int  # of grey


GRIDS = [  # Go-Explore's own choice for Montezuma's Revenge is 8 x 11 x 8
    Grid(rows, columns, levels)
    for rows, columns in ((5, 7), (8, 11), (11, 14), (14, 18), (18, 23), (21, 28))
    for levels in (4, 8, 16, 32)
]


class AtariGame:
    """One game without sticky actions, a step being REPEAT frames.

    `envs.emulator.Emulator` plays the same frames; here are neither its planes nor states that
    hold pictures and random numbers, of which a search would make thousands.
    """

    def __init__(self, game: str, grid: Grid) -> None:
        self._game, self._ale = game, console()
        switch_on(self._ale, game)
        self.actions = tuple(action.value for action in self._ale.getMinimalActionSet())
        self._screen = np.empty(self._ale.getScreenDims(), np.uint8)
        self._cells = Cells(grid, self.screen().shape)

    def reset(self) -> bytes:
        """Switch the power off and on."""
        switch_on(self._ale, self._game)
        self._lives = self._ale.lives()
        return self._cells.of(self.screen())

    def step(self, action: int) -> Seen:
        reward = sum(self._ale.act(action) for _ in range(REPEAT))
        lives, before = self._ale.lives(), self._lives
        self._lives = lives
        over = lives < before or self._ale.game_over(with_truncation=False)
        return Seen(self._cells.of(self.screen()), float(reward), over)

    def state(self) -> bytes:
        return zlib.compress(self._ale.cloneState().serialize(), 1)

    def restore(self, state: bytes) -> None:
        from ale_py import ALEState

        self._ale.restoreState(ALEState(zlib.decompress(state)))
        self._lives = self._ale.lives()

    def screen(self) -> np.ndarray:
        """Every other pixel, in grey: enough for a cell, and four times as fast."""
        self._ale.getScreenGrayscale(self._screen)
        return self._screen[::2, ::2].astype(np.float32)


class Cells:
    """The means of a screen over the fields of a grid, in so many levels."""

    def __init__(self, grid: Grid, shape: tuple[int, ...]) -> None:
        height, width = shape
        self._rows = shares(grid.rows, height) * (grid.levels / 256)
        self._columns = shares(grid.columns, width).T.copy()

    def of(self, screen: np.ndarray) -> bytes:
        return (self._rows @ screen @ self._columns).astype(np.uint8).tobytes()


def shares(parts: int, pixels: int) -> np.ndarray:
    """[parts, pixels]: how much each pixel counts in the mean of each of so many equal parts."""
    edges = np.linspace(0, pixels, parts + 1)[:, None]
    cut = np.clip(np.arange(pixels + 1), edges[:-1], edges[1:])
    return (np.diff(cut, axis=1) * (parts / pixels)).astype(np.float32)


def fitted(name: str, seed: int) -> Grid:
    """The grid by which random play from power-on sees a new cell at about SHARE of its steps.

    Too coarse a grid hides what the player does, too fine a one makes every screen a cell of its
    own, and which is which differs from game to game.
    """
    game, random = AtariGame(name, GRIDS[0]), np.random.default_rng(seed)
    screens = []
    for _ in range(SAMPLE):
        game.reset()
        for action in plan(random, game.actions, STEPS):
            if game.step(action).over:
                break
            screens.append(game.screen())
    counts = [len({cells.of(screen) for screen in screens}) for cells in _all(screens[0].shape)]
    miss = np.abs(np.log(np.array(counts) / (SHARE * len(screens))))
    return GRIDS[int(miss.argmin())]


def _all(shape: tuple[int, ...]) -> list[Cells]:
    return [Cells(grid, shape) for grid in GRIDS]
