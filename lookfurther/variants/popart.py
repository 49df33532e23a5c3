"""PopArt: targets of zero mean and unit variance, outputs preserved (van Hasselt et al. 2016).

The outputs of the network are normalised values f = (Q - mu) / sigma. Art: mu and sigma follow the
targets. Pop: whenever they change, the last layer is rescaled such that Q stays the same.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

MIN_STD, MAX_STD = 1e-4, 1e6  # Hessel et al. 2019


class Moments(NamedTuple):
    """Moving averages of the targets and of their squares, scalars in float64."""

    mean: Tensor
    second: Tensor

    @property
    def std(self) -> Tensor:
        """sigma = sqrt(nu - mu^2), limited to [1e-4, 1e6]."""
        return (self.second - self.mean.square()).clamp(MIN_STD**2, MAX_STD**2).sqrt()


def update_moments(moments: Moments, targets: Tensor, step: float) -> Moments:
    """mu <- (1 - beta) mu + beta mean(y), nu <- (1 - beta) nu + beta mean(y^2) (Eq. 2 there).

    Targets that are not finite change nothing.
    """
    y = targets.double()
    new = Moments(
        torch.lerp(moments.mean, y.mean(), step),
        torch.lerp(moments.second, y.square().mean(), step),
    )
    is_finite = torch.isfinite(new.mean + new.second)
    return Moments(*(torch.where(is_finite, n, old) for n, old in zip(new, moments, strict=True)))


def normalise(q: Tensor, moments: Moments) -> Tensor:
    """(Q - mu) / sigma."""
    return (q - moments.mean) / moments.std


def denormalise(f: Tensor, moments: Moments) -> Tensor:
    """sigma f + mu."""
    return f * moments.std + moments.mean


def rescaling(old: Moments, new: Moments) -> tuple[Tensor, Tensor]:
    """The scale sigma / sigma' and the shift (mu - mu') / sigma' of a last layer (Prop. 1 there).

    W' = scale W and b' = scale b + shift give the same Q under the new moments as W and b under
    the old ones.
    """
    return old.std / new.std, (old.mean - new.mean) / new.std
