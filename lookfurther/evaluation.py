"""How good an agent is, over whole episodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import gymnasium

from lookfurther.agent import Agent
from lookfurther.envs import make_envs
from lookfurther.play import Played, greedy, play


def evaluate(
    agent: Agent,
    episodes: int = 200,
    *,
    epsilon: float = 0.001,
    lanes: int = 20,
    seed: int = 1_000_000,
    env: Callable[[], gymnasium.Env] | None = None,
) -> list[Played]:
    """Play `episodes` at a small epsilon; the same seed gives the same scores."""
    settings = replace(agent.config.environment, processes=0)
    source = env or agent.config.env
    envs = make_envs(source, settings, min(lanes, episodes), seed, settings.threads or 1)
    try:
        return play(greedy(agent.network, epsilon, seed), envs, episodes)
    finally:
        envs.close()
