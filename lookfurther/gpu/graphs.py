"""Functions whose work on a GPU is recorded once and replayed without touching Python."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import torch

MAX_AHEAD = 2  # turns that Python may be ahead of a GPU
WARMUP_CALLS = (
    3  # real calls before the recording: libraries choose kernels and take memory in them
)


class GraphedCallable:
    """A function without arguments, its result not asked for, on tensors of fixed place and shape.

    On a CPU it is called as it is. On a GPU the calls after the first few replay a CUDA graph;
    `generators` are the random streams it draws from; an urgent one goes before others.
    """

    def __init__(
        self,
        fn: Callable[[], object],
        device: torch.device,
        generators: Sequence[torch.Generator] = (),
        high_priority: bool = False,
    ) -> None:
        self.fn, self.device, self.generators = fn, device, generators
        self.priority = -2 if high_priority else -1  # of its kernels; branches have 0 and give way
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """Do it once more, on the current stream."""
        self.calls += 1
        if self.device.type != "cuda" or self.calls <= WARMUP_CALLS:
            self.fn()
            return
        if self.graph is None:
            self.graph = self._capture()
        self.graph.replay()

    def _capture(self) -> torch.cuda.CUDAGraph:
        """The graph of one call; recording runs nothing.

        Each is recorded on a stream of its own: libraries keep a workspace per stream, and graphs
        that share one must not run side by side.
        """
        graph = torch.cuda.CUDAGraph()
        for generator in self.generators:
            graph.register_generator_state(generator)
        torch.cuda.synchronize(self.device)
        stream = torch.cuda.Stream(self.device, priority=self.priority)
        with torch.cuda.graph(graph, stream=stream):
            self.fn()
        return graph


class LaunchLimit:
    """Keeps Python at most AHEAD turns ahead of a GPU; a CPU has no backlog."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.events: deque[torch.cuda.Event] = deque()

    def record(self) -> None:
        """Everything given to the current stream so far is one turn."""
        if self.device.type == "cuda":
            event = torch.cuda.Event(blocking=True)
            event.record()
            self.events.append(event)

    def wait(self) -> None:
        """Until fewer than AHEAD turns are unfinished."""
        while len(self.events) >= MAX_AHEAD:
            self.events.popleft().synchronize()
