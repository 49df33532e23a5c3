"""Whole episodes of a policy, for evaluation: each lane plays its share."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor, nn

from lookfurther.envs import Envs
from lookfurther.exploration import epsilon_greedy
from lookfurther.networks import Dueling, ask


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


class Recall:
    """A network's values on a CPU, computed once for each observation.

    Emulators are deterministic: episodes with the same start are the same up to their first random
    action, and an agent that stands still sees the same few pictures.
    """

    def __init__(self, network: nn.Module, limit: int = 262_144) -> None:
        self.network, self.limit = network, limit
        self.rows: dict[bytes, int] = {}  # by digest of the observation
        self.values = torch.zeros(0)

    def __call__(self, observations: Tensor) -> Tensor:
        """[m, A], as the network gives them."""
        names = [hashlib.sha256(x).digest() for x in observations.numpy()]
        if len(self.rows) + len(names) > self.limit:
            self.rows.clear()
        new = {name: i for i, name in enumerate(names) if name not in self.rows}
        if new:
            q = ask(self.network, observations[list(new.values())])
            if not len(self.values):
                self.values = q.new_zeros(max(self.limit, len(names)), q.shape[1])
            places = range(len(self.rows), len(self.rows) + len(new))
            self.values[places.start : places.stop] = q
            self.rows.update(zip(new, places, strict=True))
        return self.values[[self.rows[name] for name in names]]


@torch.no_grad()
def choose(
    network: nn.Module | Recall, observations: np.ndarray, epsilon: float, generator: Generator
) -> np.ndarray:
    """Epsilon-greedy actions [m] of a network, which lies on the generator's device."""
    q = ask(network, torch.from_numpy(observations).to(generator.device))
    chance = torch.full((len(q),), epsilon, device=q.device)
    return epsilon_greedy(q, chance, generator).cpu().numpy()


def greedy(network: nn.Module, epsilon: float, seed: int) -> Policy:
    """The epsilon-greedy policy of a network, with a random stream of its own."""
    generator = Generator(next(network.parameters()).device).manual_seed(seed)
    # Of a network of the user's nobody knows whether it gives the same twice.
    once = isinstance(network, Dueling) and generator.device.type == "cpu"
    asked = Recall(network) if once else network
    return lambda observations: choose(asked, observations, epsilon, generator)


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
    left = np.full(lanes, episodes // lanes) + (np.arange(lanes) < episodes % lanes)
    played: list[list[Played]] = [[] for _ in range(lanes)]
    rewards = [array("d") for _ in range(lanes)]
    step = envs.reset()
    actions = np.zeros(lanes, np.int64)
    while left.any():
        busy = np.flatnonzero(left)
        actions[busy] = policy(step.observation[busy])
        envs.send(actions)
        step = envs.recv()
        for lane, reward in enumerate(step.reward.tolist()):
            if step.first[lane]:
                rewards[lane] = array("d")
            else:
                rewards[lane].append(reward)
        for lane in np.flatnonzero((step.terminal | step.truncated) & (left > 0)):
            left[lane] -= 1
            played[lane].append(Played(rewards[lane]))
            tell(played[lane][-1])
    return [episode for lane in played for episode in lane]
