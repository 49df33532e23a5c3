"""The only importer of `lookfurther.gpu`. Without that folder everything runs, only slower."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch


def supports_triton(device: torch.device) -> bool:
    """Whether Triton kernels run on a device: they are written for GPUs."""
    return device.type == "cuda"


def load_kernels(name: str, device: torch.device) -> Any | None:
    """A module of `lookfurther.gpu`; None if its kernels cannot run on the device."""
    return _import_gpu_module(name) if supports_triton(device) else None


def _import_gpu_module(name: str) -> Any | None:
    """None if the folder is missing, or Triton."""
    try:
        return importlib.import_module(f"lookfurther.gpu.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("lookfurther", "triton"):
            raise
        return None


class SideStream(Protocol):
    """Runs work at the same time as the work after it; see `lookfurther.gpu.streams`."""

    def fork(self) -> AbstractContextManager[None]: ...
    def join(self) -> None: ...


class InlineStream:
    """On a CPU, work runs immediately."""

    def fork(self) -> AbstractContextManager[None]:
        return nullcontext()

    def join(self) -> None:
        pass


def make_side_stream(device: torch.device, high_priority: bool = False) -> SideStream:
    """A CUDA stream next to the current one; on a CPU, an `InlineStream`."""
    module = _import_gpu_module("streams") if device.type == "cuda" else None
    return module.CudaSideStream(device, high_priority) if module else InlineStream()


def make_graphed(
    fn: Callable[[], object],
    device: torch.device,
    generators: Sequence[torch.Generator] = (),
    high_priority: bool = False,
) -> Callable[[], object]:
    """`fn` as a CUDA graph, see `lookfurther.gpu.graphs`; on a CPU, `fn` itself."""
    module = _import_gpu_module("graphs") if device.type == "cuda" else None
    return module.GraphedCallable(fn, device, generators, high_priority) if module else fn
