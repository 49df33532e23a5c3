"""Demonstrations from a policy: a scripted expert, an agent, any function."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import gymnasium
import numpy as np

from lookfurther.config import Environment
from lookfurther.demos.episodes import Episode
from lookfurther.envs.blueprint import Blueprint, find
from lookfurther.envs.lanes import Lane
from lookfurther.errors import DemonstrationError
from lookfurther.types import Spec

# Called with the environment after each reset; what it gives is called for each action.
Expert = Callable[[gymnasium.Env], Callable[[], int]]


def babyai_bot(env: gymnasium.Env) -> Callable[[], int]:
    """MiniGrid's own scripted expert for BabyAI levels."""
    from minigrid.utils.baby_ai_bot import BabyAIBot

    bot = BabyAIBot(env.unwrapped)
    taken = None

    def act() -> int:
        nonlocal taken
        taken = bot.replan(taken)
        return int(taken)  # type: ignore[arg-type]

    return act


def collect(
    env: str, environment: Environment, expert: Expert, seeds: Iterable[int]
) -> tuple[list[Episode], Spec]:
    """An episode of the expert from each seed, seen as training will see it."""
    source = find(env)
    if source.namespace == "ALE":
        raise DemonstrationError(f"{env} is played by its vector environment: use make_envs for it")
    lane = Lane(Blueprint(source, environment), 0, 0)
    lane.open()
    assert lane.spec is not None
    if lane.spec.stack != 1:
        raise DemonstrationError("collect shows planes one at a time: leave environment.stack at 0")
    try:
        return [_episode(lane, expert, seed) for seed in seeds], lane.spec
    finally:
        lane.close()


def _episode(lane: Lane, expert: Expert, seed: int) -> Episode:
    plane, *_ = lane.begin(seed=seed)
    act = expert(lane.open())
    planes, actions, rewards = [plane.copy()], [], []
    terminal = truncated = False
    while not (terminal or truncated):
        action = act()
        plane, reward, terminal, truncated, first, _ = lane.step(action)
        if first:
            raise DemonstrationError(
                f"the environment failed at step {len(actions)} of a demonstration"
            )
        planes.append(plane.copy())
        actions.append(action)
        rewards.append(reward)
    return Episode(
        np.ascontiguousarray(planes),
        np.array(actions, np.int64),
        np.array(rewards, np.float32),
        terminal,
        seed,
    )
