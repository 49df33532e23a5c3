"""Copies from NumPy arrays to the tensors of a device."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def copy_array(target: Tensor, pinned: Tensor | None, new: np.ndarray) -> None:
    """Copy an array to the device; only a copy from page-locked memory is asynchronous."""
    if pinned is None:
        target.copy_(torch.from_numpy(new))
    else:
        np.copyto(pinned.numpy(), new)  # uses one thread
        target.copy_(pinned, non_blocking=True)


def make_pinned_buffer(tensor: Tensor) -> Tensor | None:
    """Page-locked host memory of the same shape, for a tensor on a GPU."""
    return torch.empty_like(tensor, device="cpu", pin_memory=True) if tensor.is_cuda else None
