"""Triton's interpreter with bounds checks: a load or store outside a kernel's tensors is an error.

On a GPU it would read or overwrite other memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
from triton.runtime.interpreter import GridExecutor, InterpreterBuilder

Span = tuple[int, int]  # addresses of a tensor's first byte and of the byte after its last


def tensor_spans(arguments: Iterable[Any]) -> Iterator[Span]:
    """The spans of the tensors among arguments, and in tuples among them."""
    for argument in arguments:
        if isinstance(argument, tuple):
            yield from tensor_spans(argument)
        elif hasattr(argument, "data_ptr") and argument.numel():
            strides = zip(argument.shape, argument.stride(), strict=True)
            last = sum((size - 1) * stride for size, stride in strides)
            start = argument.data_ptr()
            yield start, start + (last + 1) * argument.element_size()


def check_pointers(kernel: str, spans: Iterable[Span], pointers: Any, mask: Any) -> None:
    """Fail unless every unmasked pointer is in one of the spans."""
    addresses = np.asarray(pointers.data)[np.asarray(mask.data, bool)].astype(np.int64)
    size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
    is_inside = np.zeros(len(addresses), bool)
    for start, end in spans:
        is_inside |= (addresses >= start) & (addresses + size <= end)
    assert is_inside.all(), f"{kernel} accesses memory outside its tensors"


@contextmanager
def bounds_checked() -> Iterator[None]:
    """Check every load and store of the kernels that run in this context."""
    spans: list[Span] = []
    kernel = ""
    init_args = GridExecutor._init_args_hst
    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def checked_init_args(self: Any, args: Any, kwargs: Any) -> Any:
        nonlocal kernel
        kernel, host_args = self.fn.__name__, init_args(self, args, kwargs)
        spans[:] = tensor_spans([*host_args[0], *host_args[1].values()])
        return host_args

    def checked_load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        check_pointers(kernel, spans, pointers, mask)
        return load(self, pointers, mask, *rest)

    def checked_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        check_pointers(kernel, spans, pointers, mask)
        return store(self, pointers, value, mask, *rest)

    with (
        patch.object(GridExecutor, "_init_args_hst", checked_init_args),
        patch.object(InterpreterBuilder, "create_masked_load", checked_load),
        patch.object(InterpreterBuilder, "create_masked_store", checked_store),
    ):
        yield
