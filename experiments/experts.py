"""A scripted expert for each task, and the list of tasks.

An expert is called with the environment after each reset and returns a function that acts.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from experiments.tasks import (
    DOOR_KEY_LAYOUTS,
    DeepSea,
    LongChain,
    MixedRewards,
    PrizeDoors,
)
from lookfurther.demos.collect import ScriptedExpert


def deep_sea_expert(env: gymnasium.Env) -> Callable[[], int]:
    """Always right."""
    sea: Any = env.unwrapped
    return lambda: int(sea.right_actions[sea.row, sea.column])


def mixed_rewards_expert(env: gymnasium.Env) -> Callable[[], int]:
    """To the end of the corridor, then collect."""
    corridor: Any = env.unwrapped
    return lambda: corridor.RIGHT if corridor.position < corridor.length else corridor.COLLECT


def prize_doors_expert(env: gymnasium.Env) -> Callable[[], int]:
    """The largest prize in half of the rounds, any door in the others: it can be improved on."""
    doors: Any = env.unwrapped
    random = np.random.default_rng(doors.offers.ravel())

    def act() -> int:
        is_careful = random.random() < 0.5
        offers = doors.offers[doors.elapsed]
        return int(offers.argmax() if is_careful else random.integers(doors.doors))

    return act


def long_chain_expert(env: gymnasium.Env) -> Callable[[], int]:
    """The paying action."""
    chain: Any = env.unwrapped
    return lambda: chain.paying_action(chain.position)


def cartpole_expert(env: gymnasium.Env) -> Callable[[], int]:
    """A linear controller of angle and position."""
    cart: Any = env.unwrapped
    gains = np.array([0.05, 0.15, 1.0, 0.6])
    return lambda: int(gains @ cart.state > 0)


def door_key_expert(env: gymnasium.Env) -> Callable[[], int]:
    """A shortest solution, found by breadth-first search when the episode begins."""
    actions = iter(find_shortest_solution(env.unwrapped))
    return lambda: next(actions)


def find_shortest_solution(grid: Any) -> list[int]:
    """The fewest actions after which a MiniGrid level gives its reward."""
    queue = deque([(grid, [])])
    visited = set()
    while queue:
        state, actions = queue.popleft()
        for action in range(6):  # the seventh, done, has no effect
            following = copy.deepcopy(state)
            _, reward, terminal, _, _ = following.step(action)
            if reward > 0:
                return [*actions, action]
            key = (
                tuple(following.agent_pos),
                following.agent_dir,
                following.grid.encode().tobytes(),
            )
            if not terminal and key not in visited:
                visited.add(key)
                queue.append((following, [*actions, action]))
    raise ValueError("the level has no solution")


def breakout_expert(env: gymnasium.Env) -> Callable[[], int]:
    """Move the paddle to the column where the ball comes down."""
    breakout: Any = env.unwrapped

    def act() -> int:
        column = find_landing_column(breakout.game)
        return 0 if column == breakout.game.pos else 1 if column < breakout.game.pos else 2

    return act


def find_landing_column(game: Any) -> int:
    """The column of a paddle that returns the ball the next time it comes down."""
    future = copy.copy(game)
    future.brick_map = game.brick_map.copy()
    future.pos = -1  # no paddle
    while True:
        column = int(future.ball_x)
        _, is_over = future.act(0)
        if is_over:
            return column


class Task(NamedTuple):
    """An environment of the study, its expert, and the seeds of the demonstrations."""

    env: str
    expert: ScriptedExpert
    demo_seeds: range
    best_return: float | None  # mean return of the best policy; None: take the expert's


TASKS = {
    "PrizeDoors": Task(
        "experiments.tasks:PrizeDoors-v0", prize_doors_expert, range(3), PrizeDoors.best_return
    ),
    "MixedRewards": Task(
        "experiments.tasks:MixedRewards-v0",
        mixed_rewards_expert,
        range(1),
        MixedRewards.best_return,
    ),
    "DeepSea": Task("experiments.tasks:DeepSea-v0", deep_sea_expert, range(1), DeepSea.best_return),
    "DoorKey": Task(
        "experiments.tasks:DoorKey-v0",
        door_key_expert,
        range(len(DOOR_KEY_LAYOUTS)),
        1 - 0.9 * 14 / 100,  # 13 to 15 of at most 100 steps, 14 on average
    ),
    "CartPole": Task("CartPole-v1", cartpole_expert, range(3), 500),
    "MinAtarBreakout": Task(
        "experiments.tasks:MinAtarBreakout-v0", breakout_expert, range(3), None
    ),
    "LongChain": Task(
        "experiments.tasks:LongChain-v0", long_chain_expert, range(1), LongChain.best_return
    ),
}
