"""Batches whose share of demonstrations is not fixed, from replays in host memory.

The strata of a draw are in order: the first ones fall on the agent's steps, the others on the
demonstrations. The number of each differs between batches, which a CUDA graph could not do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from torch import Tensor

from lookfurther.priorities import importance_weights
from lookfurther.replay.mixture import ReplayMixture
from lookfurther.replay.prioritized import PrioritizedReplay
from lookfurther.types import Batch


class SharedMixture(ReplayMixture, ABC):
    """Draws from both replays: a share of the strata falls on the demonstrations.

    An expert item i is -1 - i in a batch.
    """

    @property
    def demos(self) -> PrioritizedReplay:
        """The expert replay."""
        assert self.expert is not None
        return self.expert

    @abstractmethod
    def expert_share(self) -> float:
        """The share of demonstrations in the next batch."""

    @abstractmethod
    def compute_weights(self, agent: Any, expert: Any, share: float) -> tuple[Any, Any]:
        """Importance weights for probabilities within the agent's and the expert's replay."""

    def sample(self, out: Batch | None = None) -> Batch:
        out = out or self.empty_batch()
        rows, share = self.agent.rows_per_item, self.expert_share()
        position, boundary = self.agent.draw_shares(len(out.a) // rows), 1 - share
        split = int(np.searchsorted(position, boundary))
        item, probability = self.agent.tree.draw_items(position[:split] / boundary)
        expert_draw = (position[split:] - boundary) / share
        expert_item, expert_probability = self.demos.tree.draw_items(expert_draw)
        weights = self.compute_weights(probability, expert_probability, share)
        parts: list[Batch] = []
        if split > 0:
            x_both = out.x_both[:, : split * rows]
            parts.append(self.agent.load_items(item, weights[0], x_both))
        if split < len(position):
            x_both = out.x_both[:, split * rows :]
            part = self.demos.load_items(expert_item, weights[1], x_both)
            parts.append(part._replace(item=-1 - part.item))
        self._fill_columns(out, *parts)
        return out

    def update_priorities(self, item: Tensor, priority: Tensor) -> None:
        is_expert = item < 0
        self.agent.update_priorities(item[~is_expert], priority[~is_expert])
        self.demos.update_priorities(-1 - item[is_expert], priority[is_expert])


class PriorityMixture(SharedMixture):
    """Draws from both replays as if they were one, in proportion to mass (DQfD)."""

    def expert_share(self) -> float:
        agent, expert = self.agent.tree.total_mass, self.demos.tree.total_mass
        return float(expert / (agent + expert))

    def compute_weights(self, agent: Any, expert: Any, share: float) -> tuple[Any, Any]:
        probability = np.concatenate([(1 - share) * agent, share * expert])
        weights = importance_weights(probability, self.agent.beta)
        return weights[: len(agent)], weights[len(agent) :]


class AnnealedMixture(SharedMixture):
    """A schedule sets the share of demonstrations in a batch; it starts at `expert_items`."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.initial_share = self.expert_items / (self.agent_items + self.expert_items)
        self.scheduled_share = self.initial_share

    def expert_share(self) -> float:
        return self.scheduled_share

    def compute_weights(self, agent: Any, expert: Any, share: float) -> tuple[Any, Any]:
        """The largest weight of each replay is 1, as in a batch with a fixed share."""
        agent, expert = (
            importance_weights(p, replay.beta) if len(p) else p
            for p, replay in ((agent, self.agent), (expert, self.demos))
        )
        return agent, expert
