"""The epsilon of each lane, and the duration of random actions."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Generator, Tensor

MAX_DURATION = 10_000  # maximum number of steps of a random action


def paper_epsilons(m: int) -> Tensor:
    """epsilon_i = 0.1^(alpha_i + 3 (1 - alpha_i)), alpha_i = (i - 1) / (m - 1) (Sec. 3.4)."""
    alpha = torch.linspace(0, 1, m, dtype=torch.float64)
    return 0.1 ** (alpha + 3 * (1 - alpha))


def apex_epsilons(m: int) -> Tensor:
    """epsilon_i = 0.4^(1 + 7 (i - 1) / (m - 1)), as in Ape-X DQN, for runs without demos."""
    alpha = torch.linspace(0, 1, m, dtype=torch.float64)
    return 0.4 ** (1 + 7 * alpha)


def initial_epsilons(schedule: str, m: int, end: float) -> Tensor:
    """The epsilons [m] float64 at the start of a run."""
    schedules = {
        "paper": paper_epsilons(m),
        "apex": apex_epsilons(m),
        "constant": torch.full((m,), end, dtype=torch.float64),
        "linear": torch.ones(m, dtype=torch.float64),
    }
    return schedules[schedule]


def epsilon_greedy(q: Tensor, epsilon: Tensor, generator: Generator) -> Tensor:
    """For each row of q [m, A]: a random action with probability epsilon [m], else the best."""
    m, actions = q.shape
    uniform = torch.rand(m, generator=generator, device=q.device)
    random = torch.randint(actions, (m,), generator=generator, device=q.device)
    return torch.where(uniform < epsilon, random, q.argmax(-1))


def duration_cdf(max_duration: int) -> Tensor:
    """P(duration <= n) for n = 1 ... max_duration, with P(duration = n) proportional to n^-2."""
    cumulative = torch.arange(1, max_duration + 1, dtype=torch.float64).pow(-2).cumsum(0)
    return cumulative / cumulative[-1]


class Exploration(Protocol):
    """Selects actions a_t [m] for values q [m, A]; stores actions that last several steps."""

    def select_actions(
        self, q: Tensor, epsilon: Tensor, first: Tensor, generator: Generator
    ) -> Tensor:
        """a_t [m]; first [m] bool: the observation opens an episode."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Everything for a checkpoint, as tensors that `select_actions` updates in place."""
        ...


class EpsilonGreedy:
    """Epsilon-greedy: a random action lasts one step."""

    def __init__(self, lanes: int, device: torch.device) -> None:
        pass

    def select_actions(
        self, q: Tensor, epsilon: Tensor, first: Tensor, generator: Generator
    ) -> Tensor:
        return epsilon_greedy(q, epsilon, generator)

    def state(self) -> dict[str, Tensor]:
        return {}


class EpsilonZGreedy:
    """epsilon-z-greedy (Dabney et al. 2021): a random action lasts n steps, n sampled from n^-2.

    A lane begins such an action with probability epsilon. The end of an episode ends it too.
    """

    def __init__(self, lanes: int, device: torch.device) -> None:
        self.held_action = torch.zeros(lanes, dtype=torch.int64, device=device)
        self.remaining = torch.zeros(
            lanes, dtype=torch.int64, device=device
        )  # steps of `held_action`
        self.duration_cdf = duration_cdf(MAX_DURATION).to(device)

    def select_actions(
        self, q: Tensor, epsilon: Tensor, first: Tensor, generator: Generator
    ) -> Tensor:
        m, actions = q.shape
        start_draw, duration_draw = torch.rand(
            2, m, generator=generator, device=q.device, dtype=torch.float64
        )
        random = torch.randint(actions, (m,), generator=generator, device=q.device)
        continues = (self.remaining > 0) & ~first
        starts = ~continues & (start_draw < epsilon)
        duration = torch.searchsorted(self.duration_cdf, duration_draw) + 1
        self.held_action.copy_(torch.where(starts, random, self.held_action))
        left = torch.where(starts, duration, torch.where(continues, self.remaining, 1)) - 1
        self.remaining.copy_(left)
        return torch.where(starts | continues, self.held_action, q.argmax(-1))

    def state(self) -> dict[str, Tensor]:
        return {"held": self.held_action, "remaining": self.remaining}


EXPLORATIONS: dict[str, type[EpsilonGreedy] | type[EpsilonZGreedy]] = {
    "uniform": EpsilonGreedy,
    "persistent": EpsilonZGreedy,
}
