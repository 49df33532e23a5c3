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
from lookfurther.networks.dueling import DuelingNetwork, q_values
from lookfurther.system.acceleration import make_graphed
from lookfurther.types import Spec


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

    def __repr__(self) -> str:
        return f"EpisodeResult(score={self.score:g}, steps={self.steps})"


Policy = Callable[[np.ndarray], np.ndarray]  # observations [m, ...] to actions [m]


class QValueCache:
    """A network's Q-values on a CPU, computed once for each observation.

    Emulators are deterministic: episodes with the same start are equal up to their first random
    action, and an agent that does not move observes the same few frames.
    """

    def __init__(self, network: nn.Module, max_entries: int = 262_144) -> None:
        self.network, self.max_entries = network, max_entries
        self.row_by_digest: dict[bytes, int] = {}  # key: SHA-256 of the observation
        self.q_values = torch.zeros(0)

    def __call__(self, observations: Tensor) -> Tensor:
        """[m, A], equal to those of the network."""
        digests = [hashlib.sha256(observation).digest() for observation in observations.numpy()]
        if len(self.row_by_digest) + len(digests) > self.max_entries:
            self.row_by_digest.clear()
        new = {digest: i for i, digest in enumerate(digests) if digest not in self.row_by_digest}
        if new:
            q = q_values(self.network, observations[list(new.values())])
            if not len(self.q_values):
                self.q_values = q.new_zeros(max(self.max_entries, len(digests)), q.shape[1])
            rows = range(len(self.row_by_digest), len(self.row_by_digest) + len(new))
            self.q_values[rows.start : rows.stop] = q
            self.row_by_digest.update(zip(new, rows, strict=True))
        return self.q_values[[self.row_by_digest[digest] for digest in digests]]


@torch.no_grad()
def select_actions(
    network: nn.Module | QValueCache, observations: np.ndarray, epsilon: float, generator: Generator
) -> np.ndarray:
    """Epsilon-greedy actions [m] of a network on the generator's device."""
    q = q_values(network, torch.from_numpy(observations).to(generator.device))
    epsilons = torch.full((len(q),), epsilon, device=q.device)
    return epsilon_greedy(q, epsilons, generator).cpu().numpy()


def epsilon_greedy_policy(network: nn.Module, epsilon: float, seed: int) -> Policy:
    """The epsilon-greedy policy of a network, with its own random stream."""
    generator = Generator(next(network.parameters()).device).manual_seed(seed)
    # User networks may be stochastic: do not cache their values.
    use_cache = isinstance(network, DuelingNetwork) and generator.device.type == "cpu"
    cached = QValueCache(network) if use_cache else network
    return lambda observations: select_actions(cached, observations, epsilon, generator)


class GraphedPolicy:
    """The epsilon-greedy policy of a network for at most `lanes` observations at a time.

    On a GPU a call copies observations from page-locked memory, replays one CUDA graph for all
    lanes, and copies the actions back. On a CPU it runs the same code without a graph.
    """

    def __init__(
        self, network: nn.Module, spec: Spec, lanes: int, epsilon: float, seed: int
    ) -> None:
        self.network = network
        device = next(network.parameters()).device
        self.generator = Generator(device).manual_seed(seed)
        self.epsilons = torch.full((lanes,), epsilon, device=device)
        self.actions = torch.zeros(lanes, dtype=torch.int64, device=device)
        shape, dtype = (lanes, *spec.observation_shape), getattr(torch, spec.dtype)
        self.observations = torch.zeros(shape, dtype=dtype, device=device)
        self.host_observations = torch.zeros(shape, dtype=dtype, pin_memory=device.type == "cuda")
        self.choose_actions = make_graphed(self._choose_actions, device, [self.generator])

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        count = len(observations)
        np.copyto(self.host_observations.numpy()[:count], observations)
        self.observations[:count].copy_(self.host_observations[:count], non_blocking=True)
        self.choose_actions()
        return self.actions[:count].cpu().numpy().copy()

    @torch.no_grad()
    def _choose_actions(self) -> None:
        q = q_values(self.network, self.observations)
        self.actions.copy_(epsilon_greedy(q, self.epsilons, self.generator))


def uniform_policy(num_actions: int, seed: int) -> Policy:
    """Uniformly random actions."""
    random = np.random.default_rng(seed)
    return lambda observations: random.integers(num_actions, size=len(observations))


def play_episodes(
    policy: Policy,
    envs: Envs,
    episodes: int,
    on_episode: Callable[[EpisodeResult], None] = lambda _: None,
) -> list[EpisodeResult]:
    """Reset all lanes and play `episodes` whole episodes; call `on_episode` at the end of each.

    Each lane plays a fixed number: the first episodes to finish would mostly be short ones.
    """
    lanes = envs.lanes
    remaining = np.full(lanes, episodes // lanes) + (np.arange(lanes) < episodes % lanes)
    results: list[list[EpisodeResult]] = [[] for _ in range(lanes)]
    rewards = [array("d") for _ in range(lanes)]
    step = envs.reset()
    actions = np.zeros(lanes, np.int64)
    while remaining.any():
        busy = np.flatnonzero(remaining) if not remaining.all() else slice(None)
        actions[busy] = policy(step.observation[busy])
        envs.send(actions)
        step = envs.recv()
        for lane, reward in enumerate(step.reward.tolist()):
            if step.first[lane]:
                rewards[lane] = array("d")
            else:
                rewards[lane].append(reward)
        for lane in np.flatnonzero((step.terminal | step.truncated) & (remaining > 0)):
            remaining[lane] -= 1
            results[lane].append(EpisodeResult(rewards[lane]))
            on_episode(results[lane][-1])
    return [result for lane_results in results for result in lane_results]
