"""Small tasks that differ in reward scale, horizon and sparsity.

Importing this module registers the environments. Their best returns are computed by hand, except
that of MinAtar's Breakout, where the reference is the expert.
"""

from __future__ import annotations

import importlib
from itertools import combinations_with_replacement
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from lookfurther.envs.minigrid import LayoutSubset, OneHotGrid

StepResult = tuple[np.ndarray, float, bool, bool, dict[str, Any]]


class DeepSea(gymnasium.Env):
    """bsuite's deep sea: only `size` moves to the right in a row reach the treasure.

    Each move to the right costs 0.01 / size, the treasure is worth 1. Which action moves right
    differs from cell to cell, so a random policy finds the treasure once in 2^size episodes.
    """

    size = 20
    best_return = 1 - 0.01

    def __init__(self) -> None:
        self.action_space = Discrete(2)
        self.observation_space = Box(0, 1, (self.size**2,), np.float32)
        self.right_actions = np.random.default_rng(0).integers(2, size=(self.size, self.size))
        self.row = self.column = 0

    def reset(
        self, *, seed: int | None = None, options: dict | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.row = self.column = 0
        return self._observe(), {}

    def step(self, action: int) -> StepResult:
        is_right = bool(action == self.right_actions[self.row, self.column])
        reward = -0.01 / self.size if is_right else 0.0
        if is_right and self.column == self.size - 1:
            reward += 1.0
        self.column = min(max(self.column + (1 if is_right else -1), 0), self.size - 1)
        self.row += 1
        return self._observe(), reward, self.row == self.size, False, {}

    def _observe(self) -> np.ndarray:
        """One-hot cell; all zeros after the last row."""
        cells = np.zeros((self.size, self.size), np.float32)
        if self.row < self.size:
            cells[self.row, self.column] = 1
        return cells.ravel()


class MixedRewards(gymnasium.Env):
    """A corridor of 30 cells with rewards of 1 to 1,000; an episode has 60 steps.

    The action `collect` gives 1 in any cell. The first visits of cells 10, 20 and 30 give 10, 100
    and 1,000. If rewards are clipped to 1, collecting for 60 steps is better than walking to the
    end and collecting for 30; with the true rewards, it is worth 60 instead of 1,140.
    """

    length, max_steps = 30, 60
    prizes = {10: 10.0, 20: 100.0, 30: 1000.0}  # noqa: RUF012
    best_return = 1110 + (max_steps - length)
    LEFT, RIGHT, COLLECT = range(3)

    def __init__(self) -> None:
        self.action_space = Discrete(3)
        self.observation_space = Box(0, 1, (self.length + 2 + len(self.prizes),), np.float32)
        self.position = self.furthest = self.elapsed = 0

    def reset(
        self, *, seed: int | None = None, options: dict | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.position = self.furthest = self.elapsed = 0
        return self._observe(), {}

    def step(self, action: int) -> StepResult:
        reward = 1.0 if action == self.COLLECT else 0.0
        move = {self.LEFT: -1, self.RIGHT: 1}.get(int(action), 0)
        self.position = min(max(self.position + move, 0), self.length)
        if self.position > self.furthest:
            self.furthest = self.position
            reward += self.prizes.get(self.position, 0.0)
        self.elapsed += 1
        return self._observe(), reward, self.elapsed == self.max_steps, False, {}

    def _observe(self) -> np.ndarray:
        """One-hot position, the prizes taken, and the share of time left."""
        position = np.eye(self.length + 1, dtype=np.float32)[self.position]
        taken = [float(self.furthest >= cell) for cell in self.prizes]
        time_left = 1 - self.elapsed / self.max_steps
        return np.array([*position, *taken, time_left], np.float32)


class PrizeDoors(gymnasium.Env):
    """20 rounds of three doors with visible prizes of 1, 10, 100 or 1,000; one is taken per round.

    An episode has each of the 20 combinations of three prizes once, in random order. The largest
    prize is 1 in one of them, 10 in three, 100 in six and 1,000 in ten. If rewards are clipped to
    1, all doors are equal.
    """

    prizes = (1.0, 10.0, 100.0, 1000.0)
    doors = 3
    combinations = np.array(list(combinations_with_replacement(range(len(prizes)), doors)))
    rounds = len(combinations)
    best_return = 1 + 3 * 10 + 6 * 100 + 10 * 1000

    def __init__(self) -> None:
        self.action_space = Discrete(self.doors)
        self.observation_space = Box(0, 1, (self.doors * len(self.prizes) + 1,), np.float32)
        self.offers = self.combinations  # [rounds, doors] indices of prizes
        self.elapsed = 0

    def reset(
        self, *, seed: int | None = None, options: dict | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        in_order = self.np_random.permuted(self.combinations, axis=1)
        self.offers = self.np_random.permutation(in_order)
        self.elapsed = 0
        return self._observe(), {}

    def step(self, action: int) -> StepResult:
        reward = self.prizes[self.offers[self.elapsed, action]]
        self.elapsed += 1
        return self._observe(), reward, self.elapsed == self.rounds, False, {}

    def _observe(self) -> np.ndarray:
        """One-hot prize of every door, and the share of rounds left; all zeros at the end."""
        if self.elapsed == self.rounds:
            return np.zeros(self.observation_space.shape, np.float32)  # type: ignore[arg-type]
        prizes = np.eye(len(self.prizes))[self.offers[self.elapsed]].ravel()
        return np.array([*prizes, 1 - self.elapsed / self.rounds], np.float32)


class LongChain(gymnasium.Env):
    """A chain of 1,000 steps with a dense reward, whose values are known exactly.

    The paying action gives 1, the other one 0; both move on. The paying action changes every 100
    steps. Observations are smooth in the position, so that neighbouring states share most of
    their features, as consecutive frames of a game do.
    """

    length, section = 1000, 100
    best_return = length
    num_features = 40

    def __init__(self) -> None:
        self.action_space = Discrete(2)
        self.observation_space = Box(0, 1, (self.num_features,), np.float32)
        self.position = 0

    def reset(
        self, *, seed: int | None = None, options: dict | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.position = 0
        return self.observe(np.array([0]))[0], {}

    def step(self, action: int) -> StepResult:
        reward = float(action == self.paying_action(self.position))
        self.position += 1
        observation = self.observe(np.array([self.position]))[0]
        return observation, reward, self.position == self.length, False, {}

    @classmethod
    def paying_action(cls, position: int) -> int:
        return position // cls.section % 2

    @classmethod
    def observe(cls, positions: np.ndarray) -> np.ndarray:
        """Radial basis functions of positions [n]: [n, num_features]."""
        centres = np.linspace(0, cls.length, cls.num_features)
        width = cls.length / (cls.num_features - 1)
        distances = (positions[:, None] - centres) / width
        return np.exp(-(distances**2) / 2).astype(np.float32)


class MinAtarBreakout(gymnasium.Env):
    """MinAtar's Breakout with its own sticky actions and its three actions that differ."""

    sticky_prob = 0.1
    actions = "nlr"

    def __init__(self) -> None:
        self.game = importlib.import_module("minatar.environments.breakout").Env()
        self.last_action = 0
        self.action_space = Discrete(len(self.actions))
        self.observation_space = Box(0, 1, tuple(self.game.state_shape()), np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.game.random = np.random.RandomState(self.np_random.integers(2**31))
        self.game.reset()
        self.last_action = 0
        return self.game.state().astype(np.uint8), {}

    def step(self, action: int) -> StepResult:
        if self.np_random.random() >= self.sticky_prob:
            self.last_action = int(action)
        letter = self.actions[self.last_action]
        reward, terminal = self.game.act(self.game.action_map.index(letter))
        return self.game.state().astype(np.uint8), float(reward), bool(terminal), False, {}


def make_door_key() -> gymnasium.Env:
    """MiniGrid's DoorKey: fetch the key, open the door, reach the goal; one reward at the end.

    Four layouts, so that four demonstrations cover all of them, and at most 100 steps.
    """
    import minigrid  # noqa: F401  registers its levels

    level = gymnasium.make("MiniGrid-DoorKey-6x6-v0", max_steps=100, disable_env_checker=True)
    return OneHotGrid(LayoutSubset(level, DOOR_KEY_LAYOUTS))


DOOR_KEY_LAYOUTS = (0, 1, 2, 3)


gymnasium.register("DeepSea-v0", "experiments.tasks:DeepSea")
gymnasium.register("MixedRewards-v0", "experiments.tasks:MixedRewards")
gymnasium.register("PrizeDoors-v0", "experiments.tasks:PrizeDoors")
gymnasium.register("LongChain-v0", "experiments.tasks:LongChain")
gymnasium.register("DoorKey-v0", "experiments.tasks:make_door_key")
gymnasium.register("MinAtarBreakout-v0", "experiments.tasks:MinAtarBreakout", max_episode_steps=500)
