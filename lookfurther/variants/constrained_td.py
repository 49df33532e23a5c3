"""TD learning with constrained gradients (Durugkar & Stone 2017; Sec. 4.4)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lookfurther.losses import action_mask


def mean_value_gradient(q_next: Tensor, a_next: Tensor, alive: Tensor) -> Tensor:
    """d/dq of the mean of f(x', a') over the batch [B, A]; 0 where x' is terminal (alive = 0)."""
    return action_mask(q_next, a_next) * alive.unsqueeze(-1) / len(q_next)


def project_orthogonal(gradients: Sequence[Tensor], directions: Sequence[Tensor]) -> list[Tensor]:
    """g - (g . n) n with n = d / |d|, over all parameters together; g if d = 0."""
    g = [gradient.float() for gradient in gradients]
    d = [direction.float() for direction in directions]
    dot, square = _inner_product(g, d), _inner_product(d, d)
    share = torch.where(square > 0, dot / square, 0.0).float()
    return [x - share * y for x, y in zip(g, d, strict=True)]


def _inner_product(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    """The inner product of two lists of tensors, summed in float64."""
    products = [(x * y).sum(dtype=torch.float64) for x, y in zip(left, right, strict=True)]
    return torch.stack(products).sum()
