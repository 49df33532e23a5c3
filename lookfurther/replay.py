"""Prioritized replay of films: every frame once, items of several horizons from the same frames.

A lane is one continuous film; a slot holds the newest plane of x_t, the action taken there, the
reward that followed, and marks. An item is (slot, horizon). Stacks and n-step returns are put
together on sampling. An item that may not be sampled (its successor has not arrived, its oldest
plane is overwritten, its episode was dropped, its slot is an end) has mass 0, and that is all
the bookkeeping there is. The expert replay is this class too, filled once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from lookfurther import config
from lookfurther.errors import CheckpointError
from lookfurther.priorities import importance_weights, mass
from lookfurther.returns import n_step
from lookfurther.sumtree import SumTree
from lookfurther.types import BEST, FIRST, Batch, Chunk, Spec


class Replay:
    """`lanes` rings of capacity // lanes slots each, in the memory of `device`."""

    def __init__(
        self,
        spec: Spec,
        lanes: int,
        capacity: int,
        settings: config.Replay,
        gamma: float,
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> None:
        self.spec, self.lanes, self.settings, self.gamma = spec, lanes, settings, gamma
        self.device = torch.device(device)
        self.length = capacity // lanes
        self.lag = max(settings.horizons)
        slots = lanes * self.length
        plane = math.prod(spec.plane)
        # The last row stays blank: it stands for the planes before an episode's start.
        self.planes = torch.zeros(slots + 1, plane, dtype=getattr(torch, spec.dtype), device=device)
        self.actions = torch.zeros(slots, dtype=torch.int32, device=device)
        self.rewards = torch.zeros(slots, dtype=torch.float32, device=device)
        self.marks = torch.zeros(slots, dtype=torch.uint8, device=device)
        self.tree = SumTree(slots * len(settings.horizons), device)
        self.horizons = torch.tensor(settings.horizons, device=device)
        self.ahead = torch.arange(self.lag + 1, device=device)
        self.back = torch.arange(1 - spec.stack, 1, device=device)  # of a stack, oldest first
        self.later = torch.ones(spec.stack, spec.stack, device=device).tril(-1)
        self.cursor = torch.zeros(lanes, dtype=torch.int64, device=device)  # slots ever written
        self.inserted = 0  # steps ever added, all lanes
        self.generator = torch.Generator(device).manual_seed(seed)

    @staticmethod
    def bytes_for(spec: Spec, capacity: int, horizons: int) -> int:
        """Memory a replay of `capacity` steps takes."""
        item = np.dtype(spec.dtype).itemsize
        return capacity * (math.prod(spec.plane) * item + 4 + 4 + 1 + 8 * horizons * 129 // 128)

    @property
    def bytes(self) -> int:
        tensors = [
            self.planes,
            self.actions,
            self.rewards,
            self.marks,
            self.tree.blocks,
            self.tree.sums,
        ]
        return sum(t.numel() * t.element_size() for t in tensors)

    def __len__(self) -> int:
        """Steps held."""
        return min(self.inserted, self.lanes * self.length)

    def add(self, chunk: Chunk) -> None:
        """Append k slots to every lane, over the oldest, and take the priorities that came due."""
        k, m = chunk.action.shape
        lane = torch.arange(m, device=self.device)
        t = self.cursor + torch.arange(k, device=self.device).unsqueeze(-1)  # [k, m]
        slot = self._slot(lane, t).view(-1)
        plane = torch.from_numpy(chunk.plane).reshape(k * m, -1)
        self.planes.index_copy_(0, slot, plane.to(self.device))
        self.actions[slot] = torch.from_numpy(chunk.action).view(-1).to(self.device, torch.int32)
        self.rewards[slot] = torch.from_numpy(chunk.reward).view(-1).to(self.device)
        self.marks[slot] = torch.from_numpy(chunk.mark).view(-1).to(self.device)
        self._retire(lane, t)
        self._release(lane, t - self.lag, torch.from_numpy(chunk.priority).to(self.device))
        self.cursor += k
        self.inserted += k * m
        if chunk.forget.any():
            self._forget(chunk.forget)

    def sample(self, count: int) -> Batch:
        """`count` items in proportion to their mass, one from each of `count` equal strata."""
        u = torch.rand(count, generator=self.generator, device=self.device, dtype=torch.float64)
        strata = torch.arange(count, device=self.device)
        total = self.tree.total
        item = self.tree.find((strata + u) / count * total)
        probability = self.tree.get(item) / total
        return self._assemble(item, importance_weights(probability, self.settings.beta))

    def update(self, item: Tensor, priority: Tensor) -> None:
        """Give sampled items new priorities; what has become unsamplable since stays so."""
        new = mass(priority, self.settings.alpha, self.settings.offset)
        self.tree.set(item, torch.where(self.tree.get(item) > 0, new, 0.0))

    def sweep(self, count: int) -> Iterator[Batch]:
        """Every samplable item once, in order, at most `count` at a time."""
        for item in self.tree.mass.nonzero().view(-1).split(count):
            yield self._assemble(item, torch.ones(len(item), device=self.device))

    def _assemble(self, item: Tensor, weights: Tensor) -> Batch:
        """The transitions of items [B], whole."""
        h = len(self.settings.horizons)
        slot, n = item // h, self.horizons.take(item % h)
        lane, t = slot // self.length, slot % self.length
        ahead = self._slot(lane, t, self.ahead)
        reward, mark = self.rewards.take(ahead[:, :-1]), self.marks.take(ahead)
        r, discount, steps = n_step(reward, mark[:, 1:], n, self.gamma)
        e = ((mark[:, 0] & BEST) != 0).float()
        # x' beside x: the planes they share are read from memory once.
        both = self._observe(lane.repeat_interleave(2), torch.stack([t, t + steps], -1).view(-1))
        x, x_next = both.view(-1, 2, *self.spec.observation).unbind(1)
        return Batch(x, self.actions.take(slot).long(), r, discount, x_next, e, weights, item)

    def _observe(self, lane: Tensor, t: Tensor) -> Tensor:
        """[B, *observation]: the stacks that end at times t, blank before their episode's start."""
        slot = self._slot(lane, t, self.back)
        first = ((self.marks.take(slot) & FIRST) != 0).float()
        # A plane is blank if a later plane of the stack opens the episode.
        slot = torch.where(first @ self.later > 0, len(self.planes) - 1, slot)
        planes = self.planes.index_select(0, slot.view(-1))
        return planes.view(-1, *self.spec.observation)

    def _slot(self, lane: Tensor, t: Tensor, offset: Tensor | None = None) -> Tensor:
        """Where time t of a lane is kept; with offsets [n], times t + offset as a last axis."""
        if offset is not None:
            lane, t = lane.unsqueeze(-1), t.unsqueeze(-1) + offset
        return lane * self.length + t % self.length

    def _items(self, slot: Tensor) -> Tensor:
        """[n * H] the items of all horizons of slots [n]."""
        h = len(self.settings.horizons)
        return (slot.reshape(-1, 1) * h + torch.arange(h, device=self.device)).view(-1)

    def _retire(self, lane: Tensor, t: Tensor) -> None:
        """Mass 0 for the slots written at times t [k, m] and those whose stack they tore."""
        ahead = torch.arange(self.spec.stack, device=self.device)
        item = self._items(self._slot(lane.expand_as(t), t, ahead))
        self.tree.set(item, torch.zeros(len(item), dtype=torch.float64, device=self.device))

    def _release(self, lane: Tensor, t: Tensor, priority: Tensor) -> None:
        """Give the items of times t [k, m] their first priorities [k, m, H]; 0: unsamplable."""
        allowed = (priority > 0) & (t >= 0).unsqueeze(-1)
        new = torch.where(allowed, mass(priority, self.settings.alpha, self.settings.offset), 0.0)
        self.tree.set(self._items(self._slot(lane, t)), new.view(-1))

    def _forget(self, count: np.ndarray) -> None:
        """Mass 0 for the newest count[lane] slots of each lane: their episode was dropped."""
        for lane in np.flatnonzero(count).tolist():
            n = min(int(count[lane]), self.length)
            t = self.cursor[lane] - 1 - torch.arange(n, device=self.device)
            item = self._items(lane * self.length + t % self.length)
            self.tree.set(item, torch.zeros(len(item), dtype=torch.float64, device=self.device))

    def state(self) -> dict[str, Tensor]:
        """Everything, for a checkpoint: views where a device allows, so nothing is doubled."""
        filled = min(int(self.cursor.max()), self.length)
        by_lane = lambda x: x[: self.lanes * self.length].view(self.lanes, self.length, -1)  # noqa: E731
        return {
            "planes": by_lane(self.planes)[:, :filled],
            "actions": by_lane(self.actions)[:, :filled],
            "rewards": by_lane(self.rewards)[:, :filled],
            "marks": by_lane(self.marks)[:, :filled],
            "mass": by_lane(self.tree.mass.view(len(self.actions), -1))[:, :filled],
            "cursor": self.cursor,
            "inserted": torch.tensor(self.inserted),
            "generator": self.generator.get_state(),
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        """The inverse of `state`."""
        lanes, filled, plane = state["planes"].shape
        if (lanes, plane) != (self.lanes, self.planes.shape[1]) or filled > self.length:
            raise CheckpointError(
                f"the saved replay has {lanes} lanes of {filled} slots of {plane} values, this one"
                f" {self.lanes} of {self.length} of {self.planes.shape[1]}: resume with its sizes"
            )
        slots = lanes * self.length
        whole = torch.zeros(lanes, self.length, len(self.horizons), dtype=torch.float64)
        whole[:, :filled] = state["mass"].cpu()
        self.tree.rebuild(whole.view(-1).to(self.device))
        self.planes[:slots].view(lanes, self.length, -1)[:, :filled] = state["planes"].to(
            self.device
        )
        for name in ("actions", "rewards", "marks"):
            target = getattr(self, name).view(lanes, self.length, 1)
            target[:, :filled] = state[name].to(self.device)
        self.cursor.copy_(state["cursor"])
        self.inserted = int(state["inserted"])
        self.generator.set_state(state["generator"].cpu())
