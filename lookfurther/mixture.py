"""The learner's batch: 75 % agent and 25 % expert items, always (Sec. 3.4)."""

from __future__ import annotations

import torch
from torch import Tensor

from lookfurther.replay import Replay
from lookfurther.types import Batch


class Mixture:
    """Draws from both replays and takes each one's priorities back to it."""

    def __init__(
        self, agent: Replay, expert: Replay | None, agent_items: int, expert_items: int
    ) -> None:
        self.agent, self.expert = agent, expert
        self.agent_items, self.expert_items = agent_items, expert_items

    def sample(self) -> Batch:
        """Agent items first, expert items after them."""
        agent = self.agent.sample(self.agent_items)
        if self.expert is None:
            return agent
        expert = self.expert.sample(self.expert_items)
        return Batch(*(torch.cat(pair) for pair in zip(agent, expert, strict=True)))

    def update(self, item: Tensor, priority: Tensor) -> None:
        """Priorities [B] for the items [B] of the last sample."""
        n = self.agent_items
        self.agent.update(item[:n], priority[:n])
        if self.expert is not None:
            self.expert.update(item[n:], priority[n:])
