"""Uniform random numbers, the same on every device: SplitMix64 (Steele, Lea & Flood 2014).

Its state is a tensor, so a captured graph advances it by itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lookfurther.array_api import ArrayT, array_namespace

# 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9 and 0x94D049BB133111EB as signed integers.
GOLDEN_GAMMA, MULTIPLIER_1, MULTIPLIER_2 = (
    -7046029254386353131,
    -4658895280553007687,
    -7723592293110705685,
)


def init_rng_state(seed: int, device: torch.device | str = "cpu") -> Tensor:
    """The state [2] int64 of a generator: its position and its increment."""
    return torch.tensor([seed, GOLDEN_GAMMA], device=device)


def next_uniform(state: ArrayT, steps: ArrayT) -> ArrayT:
    """[n] float64 in [0, 1) for steps 1 ... n; advances `state` by n steps."""
    z: Any = state[:1] + steps * state[1:]
    state[:1] = z[-1:]
    xp = array_namespace(z)
    return xp.asarray(_logical_right_shift(mix_bits(z), 11), dtype=xp.float64) * 2.0**-53


def mix_bits(z: ArrayT) -> ArrayT:
    """The output of SplitMix64 for positions z [n]."""
    z = (z ^ _logical_right_shift(z, 30)) * MULTIPLIER_1
    z = (z ^ _logical_right_shift(z, 27)) * MULTIPLIER_2
    return z ^ _logical_right_shift(z, 31)


def _logical_right_shift(z: ArrayT, by: int) -> ArrayT:
    """z >> by as for unsigned integers: zeros are shifted in."""
    return (z >> by) & (2 ** (64 - by) - 1)
