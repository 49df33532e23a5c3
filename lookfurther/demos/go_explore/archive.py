"""The archive of cells: the best known trajectory to each, and where to explore next."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

TAIL_STEPS = 10  # steps kept after the last reward: the paper's longest horizon


class TrajectoryNode(NamedTuple):
    """A node in a tree of trajectories: the first `steps` of `actions`, played after `parent`.

    Trajectories share their common prefix, and a branch that no cell uses any more is freed.
    """

    parent: TrajectoryNode | None  # None: power-on
    actions: bytes  # one ALE action id per step; may continue beyond this node
    steps: int


class ArchiveEntry(NamedTuple):
    """The best known trajectory to a cell."""

    score: float
    steps: int  # from power-on
    last_reward_step: int  # steps from power-on to the last reward
    trajectory: TrajectoryNode
    state: bytes  # saved state of the game, b"" if it is over

    @property
    def cell_rank(self) -> tuple[float, int]:
        """Rank among trajectories to the same cell: higher score first, then fewer steps."""
        return self.score, -self.steps

    @property
    def demo_rank(self) -> tuple[float, int, int]:
        """Rank as a demonstration: score, steps survived after it, and how soon it was reached."""
        tail = min(self.steps - self.last_reward_step, TAIL_STEPS) if self.state else 0
        return self.score, tail, -self.last_reward_step


class CellVisit(NamedTuple):
    """A cell reached in an exploration by the best trajectory that its explorer knows."""

    cell: bytes
    steps: int  # from the start of the exploration
    score: float  # from power-on
    last_reward_step: int  # from the start of the exploration; 0: no reward
    state: bytes


class ExplorationResult(NamedTuple):
    """What random play from one start reached."""

    actions: bytes
    cells: set[bytes]  # all cells visited
    visits: list[CellVisit]
    final_visit: CellVisit | None  # where a life or the game ended


class Archive:
    """Cells, indexed in the order of their discovery."""

    def __init__(self, cell: bytes, state: bytes) -> None:
        self.cell_indices: dict[bytes, int] = {cell: 0}
        self.entries: list[ArchiveEntry] = [
            ArchiveEntry(0.0, 0, 0, TrajectoryNode(None, b"", 0), state)
        ]
        self.best_entry = self.entries[0]  # best demonstration; may have ended outside any cell
        self._visit_counts = np.zeros(1024)  # explorations that visited each cell
        self._scores = np.zeros(1024)

    def __len__(self) -> int:
        return len(self.entries)

    def sample_starts(self, rng: np.random.Generator, count: int) -> list[ArchiveEntry]:
        """Sample entries to explore from; cells with few visits are more likely.

        Half of the samples are drawn from all cells, to keep the search broad, and half from those
        with the highest score, to advance from there.
        """
        weights = 1 / np.sqrt(self._visit_counts[: len(self)] + 1)
        scores = self._scores[: len(self)]
        top_weights = weights * (scores == scores.max())
        half = count // 2
        indices = sample_indices(rng, weights, count - half)
        indices += sample_indices(rng, top_weights, half)
        return [self.entries[index] for index in indices]

    def add(self, start: ArchiveEntry, exploration: ExplorationResult) -> None:
        """Add new cells, better trajectories to known cells, and visit counts."""
        for visit in exploration.visits:
            self._insert_if_better(visit.cell, self._make_entry(start, exploration, visit))
        if exploration.final_visit:
            self._make_entry(start, exploration, exploration.final_visit)
        known = [cell for cell in exploration.cells if cell in self.cell_indices]
        self._visit_counts[[self.cell_indices[cell] for cell in known]] += 1

    def _insert_if_better(self, cell: bytes, entry: ArchiveEntry) -> None:
        """Keep an entry if its cell is new or its rank higher; a new score resets the visits."""
        index = self.cell_indices.setdefault(cell, len(self))
        if index == len(self):
            self.entries.append(entry)
            if index == len(self._visit_counts):
                self._visit_counts = np.append(self._visit_counts, np.zeros(index))
                self._scores = np.append(self._scores, np.zeros(index))
        elif entry.cell_rank > self.entries[index].cell_rank:
            self.entries[index] = entry
        else:
            return
        if entry.score != self._scores[index]:
            self._visit_counts[index] = 0
        self._scores[index] = entry.score

    def best_entries(self, count: int) -> list[ArchiveEntry]:
        """Return the best demonstrations, no two with the same first half."""
        chosen: dict[bytes, ArchiveEntry] = {}
        entries = [self.best_entry, *self.entries]
        for entry in sorted(entries, key=lambda entry: entry.demo_rank, reverse=True):
            if len(chosen) == count or not entry.last_reward_step:
                break
            actions = actions_from_power_on(entry.trajectory)[: entry.last_reward_step]
            halves = [other[: len(other) // 2] for other in chosen]
            if not any(actions.startswith(half) for half in halves):
                chosen[actions] = entry
        return list(chosen.values())

    def _make_entry(
        self, start: ArchiveEntry, exploration: ExplorationResult, visit: CellVisit
    ) -> ArchiveEntry:
        """Make the entry of a visit, counted from power-on; update the best entry."""
        last_reward_step = start.last_reward_step
        if visit.last_reward_step:
            last_reward_step = start.steps + visit.last_reward_step
        node = TrajectoryNode(start.trajectory, exploration.actions, visit.steps)
        steps = start.steps + visit.steps
        entry = ArchiveEntry(visit.score, steps, last_reward_step, node, visit.state)
        if entry.demo_rank > self.best_entry.demo_rank:
            self.best_entry = entry
        return entry


def actions_from_power_on(node: TrajectoryNode) -> bytes:
    """Return all actions from power-on to a node."""
    parts: list[bytes] = []
    current: TrajectoryNode | None = node
    while current is not None:
        parts.append(current.actions[: current.steps])
        current = current.parent
    return b"".join(reversed(parts))


def sample_indices(rng: np.random.Generator, weights: np.ndarray, count: int) -> list[int]:
    """Sample indices with probabilities proportional to their weights."""
    cumulative = weights.cumsum()
    points = np.minimum(rng.random(count) * cumulative[-1], np.nextafter(cumulative[-1], 0))
    return cumulative.searchsorted(points, side="right").tolist()
