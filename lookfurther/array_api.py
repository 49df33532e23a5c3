"""Functions for index arithmetic that runs in NumPy or in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

ArrayT = TypeVar("ArrayT", np.ndarray, Tensor)
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def to_native(x: Tensor) -> Any:
    """A NumPy view of a tensor on the host, where small NumPy operations cost a quarter."""
    return x.numpy() if x.is_cpu else x


def to_tensor(x: np.ndarray | Tensor) -> Tensor:
    """The inverse of `native`."""
    return x if isinstance(x, Tensor) else torch.from_numpy(x)


def array_namespace(x: np.ndarray | Tensor) -> Any:
    """The library of x: numpy or torch."""
    return torch if isinstance(x, Tensor) else np


def take_rows(x: ArrayT, index: ArrayT) -> ArrayT:
    """x[index], by the fastest function of the library."""
    if isinstance(x, Tensor):
        return x.index_select(0, index)
    return np.take(x, index, axis=0)


def widest_dtype(size: int) -> torch.dtype:
    """The widest integer type that divides `size` bytes: copies are faster in it."""
    for dtype in (torch.int64, torch.int32):
        if size % dtype.itemsize == 0:
            return dtype
    return torch.uint8


def compile_static(function: FunctionT, **options: Any) -> FunctionT:
    """`function` compiled by torch for fixed shapes."""
    torch_compile: Any = torch.compile
    return torch_compile(function, dynamic=False, options=options or None)
