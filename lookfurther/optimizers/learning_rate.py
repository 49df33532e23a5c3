"""The learning rate as a tensor, which a schedule can change between replays of a CUDA graph."""

from __future__ import annotations

import torch
from torch import Tensor


def make_learning_rate(value: float, parameter: Tensor) -> Tensor:
    """A learning rate on the device of a parameter; GPU kernels read it as float32."""
    dtype = torch.float64 if parameter.is_cpu else torch.float32
    return torch.tensor(value, dtype=dtype, device=parameter.device)
