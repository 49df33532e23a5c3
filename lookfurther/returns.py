"""n-step returns that stop at the end of the episode."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lookfurther.types import END, TERMINAL


class NStepReturn(NamedTuple):
    """The return of a state-action pair over at most n steps."""

    r: Tensor  # float32: sum over the steps taken of gamma^j r_{t+j+1}
    discount: Tensor  # float32: gamma^steps; 0 if x_{t+steps} is terminal
    steps: Tensor  # int64: min(n, steps to the end of the episode)


def discounted_returns(
    reward: Tensor, mark: Tensor, gamma: float, truncated_return: float = 0.0
) -> Tensor:
    """[T] float64: G_t = r_{t+1} + gamma G_{t+1} of every slot, 0 at a terminal state.

    reward [T] and mark [T] are of consecutive slots, which may contain several episodes. At a
    truncated end G is `truncated_return`.
    """
    returns = torch.zeros(len(reward), dtype=torch.float64)
    g = 0.0
    for t in reversed(range(len(reward))):
        if mark[t] & END:
            g = 0.0 if mark[t] & TERMINAL else truncated_return
        else:
            g = float(reward[t]) + (gamma * g if gamma else 0.0)
        returns[t] = g
    return returns


def back_up_values(reward: Tensor, mark: Tensor, value: Tensor, gamma: float) -> Tensor:
    """[T] float64: y_t = r_{t+1} + gamma max(V_{t+1}, y_{t+1}) of every slot, from the end back.

    At an episode's end y is 0 if the state is terminal, else its value V. This is value iteration
    along the episodes until it converges, where the only other choice is to stop with V.
    """
    backups = torch.zeros(len(reward), dtype=torch.float64)
    # Arrays: reading and writing single elements of tensors is slow.
    rewards, marks, values, ys = reward.numpy(), mark.numpy(), value.numpy(), backups.numpy()
    best = 0.0  # max(V, y) of the next state
    for t in reversed(range(len(rewards))):
        v, marked = float(values[t]), int(marks[t])
        if marked & END:
            ys[t] = best = 0.0 if marked & TERMINAL else v
        else:
            y = float(rewards[t]) + gamma * best
            ys[t], best = y, max(v, y)
    return backups


def n_step_return(reward: Tensor, mark: Tensor, n: Tensor, gamma: float) -> NStepReturn:
    """The n-step return: stop at an end, bootstrap across truncation but not termination.

    reward [..., N] holds r_{t+1} ... r_{t+N}, mark [..., N] the marks of x_{t+1} ... x_{t+N},
    n [...] the horizon, at most N. Powers and sums are computed in float64.
    """
    is_end = (mark & END) != 0
    ends_before = is_end.cumsum(-1) - is_end.long()  # ends among x_{t+1} ... x_{t+j}
    j = torch.arange(reward.shape[-1], device=reward.device)
    is_taken = (ends_before == 0) & (j < n.unsqueeze(-1))
    steps = is_taken.sum(-1)
    r = torch.where(is_taken, gamma ** j.double() * reward.double(), 0.0).sum(-1)
    last_mark = mark.gather(-1, (steps - 1).unsqueeze(-1)).squeeze(-1)
    discount = torch.where((last_mark & TERMINAL) != 0, 0.0, gamma ** steps.double())
    return NStepReturn(r.float(), discount.float(), steps)
