"""What NumPy and torch share, for index arithmetic that runs on either."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

ArrayT = TypeVar("ArrayT", np.ndarray, Tensor)


def to_native(x: Tensor) -> Any:
    """The same memory as NumPy sees it on the host, where its small operations cost a quarter."""
    return x.numpy() if x.is_cpu else x


def to_tensor(x: np.ndarray | Tensor) -> Tensor:
    """The inverse of `native`."""
    return x if isinstance(x, Tensor) else torch.from_numpy(x)


def array_namespace(x: np.ndarray | Tensor) -> Any:
    """The library whose functions take x."""
    return torch if isinstance(x, Tensor) else np


def take_rows(x: ArrayT, index: ArrayT) -> ArrayT:
    """x[index], by the fastest way."""
    if isinstance(x, Tensor):
        return x.index_select(0, index)
    return np.take(x, index, axis=0)


def widest_dtype(size: int) -> torch.dtype:
    """The widest type of which `size` bytes are a whole number: memory is moved faster in it."""
    for dtype in (torch.int64, torch.int32):
        if size % dtype.itemsize == 0:
            return dtype
    return torch.uint8
