"""The equations of prioritized replay (Schaul et al. 2015; Sec. 3.4 and Algorithm 1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lookfurther.array_api import ArrayT
from lookfurther.losses import huber, td_target
from lookfurther.returns import n_step_return
from lookfurther.transforms import ValueTransform

# The priority of a TD error: Algorithm 1's |L_TD|, or the absolute error as in most code.
PRIORITY_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {"huber": huber, "abs": torch.abs}

# The priority of an item from that of its TD error and its L_IM, by `learner.priority_losses`.
PRIORITY_LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "td": lambda td_priority, im: td_priority,
    "td+im": lambda td_priority, im: td_priority + im,
}


def priority_mass(p: ArrayT, alpha: float, offset: float) -> ArrayT:
    """(p + offset)^alpha: the unnormalised probability of an item, for p in float64."""
    return (p + offset) ** alpha


def importance_weights(probability: ArrayT, beta: float) -> ArrayT:
    """w_i = (N P(i))^-beta divided by the largest of the sample; N cancels."""
    ratio: Any = probability / probability.min()
    return ratio**-beta


def initial_td_error(
    q_a: Tensor,
    v: Tensor,
    reward: Tensor,
    mark: Tensor,
    n: int,
    gamma: float,
    transform: ValueTransform,
) -> Tensor:
    """f(x_t, a_t) - T_h f over n steps, with the values that the actor computed (Sec. 3.4).

    q_a [m] is f(x_t, a_t), v [m, N + 1] holds max_a f of x_t ... x_{t+N}, reward [m, N] and
    mark [m, N] are as in `n_step_return`.
    """
    horizon = torch.full_like(reward[:, 0], n)
    r, discount, steps = n_step_return(reward, mark, horizon, gamma)
    v_next = v.gather(-1, steps.unsqueeze(-1)).squeeze(-1)
    return q_a - td_target(r, discount, v_next, transform)
