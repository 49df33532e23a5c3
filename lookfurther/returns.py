"""n-step returns that end where the episode ends."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lookfurther.types import END, TERMINAL


class NStepReturn(NamedTuple):
    """What follows a state-action pair over at most n steps."""

    r: Tensor  # float32: sum over the steps taken of gamma^j r_{t+j+1}
    discount: Tensor  # float32: gamma^steps; 0 where x_{t+steps} is terminal
    steps: Tensor  # int64: min(n, steps to the end of the episode)


def discounted_returns(reward: Tensor, mark: Tensor, gamma: float) -> Tensor:
    """[T] float64: G_t = r_{t+1} + gamma G_{t+1} of every slot of a film, 0 at an episode's end.

    reward [T] and mark [T] are of consecutive slots, which may hold several episodes.
    """
    found = torch.zeros(len(reward), dtype=torch.float64)
    following = 0.0
    for t in reversed(range(len(reward))):
        following = 0.0 if mark[t] & END else float(reward[t]) + gamma * following
        found[t] = following
    return found


def n_step_return(reward: Tensor, mark: Tensor, n: Tensor, gamma: float) -> NStepReturn:
    """The n-step return: stop at an end, bootstrap across truncation but not termination.

    reward [..., N] holds r_{t+1} ... r_{t+N}, mark [..., N] the marks of x_{t+1} ... x_{t+N},
    n [...] the horizon, at most N. Powers and sums are taken in float64.
    """
    ended = (mark & END) != 0
    before = ended.cumsum(-1) - ended.long()  # ends among x_{t+1} ... x_{t+j}
    j = torch.arange(reward.shape[-1], device=reward.device)
    taken = (before == 0) & (j < n.unsqueeze(-1))
    steps = taken.sum(-1)
    r = torch.where(taken, gamma ** j.double() * reward.double(), 0.0).sum(-1)
    final = mark.gather(-1, (steps - 1).unsqueeze(-1)).squeeze(-1)
    discount = torch.where((final & TERMINAL) != 0, 0.0, gamma ** steps.double())
    return NStepReturn(r.float(), discount.float(), steps)
