"""Which lane explores how much, and epsilon-greedy action choice."""

from __future__ import annotations

import torch
from torch import Generator, Tensor


def paper_ladder(m: int) -> Tensor:
    """epsilon_i = 0.1^(alpha_i + 3 (1 - alpha_i)), alpha_i = (i - 1) / (m - 1) (Sec. 3.4)."""
    alpha = torch.linspace(0, 1, m, dtype=torch.float64)
    return 0.1 ** (alpha + 3 * (1 - alpha))


def apex_ladder(m: int) -> Tensor:
    """epsilon_i = 0.4^(1 + 7 (i - 1) / (m - 1)): Ape-X DQN's, for runs without demonstrations."""
    alpha = torch.linspace(0, 1, m, dtype=torch.float64)
    return 0.4 ** (1 + 7 * alpha)


LADDERS = {"paper": paper_ladder, "apex": apex_ladder}


def epsilon_greedy(q: Tensor, epsilon: Tensor, generator: Generator) -> Tensor:
    """For each row of q [m, A]: a uniform action with probability epsilon [m], else the best."""
    m, actions = q.shape
    uniform = torch.rand(m, generator=generator, device=q.device)
    random = torch.randint(actions, (m,), generator=generator, device=q.device)
    return torch.where(uniform < epsilon, random, q.argmax(-1))
