"""A limit on the work that is queued on a GPU."""

from __future__ import annotations

from collections import deque

import torch

MAX_AHEAD = 2  # iterations of the loop that Python may be ahead of a GPU


class LaunchLimit:
    """Keeps Python at most MAX_AHEAD iterations ahead of a GPU; does nothing on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.events: deque[torch.cuda.Event] = deque()

    def record(self) -> None:
        """End an iteration: it consists of everything queued on the current stream so far."""
        if self.device.type == "cuda":
            event = torch.cuda.Event(blocking=True)
            event.record()
            self.events.append(event)

    def wait(self) -> None:
        """Wait until fewer than MAX_AHEAD iterations are unfinished."""
        while len(self.events) >= MAX_AHEAD:
            self.events.popleft().synchronize()
