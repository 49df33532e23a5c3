"""Whole episodes of a policy, for evaluation: each lane plays its share."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from lookfurther.envs import Envs
from lookfurther.exploration import epsilon_greedy


class Played(NamedTuple):
    """One episode."""

    score: float
    steps: int


Policy = Callable[[np.ndarray], np.ndarray]  # observations [m, ...] to actions [m]


def greedy(network: nn.Module, epsilon: float, seed: int) -> Policy:
    """The epsilon-greedy policy of a network, with a random stream of its own."""
    device = next(network.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)

    @torch.no_grad()
    def act(observations: np.ndarray) -> np.ndarray:
        q = network(torch.from_numpy(observations).to(device)).float()
        chance = torch.full((len(q),), epsilon, device=device)
        return epsilon_greedy(q, chance, generator).cpu().numpy()

    return act


def play(policy: Policy, envs: Envs, episodes: int) -> list[Played]:
    """`episodes` whole episodes from a reset of all lanes.

    Each lane plays a fixed number: taking the first to finish would favour short ones.
    """
    lanes = envs.lanes
    share = np.full(lanes, episodes // lanes) + (np.arange(lanes) < episodes % lanes)
    played: list[list[Played]] = [[] for _ in range(lanes)]
    score, steps = np.zeros(lanes), np.zeros(lanes, np.int64)
    step = envs.reset()
    while any(len(done) < n for done, n in zip(played, share, strict=True)):
        envs.send(policy(step.observation))
        step = envs.recv()
        score = np.where(step.first, 0.0, score + step.reward)
        steps = np.where(step.first, 0, steps + 1)
        for lane in np.flatnonzero(step.terminal | step.truncated):
            if len(played[lane]) < share[lane]:
                played[lane].append(Played(float(score[lane]), int(steps[lane])))
    return [episode for lane in played for episode in lane]
