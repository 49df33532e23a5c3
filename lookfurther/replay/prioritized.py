"""Prioritized replay of films: every frame once, items of several horizons from the same frames.

A lane is one continuous film; a slot holds the newest plane of x_t, the action taken there, the
reward that followed, and marks. An item is (slot, horizon). Where the planes of its stacks lie and
its n-step return are worked out when the last of its steps arrives, so that sampling is looking up.
An item that may not be sampled (its successor has not arrived, its oldest
plane is overwritten, its episode was dropped, its slot is an end) has mass 0, and that is all
the bookkeeping there is. The expert replay is this class too, filled once.

Memory is held as tensors. Index arithmetic is done by NumPy where that memory is the host's and
by torch elsewhere, in the words that both share; batches are tensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lookfurther import array_api, config
from lookfurther.array_api import A, namespace, native, rows, tensor, word
from lookfurther.errors import CheckpointError
from lookfurther.priorities import importance_weights, mass
from lookfurther.replay.splitmix import begin, uniform
from lookfurther.replay.sum_tree import SumTree
from lookfurther.returns import n_step
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
        # A lower bound of the value of each slot's state, where one is known.
        self.floors = torch.full((slots,), -math.inf, device=device)
        # Follows from the above, kept so that sampling only looks it up: where the planes of a
        # slot's stack lie; an item's n-step reward, its discount and the slot of its x'.
        items = slots * len(settings.horizons)
        self.stacks = torch.zeros(slots, spec.stack, dtype=torch.int32, device=device)
        self.r = torch.zeros(items, dtype=torch.float32, device=device)
        self.discount = torch.zeros(items, dtype=torch.float32, device=device)
        self.next = torch.zeros(items, dtype=torch.int32, device=device)
        self.tree = SumTree(items, device)
        self.horizons = torch.tensor(settings.horizons, device=device)
        self.ahead = self._count(self.lag + 1)
        self.back = self._count(spec.stack) + 1 - spec.stack  # of a stack, oldest first
        self.later = native(torch.ones(spec.stack, spec.stack, device=device).tril(-1))
        self.cursor = torch.zeros(lanes, dtype=torch.int64, device=device)  # slots ever written
        self.inserted = 0  # steps ever added, all lanes
        self.random = begin(seed, device)

    @staticmethod
    def bytes_for(spec: Spec, capacity: int, horizons: int) -> int:
        """Memory a replay of `capacity` steps takes."""
        item = np.dtype(spec.dtype).itemsize
        slot = math.prod(spec.plane) * item + 4 + 4 + 1 + 4 + 4 * spec.stack
        return capacity * (slot + (3 * 4 + 8) * horizons)

    @property
    def bytes(self) -> int:
        tensors = [
            self.planes,
            self.actions,
            self.rewards,
            self.marks,
            self.floors,
            self.stacks,
            self.r,
            self.discount,
            self.next,
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
        cursor = native(self.cursor)[first : first + m]
        lane, t = first + self._count(m), cursor + self._count(k)[:, None]
        slot = self._slot(lane, t).reshape(-1)
        plane = torch.as_tensor(chunk.plane, device=self.device).reshape(len(slot), -1)
        self.words.index_copy_(0, torch.as_tensor(slot), plane.view(self.words.dtype))
        self._put(self.actions, slot, chunk.action)
        self._put(self.rewards, slot, chunk.reward)
        self._put(self.marks, slot, chunk.mark)
        self._link(lane, t)
        self._retire(lane, t)
        self._conclude(lane, t - self.lag)
        self._release(lane, t - self.lag, torch.as_tensor(chunk.priority, device=self.device))
        cursor += k

    def settle(self, chunk: Chunk, first: int) -> None:
        """The part of `add` that is Python's: count the steps, forget dropped episodes."""
        self.inserted += chunk.action.shape[0] * chunk.action.shape[1]
        for i in np.flatnonzero(chunk.forget).tolist():
            self._forget(first + i, int(chunk.forget[i]))

    def _native(self, array: np.ndarray | Tensor, dtype: torch.dtype | None = None) -> Any:
        return native(torch.as_tensor(array, dtype=dtype, device=self.device))

    def _put(self, own: Tensor, index: A, new: np.ndarray | Tensor) -> None:
        native(own)[index] = self._native(new, own.dtype).reshape(-1, *own.shape[1:])

    def _count(self, n: int) -> Any:
        """0 ... n - 1."""
        if namespace(native(self.horizons)) is np:
            return np.arange(n)
        return torch.arange(n, device=self.device)

    def sample(self, count: int, both: Tensor | None = None) -> Batch:
        """`count` items in proportion to their mass, one from each of `count` equal strata.

        `both` [2, count, *observation] takes the observations where it is given.
        """
        item, weights, *rest = self._draw(count)
        return self._assemble(item, weights, rest, both)

    def _draw(self, count: int) -> tuple[Any, ...]:
        """Items [B] drawn at random, their importance weights, and `_describe`."""
        place = self._count(count)
        u = uniform(native(self.random), place + 1)
        item, probability = self.tree.draw((place + u) / count)
        weights = importance_weights(probability, self.settings.beta)
        xp = namespace(weights)
        return item, xp.asarray(weights, dtype=xp.float32), *self._describe(item)

    def update(self, item: Tensor, priority: Tensor) -> None:
        """Give sampled items new priorities; what has become unsamplable since stays so."""
        index = native(item)
        new, xp = self._mass(priority), namespace(index)
        self.tree.set(index, xp.where(self.tree.get(index) > 0, new, 0.0))

    def _mass(self, priority: Tensor) -> Any:
        """The masses of items with these priorities, in float64."""
        p = native(priority)
        xp = namespace(p)
        return mass(xp.asarray(p, dtype=xp.float64), self.settings.alpha, self.settings.offset)

    def sweep(self, count: int) -> Iterator[Batch]:
        """Every samplable item once, in order, at most `count` at a time."""
        for item in self.tree.mass.nonzero().view(-1).split(count):
            weights = torch.ones(len(item), device=self.device)
            yield self._assemble(item, weights, self._describe(native(item)), None)

    def compile(self) -> None:
        """Let the arithmetic of sampling run as a few compiled kernels."""
        if array_api.runs_kernels(self.device):
            self.tree.compile()
        self._draw = torch.compile(self._draw, dynamic=False)
        self.update = torch.compile(self.update, dynamic=False)

    def _describe(self, item: A) -> tuple[Any, ...]:
        """The columns of `Batch` from a to a_next of items [B], and their planes' rows."""
        xp, slot = namespace(item), item // len(self.settings.horizons)
        a = xp.asarray(native(self.actions).take(slot), dtype=xp.int64)
        r, discount = native(self.r).take(item), native(self.discount).take(item)
        e = xp.asarray((native(self.marks).take(slot) & BEST) != 0, dtype=xp.float32)
        following = xp.asarray(native(self.next).take(item), dtype=xp.int64)
        floor = native(self.floors).take(following)
        a_next = xp.asarray(native(self.actions).take(following), dtype=xp.int64)
        both = xp.concatenate([slot, following])
        return a, r, discount, e, floor, a_next, rows(native(self.stacks), both)

    def _assemble(
        self, item: Any, weights: Any, described: Sequence[Any], both: Tensor | None
    ) -> Batch:
        """The transitions of items [B], whole."""
        *rest, planes = described
        if both is None:
            shape = (2, len(item), *self.spec.observation)
            both = torch.empty(shape, dtype=self.planes.dtype, device=self.device)
        slot = torch.as_tensor(planes).view(2, -1)
        parts = [(both, slot)] if both.is_contiguous() else zip(both, slot, strict=True)
        for out, index in parts:
            words = out.view(index.numel(), -1).view(self.words.dtype)
            torch.index_select(self.words, 0, index.view(-1), out=words)
        return Batch(both, *map(tensor, (*rest, weights, item)))

    def _link(self, lane: A, t: A) -> None:
        """Note where the planes seen at times t [k, m] lie, blank before an episode's start."""
        slot = self._slot(lane, t, self.back)
        xp = namespace(slot)
        first = xp.asarray(native(self.marks).take(slot) & FIRST, dtype=xp.float32)
        # A plane is blank if a later plane of the stack opens the episode.
        planes = xp.where(first @ self.later > 0, len(self.planes) - 1, slot)
        self._put(self.stacks, slot[..., -1].reshape(-1), planes)

    def _conclude(self, lane: A, t: A) -> None:
        """Note what follows the items of times t [k, m], whose successors have all arrived."""
        item = self._items(self._slot(lane, t))
        ahead = self._slot(lane, t, self.ahead)[..., None, :]
        ahead = torch.as_tensor(ahead).expand(*t.shape, len(self.horizons), -1)
        reward, mark = self.rewards.take(ahead[..., :-1]), self.marks.take(ahead[..., 1:])
        n = self.horizons.expand(*t.shape, -1)
        r, discount, steps = n_step(reward, mark, n, self.gamma)
        self._put(self.r, item, r)
        self._put(self.discount, item, discount)
        self._put(self.next, item, self._slot(lane, t, native(steps)))

    def _slot(self, lane: A, t: A, offset: A | None = None) -> A:
        """Where time t of a lane is kept; with offsets [n], times t + offset as a last axis."""
        if offset is not None:
            lane, t = lane[..., None], t[..., None] + offset
        return lane * self.length + t % self.length

    def _items(self, slot: A) -> A:
        """[n * H] the items of all horizons of slots [n]."""
        h = len(self.settings.horizons)
        return (slot.reshape(-1, 1) * h + self._count(h)).reshape(-1)

    def relink(self) -> None:
        """Work out anew all that follows from rewards and marks, after a change to them."""
        t = self._count(self.length)[:, None]
        for lane in range(self.lanes):
            self._link(lane + self._count(1), t)
            self._conclude(lane + self._count(1), t)

    def _retire(self, lane: A, t: A) -> None:
        """Mass 0 for the slots written at times t [k, m] and those whose stack they tore."""
        self._silence(self._slot(lane, t, self._count(self.spec.stack)))

    def _release(self, lane: A, t: A, priority: Tensor) -> None:
        """Give the items of times t [k, m] their first priorities [k, m, H]; 0: unsamplable."""
        allowed = (native(priority) > 0) & (t >= 0)[..., None]
        new = namespace(allowed).where(allowed, self._mass(priority), 0.0)
        self.tree.set(self._items(self._slot(lane, t)), new.reshape(-1))

    def _forget(self, lane: int, count: int) -> None:
        """Mass 0 for the newest `count` slots of a lane: their episode was dropped."""
        n = min(count, self.length)
        t = native(self.cursor)[lane] - 1 - self._count(n)
        self._silence(lane * self.length + t % self.length)

    def _silence(self, slot: A) -> None:
        """Mass 0 for the items of slots."""
        item = self._items(slot)
        self.tree.set(
            item, native(torch.zeros(item.shape, dtype=torch.float64, device=self.device))
        )

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
            "random": self.random,
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
        self.relink()
        self.cursor.copy_(state["cursor"])
        self.inserted = int(state["inserted"])
        self.random.copy_(state["random"])
