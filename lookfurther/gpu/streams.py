"""Branches of work: what a GPU may do beside what follows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class SideStream:
    """A stream for work that what follows does not need at once; a CPU does it on the spot.

    Where both have work ready, a GPU begins that of an `urgent` one first. Tensors that the branch
    reads must stay referenced until it has joined.
    """

    def __init__(self, device: torch.device, high_priority: bool = False) -> None:
        self.stream = None
        if device.type == "cuda":
            self.stream = torch.cuda.Stream(device, priority=-1 if high_priority else 0)

    @contextmanager
    def fork(self) -> Iterator[None]:
        """Work given here begins after what came before, and runs beside what comes after."""
        if self.stream is None:
            yield
            return
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        """What comes after this follows the branch."""
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
