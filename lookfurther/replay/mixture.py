"""The learner's batch: 75 % agent and 25 % expert items, always (Sec. 3.4)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lookfurther.acceleration import make_side_stream
from lookfurther.replay.prioritized import PrioritizedReplay
from lookfurther.types import Batch


class ReplayMixture:
    """Draws from both replays and takes each one's priorities back to it."""

    def __init__(
        self,
        agent: PrioritizedReplay,
        expert: PrioritizedReplay | None,
        agent_items: int,
        expert_items: int,
    ) -> None:
        self.agent, self.expert = agent, expert
        self.agent_items, self.expert_items = agent_items, expert_items
        self.expert_stream = make_side_stream(agent.device, high_priority=True)

    def empty_batch(self) -> Batch:
        """A batch to be filled."""
        n, planes = self.agent_items + self.expert_items, self.agent.planes
        observation = self.agent.spec.observation_shape
        both = torch.empty(2, n, *observation, dtype=planes.dtype, device=planes.device)
        a, a_next, item = torch.zeros(3, n, dtype=torch.int64, device=planes.device)
        r, discount, e, floor, w = torch.zeros(5, n, device=planes.device)
        return Batch(both, a, r, discount, e, floor, a_next, w, item)

    def sample(self, out: Batch | None = None) -> Batch:
        """Agent items first, expert items after them; into `out` where it is given."""
        out = out or self.empty_batch()
        if self.expert is None:
            self._fill_columns(out, self.agent.sample(self.agent_items, out.x_both))
            return out
        n = self.agent_items
        with self.expert_stream.fork():
            expert = self.expert.sample(self.expert_items, out.x_both[:, n:])
        agent = self.agent.sample(n, out.x_both[:, :n])
        self.expert_stream.join()
        self._fill_columns(out, agent, expert)
        return out

    def _fill_columns(self, out: Batch, *parts: Batch) -> None:
        """All but the observations, which are in their place already."""
        for own, *new in zip(out[1:], *(part[1:] for part in parts), strict=True):
            own.copy_(torch.cat(new))

    def compile(self) -> None:
        """Let the arithmetic of sampling run as a few compiled kernels."""
        for replay in (self.agent, self.expert):
            if replay is not None:
                replay.compile()
        options: dict[str, Any] = {"combo_kernels": True}  # one kernel for all columns
        self._fill_columns = torch.compile(self._fill_columns, dynamic=False, options=options)

    def update_priorities(self, item: Tensor, priority: Tensor) -> None:
        """Priorities [B] for the items [B] of the last sample."""
        n = self.agent_items
        with self.expert_stream.fork():
            if self.expert is not None:
                self.expert.update_priorities(item[n:], priority[n:])
        self.agent.update_priorities(item[:n], priority[:n])
        self.expert_stream.join()
