"""Random play from a saved state, and what it came upon."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from lookfurther.demos.go_explore.archive import CellVisit, Exploration

EXPLORATION_STEPS = 100  # length of a trip
MEAN_HOLD_STEPS = 20  # steps an action is held, on average
MIN_SURVIVED_STEPS = (
    8  # steps a cell must be survived for to count: a fall is doomed before it ends
)


class GameStep(NamedTuple):
    """What a step of a game shows."""

    cell: bytes
    reward: float
    done: bool  # a life or the game ended: there is nothing to explore from here


class ExplorationGame(Protocol):
    """A deterministic game whose state can be saved and brought back."""

    @property
    def actions(self) -> tuple[int, ...]: ...
    def reset(self) -> bytes: ...  # the first cell
    def step(self, action: int) -> GameStep: ...
    def state(self) -> bytes: ...
    def restore(self, state: bytes) -> None: ...


class ExplorationStart(NamedTuple):
    """Where a trip begins: an entry of the archive without its past."""

    score: float
    steps: int
    state: bytes


class Explorer:
    """Makes trips, and remembers the best ways it found so as to report better ones alone."""

    def __init__(self, game: ExplorationGame, seed: np.random.SeedSequence) -> None:
        self.game = game
        self.rng = np.random.default_rng(seed)
        self.best_ranks: dict[bytes, tuple[float, int]] = {}  # cell: rank of the way to it

    def explore(self, start: ExplorationStart) -> Exploration:
        """Random actions, each held for a while, until an end or for STEPS steps."""
        self.game.restore(start.state)
        score, rewarded, over = start.score, 0, False
        taken = bytearray()
        cells: set[bytes] = set()
        finds: dict[bytes, CellVisit] = {}
        ranks: dict[bytes, tuple[float, int]] = {}
        for action in sample_held_actions(self.rng, self.game.actions, EXPLORATION_STEPS):
            cell, reward, over = self.game.step(action)
            taken.append(action)
            score += reward
            rewarded = len(taken) if reward else rewarded
            if over:
                break
            cells.add(cell)
            rank = score, -start.steps - len(taken)
            before = ranks.get(cell) or self.best_ranks.get(cell)
            if before is None or rank > before:
                ranks[cell] = rank
                finds[cell] = CellVisit(cell, len(taken), score, rewarded, self.game.state())
        end = CellVisit(b"", len(taken), score, rewarded, b"") if over else None
        finds = {
            c: find for c, find in finds.items() if find.steps <= len(taken) - MIN_SURVIVED_STEPS
        }
        self.best_ranks |= {cell: ranks[cell] for cell in finds}
        return Exploration(bytes(taken), cells, list(finds.values()), end)


def sample_held_actions(
    rng: np.random.Generator, actions: tuple[int, ...], steps: int
) -> list[int]:
    """So many random actions, each held for a random number of steps."""
    holds = rng.geometric(1 / MEAN_HOLD_STEPS, steps)
    return np.repeat(rng.choice(actions, steps), holds)[:steps].tolist()
