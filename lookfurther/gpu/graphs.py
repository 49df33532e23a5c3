"""CUDA graphs: the kernels of a function are captured once and then replayed without Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

WARMUP_CALLS = 3  # eager calls before the capture: libraries choose kernels and allocate memory


class GraphedCallable:
    """A function without arguments and result, on tensors with fixed addresses and shapes.

    Calls after the first few replay a CUDA graph. `generators` are the random generators that the
    function uses. The kernels of a `high_priority` function go first.
    """

    def __init__(
        self,
        fn: Callable[[], object],
        device: torch.device,
        generators: Sequence[torch.Generator] = (),
        high_priority: bool = False,
    ) -> None:
        self.fn, self.device, self.generators = fn, device, generators
        self.priority = -2 if high_priority else -1  # of its kernels; side streams have 0
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """Run the function on the current stream."""
        self.calls += 1
        if self.calls <= WARMUP_CALLS:
            self.fn()
            return
        if self.graph is None:
            self.graph = self._capture()
        self.graph.replay()

    def _capture(self) -> torch.cuda.CUDAGraph:
        """The graph of one call; nothing runs during the capture.

        Each graph is captured on its own stream: libraries keep one workspace per stream, and
        graphs that share a workspace must not run at the same time.
        """
        graph = torch.cuda.CUDAGraph()
        for generator in self.generators:
            graph.register_generator_state(generator)
        torch.cuda.synchronize(self.device)
        stream = torch.cuda.Stream(self.device, priority=self.priority)
        with torch.cuda.graph(graph, stream=stream):
            self.fn()
        return graph
