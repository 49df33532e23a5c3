"""Random play from a saved state."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from lookfurther.demos.go_explore.archive import CellVisit, ExplorationResult

EXPLORATION_STEPS = 100
MEAN_HOLD_STEPS = 20  # mean number of steps that an action is held
MIN_SURVIVED_STEPS = 8  # after a cell for it to count: a fall is fatal before it ends


class GameStep(NamedTuple):
    """The result of one step of a game."""

    cell: bytes
    reward: float
    done: bool  # a life or the game ended


class ExplorationGame(Protocol):
    """A deterministic game whose state can be saved and restored."""

    @property
    def actions(self) -> tuple[int, ...]: ...
    def reset(self) -> bytes: ...  # the first cell
    def step(self, action: int) -> GameStep: ...
    def save_state(self) -> bytes: ...
    def restore_state(self, state: bytes) -> None: ...


class ExplorationStart(NamedTuple):
    """The start of an exploration: an archive entry without its trajectory."""

    score: float
    steps: int
    state: bytes


class Explorer:
    """Explores from saved states; reports a cell only if its trajectory there is a better one."""

    def __init__(self, game: ExplorationGame, seed: np.random.SeedSequence) -> None:
        self.game = game
        self.rng = np.random.default_rng(seed)
        self.best_ranks: dict[bytes, tuple[float, int]] = {}  # cell -> `ArchiveEntry.cell_rank`

    def explore(self, start: ExplorationStart) -> ExplorationResult:
        """Play random actions for EXPLORATION_STEPS or until a life or the game ends."""
        self.game.restore_state(start.state)
        score, last_reward_step, done = start.score, 0, False
        actions = bytearray()
        cells: set[bytes] = set()
        visits: dict[bytes, CellVisit] = {}
        ranks: dict[bytes, tuple[float, int]] = {}
        for action in sample_held_actions(self.rng, self.game.actions, EXPLORATION_STEPS):
            cell, reward, done = self.game.step(action)
            actions.append(action)
            steps = len(actions)
            score += reward
            last_reward_step = steps if reward else last_reward_step
            if done:
                break
            cells.add(cell)
            rank = score, -start.steps - steps
            best_rank = ranks.get(cell) or self.best_ranks.get(cell)
            if best_rank is None or rank > best_rank:
                ranks[cell] = rank
                state = self.game.save_state()
                visits[cell] = CellVisit(cell, steps, score, last_reward_step, state)
        final = CellVisit(b"", len(actions), score, last_reward_step, b"") if done else None
        last_step = len(actions) - MIN_SURVIVED_STEPS
        survived = {cell: visit for cell, visit in visits.items() if visit.steps <= last_step}
        self.best_ranks |= {cell: ranks[cell] for cell in survived}
        return ExplorationResult(bytes(actions), cells, list(survived.values()), final)


def sample_held_actions(
    rng: np.random.Generator, actions: tuple[int, ...], steps: int
) -> list[int]:
    """Sample random actions, each held for a geometrically distributed number of steps."""
    holds = rng.geometric(1 / MEAN_HOLD_STEPS, steps)
    return np.repeat(rng.choice(actions, steps), holds)[:steps].tolist()
