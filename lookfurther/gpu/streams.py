"""CUDA streams for work that runs at the same time as the work after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class CudaSideStream:
    """A stream for work whose result is not needed at once.

    If several streams have work ready, the GPU starts that of a `high_priority` stream first. Keep
    references to the tensors that the forked work reads until `join`.
    """

    def __init__(self, device: torch.device, high_priority: bool = False) -> None:
        self.stream = torch.cuda.Stream(device, priority=-1 if high_priority else 0)

    @contextmanager
    def fork(self) -> Iterator[None]:
        """Work in this context runs after what is queued now, in parallel to what follows."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        """Make the current stream wait for this one."""
        torch.cuda.current_stream().wait_stream(self.stream)
