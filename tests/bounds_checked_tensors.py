"""Triton's interpreter, watched: to load or store outside the tensors of a kernel is an error.

On a GPU it would read or overwrite whatever lies there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
from triton.runtime.interpreter import GridExecutor, InterpreterBuilder

Span = tuple[int, int]  # the first byte of a tensor, and the one after its last


def tensor_spans(arguments: Iterable[Any]) -> Iterator[Span]:
    """Of the tensors among arguments, and in tuples among them."""
    for each in arguments:
        if isinstance(each, tuple):
            yield from tensor_spans(each)
        elif hasattr(each, "data_ptr") and each.numel():
            last = sum((n - 1) * step for n, step in zip(each.shape, each.stride(), strict=True))
            yield each.data_ptr(), each.data_ptr() + (last + 1) * each.element_size()


def check_pointers(kernel: str, known: Iterable[Span], pointers: Any, mask: Any) -> None:
    """Every place that the mask lets through lies in a tensor."""
    places = np.asarray(pointers.data)[np.asarray(mask.data, bool)].astype(np.int64)
    size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
    inside = np.zeros(len(places), bool)
    for start, end in known:
        inside |= (places >= start) & (places + size <= end)
    assert inside.all(), f"{kernel} goes outside its tensors"


@contextmanager
def bounds_checked() -> Iterator[None]:
    """While kernels run here, none goes outside its tensors."""
    known: list[Span] = []
    kernel = ""
    prepare = GridExecutor._init_args_hst
    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def prepared(self: Any, args: Any, kwargs: Any) -> Any:
        nonlocal kernel
        kernel, found = self.fn.__name__, prepare(self, args, kwargs)
        known[:] = tensor_spans([*found[0], *found[1].values()])
        return found

    def loaded(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        check_pointers(kernel, known, pointers, mask)
        return load(self, pointers, mask, *rest)

    def stored(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        check_pointers(kernel, known, pointers, mask)
        return store(self, pointers, value, mask, *rest)

    with (
        patch.object(GridExecutor, "_init_args_hst", prepared),
        patch.object(InterpreterBuilder, "create_masked_load", loaded),
        patch.object(InterpreterBuilder, "create_masked_store", stored),
    ):
        yield
