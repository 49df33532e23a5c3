"""Prioritized replay of films: every frame once, items of several horizons from the same frames.

A lane is one continuous film; a slot holds the newest plane of x_t, the action taken there, the
reward that followed, and marks. An item is (slot, horizon). Stacks and n-step returns are put
together on sampling. An item that may not be sampled (its successor has not arrived, its oldest
plane is overwritten, its episode was dropped, its slot is an end) has mass 0, and that is all
the bookkeeping there is. The expert replay is this class too, filled once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

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
        # The same memory in the widest words that fit, in which rows are copied faster.
        self.words = self.planes.view(word(self.planes[0].nbytes))
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

    def add(self, chunk: Chunk, first: int = 0) -> None:
        """Append k slots to lanes first ... first + m, over the oldest; take priorities now due."""
        self.write(chunk, first)
        self.settle(chunk, first)

    def write(self, chunk: Chunk, first: int) -> None:
        """The part of `add` that a device does alone, without asking Python."""
        k, m = chunk.action.shape
        lane = torch.arange(first, first + m, device=self.device)
        t = self.cursor[first : first + m] + torch.arange(k, device=self.device).unsqueeze(-1)
        slot = self._slot(lane, t).view(-1)
        plane = self._tensor(chunk.plane).reshape(len(slot), -1)
        self.words.index_copy_(0, slot, plane.view(self.words.dtype))
        self.actions[slot] = self._tensor(chunk.action).reshape(-1).to(torch.int32)
        self.rewards[slot] = self._tensor(chunk.reward).reshape(-1)
        self.marks[slot] = self._tensor(chunk.mark).reshape(-1)
        self._retire(lane, t)
        self._release(lane, t - self.lag, self._tensor(chunk.priority))
        self.cursor[first : first + m] += k

    def settle(self, chunk: Chunk, first: int) -> None:
        """The part of `add` that is Python's: count the steps, forget dropped episodes."""
        self.inserted += chunk.action.shape[0] * chunk.action.shape[1]
        for i in np.flatnonzero(chunk.forget).tolist():
            self._forget(first + i, int(chunk.forget[i]))

    def _tensor(self, array: np.ndarray | Tensor) -> Tensor:
        return torch.as_tensor(array, device=self.device)

    def sample(self, count: int, both: Tensor | None = None) -> Batch:
        """`count` items in proportion to their mass, one from each of `count` equal strata.

        `both` [2, count, *observation] takes the observations where it is given.
        """
        u = torch.rand(count, generator=self.generator, device=self.device, dtype=torch.float64)
        item, weights, *rest = self._draw(u)
        return self._assemble(item, weights, rest, both)

    def _draw(self, u: Tensor) -> tuple[Tensor, ...]:
        """Items [B] for uniform numbers [B], their importance weights, and `_describe`."""
        total = self.tree.total
        strata = torch.arange(len(u), device=self.device)
        item = self.tree.find((strata + u) / len(u) * total)
        probability = self.tree.get(item) / total
        weights = importance_weights(probability, self.settings.beta)
        return item, weights, *self._describe(item)

    def update(self, item: Tensor, priority: Tensor) -> None:
        """Give sampled items new priorities; what has become unsamplable since stays so."""
        new = mass(priority, self.settings.alpha, self.settings.offset)
        self.tree.set(item, torch.where(self.tree.get(item) > 0, new, 0.0))

    def sweep(self, count: int) -> Iterator[Batch]:
        """Every samplable item once, in order, at most `count` at a time."""
        for item in self.tree.mass.nonzero().view(-1).split(count):
            weights = torch.ones(len(item), device=self.device)
            yield self._assemble(item, weights, self._describe(item), None)

    def compile(self) -> None:
        """Let the arithmetic of sampling run as a few compiled kernels."""
        self._draw = torch.compile(self._draw, dynamic=False)

    def _describe(self, item: Tensor) -> tuple[Tensor, ...]:
        """Of items [B]: a, r, discount, e, and where the planes of x and x' lie [2, B, stack]."""
        h = len(self.settings.horizons)
        slot, n = item // h, self.horizons.take(item % h)
        lane, t = slot // self.length, slot % self.length
        ahead = self._slot(lane, t, self.ahead)
        reward, mark = self.rewards.take(ahead[:, :-1]), self.marks.take(ahead)
        r, discount, steps = n_step(reward, mark[:, 1:], n, self.gamma)
        e = ((mark[:, 0] & BEST) != 0).float()
        planes = self._stack(lane.expand(2, -1), torch.stack([t, t + steps]))
        return self.actions.take(slot).long(), r, discount, e, planes

    def _assemble(
        self, item: Tensor, weights: Tensor, described: Sequence[Tensor], both: Tensor | None
    ) -> Batch:
        """The transitions of items [B], whole."""
        a, r, discount, e, planes = described
        if both is None:
            shape = (2, len(item), *self.spec.observation)
            both = torch.empty(shape, dtype=self.planes.dtype, device=self.device)
        for out, slot in zip(both, planes, strict=True):
            words = out.view(slot.numel(), -1).view(self.words.dtype)
            torch.index_select(self.words, 0, slot.view(-1), out=words)
        return Batch(both, a, r, discount, e, weights, item)

    def _stack(self, lane: Tensor, t: Tensor) -> Tensor:
        """[..., stack]: where the planes seen at times t lie, blank before an episode's start."""
        slot = self._slot(lane, t, self.back)
        first = ((self.marks.take(slot) & FIRST) != 0).float()
        # A plane is blank if a later plane of the stack opens the episode.
        return torch.where(first @ self.later > 0, len(self.planes) - 1, slot)

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

    def _forget(self, lane: int, count: int) -> None:
        """Mass 0 for the newest `count` slots of a lane: their episode was dropped."""
        n = min(count, self.length)
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


def word(size: int) -> torch.dtype:
    """The widest type of which `size` bytes are a whole number."""
    return next(
        dtype for dtype in (torch.int64, torch.int32, torch.uint8) if size % dtype.itemsize == 0
    )
