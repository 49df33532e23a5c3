"""A replay whose items are steps: the losses of all horizons of a step are summed (DQfD)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lookfurther.array_api import ArrayT, array_namespace
from lookfurther.replay.prioritized import PrioritizedReplay


class SummedHorizonReplay(PrioritizedReplay):
    """Draws steps, and returns the transitions of all horizons of a step as consecutive rows.

    Only items of the first horizon have mass. A step has the priority of its first horizon. The
    objective averages over rows, so the weights of the H rows of a step are H times its weight:
    the result is the mean over steps of the sum over horizons. The imitation loss counts once.
    """

    @property
    def rows_per_item(self) -> int:
        return len(self.config.horizons)

    def expand_items(self, item: ArrayT, weights: ArrayT) -> tuple[ArrayT, ArrayT]:
        h = self.rows_per_item
        rows = (item[:, None] + self._arange(h)).reshape(-1)
        weights = weights[:, None] + array_namespace(weights).zeros_like(rows.reshape(-1, h))
        return rows, h * weights.reshape(-1)

    def gather_columns(self, item: ArrayT) -> tuple[Any, ...]:
        a, r, discount, e, *rest = super().gather_columns(item)
        return a, r, discount, e * (item % self.rows_per_item == 0), *rest

    def _set_initial_priorities(self, lane: ArrayT, t: ArrayT, priority: Tensor) -> None:
        first_only = priority.clone()
        first_only[..., 1:] = 0
        super()._set_initial_priorities(lane, t, first_only)

    def update_priorities(self, item: Tensor, priority: Tensor) -> None:
        h = self.rows_per_item
        super().update_priorities(item[::h], priority[::h])
