"""A small game for Go-Explore whose states and best score are known."""

from __future__ import annotations

import os
from collections import deque

import numpy as np

from lookfurther.demos.go_explore import SearchConfig
from lookfurther.demos.go_explore.archive import Archive
from lookfurther.demos.go_explore.explorer import ExplorationStart, Explorer, GameStep

CORRIDOR_LENGTH = 12
GAME = "ALE/Riverraid-v5"  # points from the first shots on


class CorridorGame:
    """A key at the left end (1 point), a door at the right end (10 with the key), a pit between.

    Actions: 0 left, 1 right, 2 jump right over the next place, 3 jump left. The pit ends a life.
    """

    actions = (0, 1, 2, 3)
    moves = (-1, 1, 2, -2)
    pit = 7

    def reset(self) -> bytes:
        self.at, self.key, self.done = 4, 0, 0
        return self.save_state()

    def step(self, action: int) -> GameStep:
        self.at = min(max(self.at + self.moves[action], 0), CORRIDOR_LENGTH)
        reward = 0
        if self.at == 0 and not self.key:
            self.key, reward = 1, 1
        if self.at == CORRIDOR_LENGTH and self.key and not self.done:
            self.done, reward = 1, 10
        return GameStep(self.save_state(), float(reward), self.at == self.pit)

    def save_state(self) -> bytes:
        return bytes([self.at, self.key, self.done])

    def restore_state(self, state: bytes) -> None:
        self.at, self.key, self.done = state


class RaisingGame(CorridorGame):
    def step(self, action: int) -> GameStep:
        raise RuntimeError("the cartridge is loose")


class ExitingGame(CorridorGame):
    def step(self, action: int) -> GameStep:
        os._exit(3)


def search_config(frames: int = 40_000, processes: int = 1, seed: int = 0, count: int = 1):
    return SearchConfig(GAME, frames, 0.0, processes, seed, count)


def shortest_distances() -> dict[bytes, int]:
    """Return the steps to every state of the corridor, by breadth-first search."""
    game = CorridorGame()
    found = {game.reset(): 0}
    queue = deque(found)
    while queue:
        state = queue.popleft()
        for action in game.actions:
            game.restore_state(state)
            cell, _, done = game.step(action)
            if not done and cell not in found:
                found[cell] = found[state] + 1
                queue.append(cell)
    return found


def replay_corridor(play: bytes) -> tuple[bytes, float, int]:
    """Replay actions in the corridor; return the last cell, the score and the last reward step."""
    game = CorridorGame()
    cell, score, rewarded = game.reset(), 0.0, 0
    for i, action in enumerate(play):
        cell, reward, _ = game.step(action)
        score += reward
        rewarded = i + 1 if reward else rewarded
    return cell, score, rewarded


def explore_corridor(explorations: int, seed: int = 0) -> Archive:
    """Return an archive of the corridor after some explorations."""
    game = CorridorGame()
    archive = Archive(game.reset(), game.save_state())
    explorer = Explorer(game, np.random.SeedSequence(seed))
    rng = np.random.default_rng(seed)
    for _ in range(explorations):
        (start,) = archive.sample_starts(rng, 1)
        archive.add(
            start, explorer.explore(ExplorationStart(start.score, start.steps, start.state))
        )
    return archive
