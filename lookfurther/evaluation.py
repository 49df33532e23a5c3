"""How good an agent is: whole episodes, each lane playing its share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import gymnasium
import numpy as np

from lookfurther.agent import Agent
from lookfurther.envs import make_envs


class Played(NamedTuple):
    """One evaluation episode."""

    score: float
    steps: int


def evaluate(
    agent: Agent,
    episodes: int = 200,
    *,
    epsilon: float = 0.001,
    lanes: int = 20,
    seed: int = 1_000_000,
    env: Callable[[], gymnasium.Env] | None = None,
) -> list[Played]:
    """Play `episodes` at a small epsilon; the same seed gives the same scores.

    Each lane plays a fixed number of episodes: taking the first to finish would favour short ones.
    """
    lanes = min(lanes, episodes)
    settings = replace(agent.config.environment, processes=0)
    envs = make_envs(env or agent.config.env, settings, lanes, seed, settings.threads or 1)
    agent.generator.manual_seed(seed)
    share = np.full(lanes, episodes // lanes) + (np.arange(lanes) < episodes % lanes)
    played: list[list[Played]] = [[] for _ in range(lanes)]
    score, steps = np.zeros(lanes), np.zeros(lanes, np.int64)
    step = envs.reset()
    try:
        while any(len(done) < n for done, n in zip(played, share, strict=True)):
            envs.send(agent.act(step.observation, epsilon))
            step = envs.recv()
            score = np.where(step.first, 0.0, score + step.reward)
            steps = np.where(step.first, 0, steps + 1)
            for lane in np.flatnonzero(step.terminal | step.truncated):
                if len(played[lane]) < share[lane]:
                    played[lane].append(Played(float(score[lane]), int(steps[lane])))
    finally:
        envs.close()
    return [episode for lane in played for episode in lane]
