"""The games that a search over waits keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lookfurther.demos.game_policy import GamePolicy

if TYPE_CHECKING:
    from ale_py import ALEState


class RetimedGame(NamedTuple):
    """A game up to a step of the original."""

    state: ALEState
    actions: tuple[int, ...]
    policy: GamePolicy
    is_original: bool  # all waits are as long as they were

    @property
    def cost(self) -> tuple[int, int]:
        """Less is better."""
        return self.policy.conflicts, len(self.actions)


class PassedGames:
    """The best game of each length, and of each state of the enemies.

    Lasers depend on the time, enemies on the time since the player entered the room.
    """

    def __init__(self, max_conflicts: int) -> None:
        self.max_conflicts = max_conflicts  # that a further game may have
        self.by_length: dict[int, RetimedGame] = {}
        self.by_enemies: dict[bytes, RetimedGame] = {}

    def add(self, game: RetimedGame, enemies: bytes) -> None:
        """Keep the game if it is better than those like it."""
        length = len(game.actions)
        if length not in self.by_length or game.cost < self.by_length[length].cost:
            self.by_length[length] = game
        if enemies not in self.by_enemies or game.cost < self.by_enemies[enemies].cost:
            self.by_enemies[enemies] = game
        self.max_conflicts = min(self.max_conflicts, game.policy.conflicts + 1)

    def select(self, max_games: int) -> list[RetimedGame]:
        """At most `max_games` games of each kind."""
        tables = (self.by_length, self.by_enemies)
        games = [game for table in tables for game in select_games([*table.values()], max_games)]
        return list({id(game): game for game in games}.values())


def least_conflicts(games: Sequence[RetimedGame]) -> int:
    return min(game.policy.conflicts for game in games)


def best_games(games: Sequence[RetimedGame], max_games: int) -> list[RetimedGame]:
    """The shortest games of those with the fewest conflicts."""
    fewest = least_conflicts(games)
    best = [game for game in games if game.policy.conflicts == fewest]
    return sorted(best, key=lambda game: game.cost)[:max_games]


def select_games(games: Sequence[RetimedGame], max_games: int) -> list[RetimedGame]:
    """The best games, and some of all lengths: a later enemy may need a game that is late."""
    ordered = sorted(games, key=lambda game: game.cost)
    best, others = ordered[: max_games // 2], ordered[max_games // 2 :]
    if len(others) > max_games // 2:
        others = [others[i] for i in np.linspace(0, len(others) - 1, max_games // 2).astype(int)]
    return best + others
