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
from lookfurther.networks import DuelingNetwork, q_values


class EpisodeResult(NamedTuple):
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


class QValueCache:
    """A network's values on a CPU, computed once for each observation.

    Emulators are deterministic: episodes with the same start are the same up to their first random
    action, and an agent that stands still sees the same few pictures.
    """

    def __init__(self, network: nn.Module, max_entries: int = 262_144) -> None:
        self.network, self.max_entries = network, max_entries
        self.row_by_digest: dict[bytes, int] = {}  # by digest of the observation
        self.q_values = torch.zeros(0)

    def __call__(self, observations: Tensor) -> Tensor:
        """[m, A], as the network gives them."""
        names = [hashlib.sha256(x).digest() for x in observations.numpy()]
        if len(self.row_by_digest) + len(names) > self.max_entries:
            self.row_by_digest.clear()
        new = {name: i for i, name in enumerate(names) if name not in self.row_by_digest}
        if new:
            q = q_values(self.network, observations[list(new.values())])
            if not len(self.q_values):
                self.q_values = q.new_zeros(max(self.max_entries, len(names)), q.shape[1])
            places = range(len(self.row_by_digest), len(self.row_by_digest) + len(new))
            self.q_values[places.start : places.stop] = q
            self.row_by_digest.update(zip(new, places, strict=True))
        return self.q_values[[self.row_by_digest[name] for name in names]]


@torch.no_grad()
def select_actions(
    network: nn.Module | QValueCache, observations: np.ndarray, epsilon: float, generator: Generator
) -> np.ndarray:
    """Epsilon-greedy actions [m] of a network, which lies on the generator's device."""
    q = q_values(network, torch.from_numpy(observations).to(generator.device))
    chance = torch.full((len(q),), epsilon, device=q.device)
    return epsilon_greedy(q, chance, generator).cpu().numpy()


def epsilon_greedy_policy(network: nn.Module, epsilon: float, seed: int) -> Policy:
    """The epsilon-greedy policy of a network, with a random stream of its own."""
    generator = Generator(next(network.parameters()).device).manual_seed(seed)
    # Of a network of the user's nobody knows whether it gives the same twice.
    once = isinstance(network, DuelingNetwork) and generator.device.type == "cpu"
    asked = QValueCache(network) if once else network
    return lambda observations: select_actions(asked, observations, epsilon, generator)


def uniform_policy(num_actions: int, seed: int) -> Policy:
    """Random play."""
    random = np.random.default_rng(seed)
    return lambda observations: random.integers(num_actions, size=len(observations))


def play_episodes(
    policy: Policy,
    envs: Envs,
    episodes: int,
    on_episode: Callable[[EpisodeResult], None] = lambda _: None,
) -> list[EpisodeResult]:
    """`episodes` whole episodes from a reset of all lanes; `tell` hears of each as it ends.

    Each lane plays a fixed number: taking the first to finish would favour short ones.
    """
    lanes = envs.lanes
    left = np.full(lanes, episodes // lanes) + (np.arange(lanes) < episodes % lanes)
    played: list[list[EpisodeResult]] = [[] for _ in range(lanes)]
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
            played[lane].append(EpisodeResult(rewards[lane]))
            on_episode(played[lane][-1])
    return [episode for lane in played for episode in lane]
