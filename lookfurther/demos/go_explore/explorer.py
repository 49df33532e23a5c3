"""Random play from a saved state, and what it came upon."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from lookfurther.demos.go_explore.archive import Find, Trip

STEPS = 100  # length of a trip
HOLD = 20  # steps an action is held, on average
DOOM = 8  # steps a cell must be survived for to count: a fall is doomed before it ends


class Seen(NamedTuple):
    """What a step of a game shows."""

    cell: bytes
    reward: float
    over: bool  # a life or the game ended: there is nothing to explore from here


class Game(Protocol):
    """A deterministic game whose state can be saved and brought back."""

    @property
    def actions(self) -> tuple[int, ...]: ...
    def reset(self) -> bytes: ...  # the first cell
    def step(self, action: int) -> Seen: ...
    def state(self) -> bytes: ...
    def restore(self, state: bytes) -> None: ...


class Start(NamedTuple):
    """Where a trip begins: an entry of the archive without its past."""

    score: float
    steps: int
    state: bytes


class Explorer:
    """Makes trips, and remembers the best ways it found so as to report better ones alone."""

    def __init__(self, game: Game, seed: np.random.SeedSequence) -> None:
        self.game = game
        self.random = np.random.default_rng(seed)
        self.known: dict[bytes, tuple[float, int]] = {}  # cell: rank of the way to it

    def explore(self, start: Start) -> Trip:
        """Random actions, each held for a while, until an end or for STEPS steps."""
        self.game.restore(start.state)
        score, rewarded, over = start.score, 0, False
        taken = bytearray()
        cells: set[bytes] = set()
        finds: dict[bytes, Find] = {}
        ranks: dict[bytes, tuple[float, int]] = {}
        for action in plan(self.random, self.game.actions, STEPS):
            cell, reward, over = self.game.step(action)
            taken.append(action)
            score += reward
            rewarded = len(taken) if reward else rewarded
            if over:
                break
            cells.add(cell)
            rank = score, -start.steps - len(taken)
            before = ranks.get(cell) or self.known.get(cell)
            if before is None or rank > before:
                ranks[cell] = rank
                finds[cell] = Find(cell, len(taken), score, rewarded, self.game.state())
        end = Find(b"", len(taken), score, rewarded, b"") if over else None
        finds = {c: find for c, find in finds.items() if find.steps <= len(taken) - DOOM}
        self.known |= {cell: ranks[cell] for cell in finds}
        return Trip(bytes(taken), cells, list(finds.values()), end)


def plan(random: np.random.Generator, actions: tuple[int, ...], steps: int) -> list[int]:
    """So many random actions, each held for a random number of steps."""
    holds = random.geometric(1 / HOLD, steps)
    return np.repeat(random.choice(actions, steps), holds)[:steps].tolist()
