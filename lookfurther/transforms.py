"""h of the transformed Bellman operator and its inverse (Sec. 3.2, Prop. A.2).

Printed:  h(z)     = sign(z)(sqrt(|z| + 1) - 1) + eps z
          h^-1(x)  = sign(x)(((sqrt(1 + 4 eps (|x| + 1 + eps)) - 1) / (2 eps))^2 - 1)
Here both are rationalised: the printed forms lose digits near 0 in float32, and autograd through
sign and abs gives the wrong gradient at 0. IDENTITY instead of h is the ablation without the
transformed operator.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor


class ValueTransform(NamedTuple):
    """h and its inverse."""

    h: Callable[[Tensor], Tensor]
    h_inv: Callable[[Tensor], Tensor]


def h(z: Tensor, eps: float) -> Tensor:
    """h(z) = z (1 / (sqrt(|z| + 1) + 1) + eps), Sec. 3.2."""
    return z * (1 / (torch.sqrt(z.abs() + 1) + 1) + eps)


def h_inv(x: Tensor, eps: float) -> Tensor:
    """h^-1(x) = x c (c |x| + 2) with c = 2 / (1 + 2 eps + sqrt(1 + 4 eps (|x| + 1 + eps)))."""
    c = 2 / (1 + 2 * eps + torch.sqrt(1 + 4 * eps * (x.abs() + 1 + eps)))
    return x * c * (c * x.abs() + 2)


def identity(z: Tensor) -> Tensor:
    """The standard Bellman operator's transform."""
    return z


IDENTITY = ValueTransform(identity, identity)


def make_value_transform(name: str, eps: float) -> ValueTransform:
    """The transform with this name: "h" or "identity"."""
    transforms = {
        "h": ValueTransform(partial(h, eps=eps), partial(h_inv, eps=eps)),
        "identity": IDENTITY,
    }
    return transforms[name]


def signed_log(r: Tensor) -> Tensor:
    """sign(r) log(1 + |r|): DQfD's reward transform."""
    return r.sign() * r.abs().log1p()


def clip_reward(r: Tensor) -> Tensor:
    """r clipped to [-1, 1]: DQN's reward transform."""
    return r.clamp(-1, 1)


# Applied to rewards before learning; the paper uses raw rewards.
REWARD_TRANSFORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "raw": identity,
    "clip": clip_reward,
    "signed-log": signed_log,
}
