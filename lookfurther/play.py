"""Whole episodes of a policy, for evaluation: each lane plays its share."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Generator, nn

from lookfurther.envs import Envs
from lookfurther.exploration import epsilon_greedy


class Played(NamedTuple):
    """One episode."""

    rewards: array[float]  # of each step

    @property
    def score(self) -> float:
        """The undiscounted return."""
        return sum(self.rewards)

    @property
    def steps(self) -> int:
        return len(self.rewards)


Policy = Callable[[np.ndarray], np.ndarray]  # observations [m, ...] to actions [m]


@torch.no_grad()
def choose(
    network: nn.Module, observations: np.ndarray, epsilon: float, generator: Generator
) -> np.ndarray:
    """Epsilon-greedy actions [m] of a network, which lies on the generator's device."""
    q = network(torch.from_numpy(observations).to(generator.device)).float()
    chance = torch.full((len(q),), epsilon, device=q.device)
    return epsilon_greedy(q, chance, generator).cpu().numpy()


def greedy(network: nn.Module, epsilon: float, seed: int) -> Policy:
    """The epsilon-greedy policy of a network, with a random stream of its own."""
    generator = Generator(next(network.parameters()).device).manual_seed(seed)
    return lambda observations: choose(network, observations, epsilon, generator)


def uniform(actions: int, seed: int) -> Policy:
    """Random play."""
    random = np.random.default_rng(seed)
    return lambda observations: random.integers(actions, size=len(observations))


def play(
    policy: Policy,
    envs: Envs,
    episodes: int,
    tell: Callable[[Played], None] = lambda _: None,
) -> list[Played]:
    """`episodes` whole episodes from a reset of all lanes; `tell` hears of each as it ends.

    Each lane plays a fixed number: taking the first to finish would favour short ones.
    """
    lanes = envs.lanes
    share = np.full(lanes, episodes // lanes) + (np.arange(lanes) < episodes % lanes)
    played: list[list[Played]] = [[] for _ in range(lanes)]
    rewards = [array("d") for _ in range(lanes)]
    step = envs.reset()
    while any(len(done) < n for done, n in zip(played, share, strict=True)):
        envs.send(policy(step.observation))
        step = envs.recv()
        for lane, reward in enumerate(step.reward.tolist()):
            if step.first[lane]:
                rewards[lane] = array("d")
            else:
                rewards[lane].append(reward)
        for lane in np.flatnonzero(step.terminal | step.truncated):
            if len(played[lane]) < share[lane]:
                played[lane].append(Played(rewards[lane]))
                tell(played[lane][-1])
    return [episode for lane in played for episode in lane]
