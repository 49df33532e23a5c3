"""The learner's batch: 75 % agent and 25 % expert items, always (Sec. 3.4)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lookfurther.aside import Aside
from lookfurther.replay import Replay
from lookfurther.types import Batch


class Mixture:
    """Draws from both replays and takes each one's priorities back to it."""

    def __init__(
        self, agent: Replay, expert: Replay | None, agent_items: int, expert_items: int
    ) -> None:
        self.agent, self.expert = agent, expert
        self.agent_items, self.expert_items = agent_items, expert_items
        self.aside = Aside(agent.device)

    def sample(self) -> Batch:
        """Agent items first, expert items after them."""
        if self.expert is None:
            return self.agent.sample(self.agent_items)
        n = self.agent_items
        shape = (2, n + self.expert_items, *self.agent.spec.observation)
        planes = self.agent.planes
        both = torch.empty(shape, dtype=planes.dtype, device=planes.device)
        with self.aside.branch():
            expert = self.expert.sample(self.expert_items, both[:, n:])
        agent = self.agent.sample(n, both[:, :n])
        self.aside.join()
        return Batch(both, *self._join(agent[1:], expert[1:]))

    def _join(self, agent: Sequence[Tensor], expert: Sequence[Tensor]) -> list[Tensor]:
        return [torch.cat(pair) for pair in zip(agent, expert, strict=True)]

    def compile(self) -> None:
        """Let the arithmetic of sampling run as a few compiled kernels."""
        for replay in (self.agent, self.expert):
            if replay is not None:
                replay.compile()
        self._join = torch.compile(self._join, dynamic=False)

    def update(self, item: Tensor, priority: Tensor) -> None:
        """Priorities [B] for the items [B] of the last sample."""
        n = self.agent_items
        self.agent.update(item[:n], priority[:n])
        if self.expert is not None:
            self.expert.update(item[n:], priority[n:])
