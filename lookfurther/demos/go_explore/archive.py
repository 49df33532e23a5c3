"""The archive of cells: the best known way to each, and which of them to explore from next."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

TAIL_STEPS = 10  # steps kept after the last reward: the paper's longest horizon


class TrajectoryNode(NamedTuple):
    """A point of a tree of plays: `steps` of `actions` after `parent`, or the power-on.

    A tree shares what its plays have in common, and a branch no cell needs any more is freed.
    """

    parent: TrajectoryNode | None
    actions: bytes  # one ALE action id a step; may go on beyond this moment
    steps: int


class ArchiveEntry(NamedTuple):
    """The best known way to a cell."""

    score: float
    steps: int  # from power-on
    last_reward_step: int  # steps from power-on to the last reward
    trajectory: TrajectoryNode
    state: bytes  # the game's, b"" if it is over

    @property
    def cell_rank(self) -> tuple[float, int]:
        """Of two ways to a cell the one with the higher score is better, then the shorter one."""
        return self.score, -self.steps

    @property
    def demo_rank(self) -> tuple[float, int, int]:
        """As a demonstration: the score, that it was survived, and how soon it was reached."""
        tail = min(self.steps - self.last_reward_step, TAIL_STEPS) if self.state else 0
        return self.score, tail, -self.last_reward_step


class CellVisit(NamedTuple):
    """A cell met on a trip, by a way that was the best its explorer knew of."""

    cell: bytes
    steps: int  # since the trip began
    score: float  # since power-on
    last_reward_step: int  # steps from the trip's beginning to its last reward; 0: there was none
    state: bytes


class Exploration(NamedTuple):
    """What one exploration did and saw."""

    actions: bytes
    cells: set[bytes]
    visits: list[CellVisit]
    final_visit: CellVisit | None  # where a life or the game ended


class Archive:
    """Cells by number, in the order of their discovery."""

    def __init__(self, cell: bytes, state: bytes) -> None:
        self.cell_indices: dict[bytes, int] = {cell: 0}
        self.entries: list[ArchiveEntry] = [
            ArchiveEntry(0.0, 0, 0, TrajectoryNode(None, b"", 0), state)
        ]
        self.best_entry = self.entries[0]  # the best demonstration, which may have ended in no cell
        self._visit_counts = np.zeros(1024)  # trips a cell was seen on
        self._scores = np.zeros(1024)

    def __len__(self) -> int:
        return len(self.entries)

    def sample_starts(self, rng: np.random.Generator, count: int) -> list[ArchiveEntry]:
        """Where to explore from next: cells seldom seen, half of them among those that score most.

        The first half keeps the search broad, the second pushes on from what it has reached.
        """
        weight = 1 / np.sqrt(self._visit_counts[: len(self)] + 1)
        score = self._scores[: len(self)]
        leading = weight * (score == score.max())
        half = count // 2
        numbers = sample_indices(rng, weight, count - half) + sample_indices(rng, leading, half)
        return [self.entries[number] for number in numbers]

    def add(self, start: ArchiveEntry, exploration: Exploration) -> None:
        """Learn from a trip: new cells, better ways to old ones, and what was seen again."""
        for find in exploration.visits:
            self._insert_if_better(find.cell, self._make_entry(start, exploration, find))
        if exploration.final_visit:
            self._make_entry(start, exploration, exploration.final_visit)
        self._visit_counts[
            [self.cell_indices[cell] for cell in exploration.cells if cell in self.cell_indices]
        ] += 1

    def _insert_if_better(self, cell: bytes, entry: ArchiveEntry) -> None:
        """Keep an entry if it is the first or the best of its cell; a better score makes it new."""
        number = self.cell_indices.setdefault(cell, len(self))
        if number == len(self):
            self.entries.append(entry)
            if number == len(self._visit_counts):
                self._visit_counts = np.append(self._visit_counts, np.zeros(number))
                self._scores = np.append(self._scores, np.zeros(number))
        elif entry.cell_rank > self.entries[number].cell_rank:
            self.entries[number] = entry
        else:
            return
        if entry.score != self._scores[number]:
            self._visit_counts[number] = 0
        self._scores[number] = entry.score

    def best_entries(self, count: int) -> list[ArchiveEntry]:
        """The best demonstrations, no two with the same first half."""
        chosen: dict[bytes, ArchiveEntry] = {}
        plays = sorted(
            [self.best_entry, *self.entries], key=lambda entry: entry.demo_rank, reverse=True
        )
        for entry in plays:
            if len(chosen) == count or not entry.last_reward_step:
                break
            mine = actions_from_power_on(entry.trajectory)[: entry.last_reward_step]
            if all(mine[: len(other) // 2] != other[: len(other) // 2] for other in chosen):
                chosen[mine] = entry
        return list(chosen.values())

    def _make_entry(
        self, start: ArchiveEntry, exploration: Exploration, visit: CellVisit
    ) -> ArchiveEntry:
        """A find as seen from power-on."""
        rewarded = (
            start.steps + visit.last_reward_step
            if visit.last_reward_step
            else start.last_reward_step
        )
        moment = TrajectoryNode(start.trajectory, exploration.actions, visit.steps)
        entry = ArchiveEntry(visit.score, start.steps + visit.steps, rewarded, moment, visit.state)
        if entry.demo_rank > self.best_entry.demo_rank:
            self.best_entry = entry
        return entry


def actions_from_power_on(node: TrajectoryNode) -> bytes:
    """Every action from power-on to a moment."""
    parts: list[bytes] = []
    at: TrajectoryNode | None = node
    while at is not None:
        parts.append(at.actions[: at.steps])
        at = at.parent
    return b"".join(reversed(parts))


def sample_indices(rng: np.random.Generator, weights: np.ndarray, count: int) -> list[int]:
    """So many indices, each with a probability proportional to its weight."""
    sums = weights.cumsum()
    points = np.minimum(rng.random(count) * sums[-1], np.nextafter(sums[-1], 0))
    return sums.searchsorted(points, side="right").tolist()
