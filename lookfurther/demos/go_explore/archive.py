"""The archive of cells: the best known way to each, and which of them to explore from next."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

TAIL = 10  # steps kept after the last reward: the paper's longest horizon


class Moment(NamedTuple):
    """A point of a tree of plays: `steps` of `actions` after `parent`, or the power-on.

    A tree shares what its plays have in common, and a branch no cell needs any more is freed.
    """

    parent: Moment | None
    actions: bytes  # one ALE action id a step; may go on beyond this moment
    steps: int


class Entry(NamedTuple):
    """The best known way to a cell."""

    score: float
    steps: int  # from power-on
    rewarded: int  # steps from power-on to the last reward
    moment: Moment
    state: bytes  # the game's, b"" if it is over

    @property
    def rank(self) -> tuple[float, int]:
        """Of two ways to a cell the one with the higher score is better, then the shorter one."""
        return self.score, -self.steps

    @property
    def merit(self) -> tuple[float, int, int]:
        """As a demonstration: the score, that it was survived, and how soon it was reached."""
        tail = min(self.steps - self.rewarded, TAIL) if self.state else 0
        return self.score, tail, -self.rewarded


class Find(NamedTuple):
    """A cell met on a trip, by a way that was the best its explorer knew of."""

    cell: bytes
    steps: int  # since the trip began
    score: float  # since power-on
    rewarded: int  # steps from the trip's beginning to its last reward; 0: there was none
    state: bytes


class Trip(NamedTuple):
    """What one exploration did and saw."""

    actions: bytes
    cells: set[bytes]
    finds: list[Find]
    end: Find | None  # where a life or the game ended


class Archive:
    """Cells by number, in the order of their discovery."""

    def __init__(self, cell: bytes, state: bytes) -> None:
        self.numbers: dict[bytes, int] = {cell: 0}
        self.entries: list[Entry] = [Entry(0.0, 0, 0, Moment(None, b"", 0), state)]
        self.top = self.entries[0]  # the best demonstration, which may have ended in no cell
        self._seen = np.zeros(1024)  # trips a cell was seen on
        self._score = np.zeros(1024)

    def __len__(self) -> int:
        return len(self.entries)

    def choose(self, random: np.random.Generator, count: int) -> list[Entry]:
        """Where to explore from next: cells seldom seen, half of them among those that score most.

        The first half keeps the search broad, the second pushes on from what it has reached.
        """
        weight = 1 / np.sqrt(self._seen[: len(self)] + 1)
        score = self._score[: len(self)]
        leading = weight * (score == score.max())
        half = count // 2
        numbers = draw(random, weight, count - half) + draw(random, leading, half)
        return [self.entries[number] for number in numbers]

    def add(self, start: Entry, trip: Trip) -> None:
        """Learn from a trip: new cells, better ways to old ones, and what was seen again."""
        for find in trip.finds:
            self._offer(find.cell, self._play(start, trip, find))
        if trip.end:
            self._play(start, trip, trip.end)
        self._seen[[self.numbers[cell] for cell in trip.cells if cell in self.numbers]] += 1

    def _offer(self, cell: bytes, entry: Entry) -> None:
        """Keep an entry if it is the first or the best of its cell; a better score makes it new."""
        number = self.numbers.setdefault(cell, len(self))
        if number == len(self):
            self.entries.append(entry)
            if number == len(self._seen):
                self._seen = np.append(self._seen, np.zeros(number))
                self._score = np.append(self._score, np.zeros(number))
        elif entry.rank > self.entries[number].rank:
            self.entries[number] = entry
        else:
            return
        if entry.score != self._score[number]:
            self._seen[number] = 0
        self._score[number] = entry.score

    def best(self, count: int) -> list[Entry]:
        """The best demonstrations, no two with the same first half."""
        chosen: dict[bytes, Entry] = {}
        plays = sorted([self.top, *self.entries], key=lambda entry: entry.merit, reverse=True)
        for entry in plays:
            if len(chosen) == count or not entry.rewarded:
                break
            mine = actions(entry.moment)[: entry.rewarded]
            if all(mine[: len(other) // 2] != other[: len(other) // 2] for other in chosen):
                chosen[mine] = entry
        return list(chosen.values())

    def _play(self, start: Entry, trip: Trip, find: Find) -> Entry:
        """A find as seen from power-on."""
        rewarded = start.steps + find.rewarded if find.rewarded else start.rewarded
        moment = Moment(start.moment, trip.actions, find.steps)
        entry = Entry(find.score, start.steps + find.steps, rewarded, moment, find.state)
        if entry.merit > self.top.merit:
            self.top = entry
        return entry


def actions(moment: Moment) -> bytes:
    """Every action from power-on to a moment."""
    parts: list[bytes] = []
    at: Moment | None = moment
    while at is not None:
        parts.append(at.actions[: at.steps])
        at = at.parent
    return b"".join(reversed(parts))


def draw(random: np.random.Generator, weight: np.ndarray, count: int) -> list[int]:
    """So many indices, each with a probability proportional to its weight."""
    sums = weight.cumsum()
    points = np.minimum(random.random(count) * sums[-1], np.nextafter(sums[-1], 0))
    return sums.searchsorted(points, side="right").tolist()
