"""The learner's batch: 75 % agent and 25 % expert items, always (Sec. 3.4)."""

from __future__ import annotations

import torch
from torch import Tensor

from lookfurther.array_api import compile_static
from lookfurther.replay.prioritized import PrioritizedReplay
from lookfurther.system.acceleration import make_side_stream
from lookfurther.types import Batch


class ReplayMixture:
    """Samples from both replays, and gives each replay the new priorities of its items."""

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

    @property
    def replays(self) -> list[PrioritizedReplay]:
        """The agent's replay and, if there is one, the expert's."""
        return [replay for replay in (self.agent, self.expert) if replay is not None]

    def expert_only(self) -> ReplayMixture:
        """Batches of the same size of demonstrations alone, for pre-training."""
        assert self.expert is not None
        return ReplayMixture(self.expert, None, self.agent_items + self.expert_items, 0)

    def empty_batch(self) -> Batch:
        """A batch to write to."""
        n, planes = self.agent_items + self.expert_items, self.agent.planes
        observation = self.agent.spec.observation_shape
        x_both = torch.empty(2, n, *observation, dtype=planes.dtype, device=planes.device)
        a, a_next, item = torch.zeros(3, n, dtype=torch.int64, device=planes.device)
        r, discount, e, floor, w = torch.zeros(5, n, device=planes.device)
        return Batch(x_both, a, r, discount, e, floor, a_next, w, item)

    def sample(self, out: Batch | None = None) -> Batch:
        """Agent items, then expert items; written to `out` if it is given."""
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
        """Concatenate the columns of the parts, except the observations, which are in place."""
        for column, *new in zip(out[1:], *(part[1:] for part in parts), strict=True):
            column.copy_(torch.cat(new))

    def compile(self) -> None:
        """Compile the arithmetic of sampling into a few kernels."""
        for replay in self.replays:
            replay.compile()
        # One kernel for all columns.
        self._fill_columns = compile_static(self._fill_columns, combo_kernels=True)

    def update_priorities(self, item: Tensor, priority: Tensor) -> None:
        """Set priorities [B] of the items [B] of a batch."""
        n = self.agent_items
        with self.expert_stream.fork():
            if self.expert is not None:
                self.expert.update_priorities(item[n:], priority[n:])
        self.agent.update_priorities(item[:n], priority[:n])
        self.expert_stream.join()
