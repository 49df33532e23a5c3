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

from lookfurther import config
from lookfurther.array_api import (
    ArrayT,
    array_namespace,
    take_rows,
    to_native,
    to_tensor,
    widest_dtype,
)
from lookfurther.errors import CheckpointError
from lookfurther.priorities import importance_weights, priority_mass
from lookfurther.replay.splitmix import init_rng_state, next_uniform
from lookfurther.replay.sum_tree import SumTree
from lookfurther.returns import n_step_return
from lookfurther.types import BEST, FIRST, Batch, Chunk, Spec


class PrioritizedReplay:
    """`lanes` rings of capacity // lanes slots each, in the memory of `device`."""

    def __init__(
        self,
        spec: Spec,
        lanes: int,
        capacity: int,
        settings: config.ReplayConfig,
        gamma: float,
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> None:
        self.spec, self.lanes, self.settings, self.gamma = spec, lanes, settings, gamma
        self.device = torch.device(device)
        self.slots_per_lane = capacity // lanes
        self.max_horizon = max(settings.horizons)
        slots = lanes * self.slots_per_lane
        plane = math.prod(spec.plane)
        # The last row stays blank: it stands for the planes before an episode's start.
        self.planes = torch.zeros(slots + 1, plane, dtype=getattr(torch, spec.dtype), device=device)
        # The same memory in the widest words that fit, in which rows are copied faster.
        self.plane_words = self.planes.view(widest_dtype(self.planes[0].nbytes))
        self.actions = torch.zeros(slots, dtype=torch.int32, device=device)
        self.rewards = torch.zeros(slots, dtype=torch.float32, device=device)
        self.marks = torch.zeros(slots, dtype=torch.uint8, device=device)
        # A lower bound of the value of each slot's state, where one is known.
        self.value_floors = torch.full((slots,), -math.inf, device=device)
        # Follows from the above, kept so that sampling only looks it up: where the planes of a
        # slot's stack lie; an item's n-step reward, its discount and the slot of its x'.
        items = slots * len(settings.horizons)
        self.stack_slots = torch.zeros(slots, spec.stack, dtype=torch.int32, device=device)
        self.returns = torch.zeros(items, dtype=torch.float32, device=device)
        self.discounts = torch.zeros(items, dtype=torch.float32, device=device)
        self.next_slots = torch.zeros(items, dtype=torch.int32, device=device)
        self.tree = SumTree(items, device)
        self.horizons = torch.tensor(settings.horizons, device=device)
        self.horizon_offsets = self._arange(self.max_horizon + 1)
        self.stack_offsets = self._arange(spec.stack) + 1 - spec.stack  # of a stack, oldest first
        self.later_in_stack = to_native(torch.ones(spec.stack, spec.stack, device=device).tril(-1))
        self.cursor = torch.zeros(lanes, dtype=torch.int64, device=device)  # slots ever written
        self.inserted = 0  # steps ever added, all lanes
        self.rng_state = init_rng_state(seed, device)

    @staticmethod
    def estimate_bytes(spec: Spec, capacity: int, horizons: int) -> int:
        """Memory a replay of `capacity` steps takes."""
        item = np.dtype(spec.dtype).itemsize
        slot = math.prod(spec.plane) * item + 4 + 4 + 1 + 4 + 4 * spec.stack
        return capacity * (slot + (3 * 4 + 8) * horizons)

    @property
    def num_bytes(self) -> int:
        tensors = [
            self.planes,
            self.actions,
            self.rewards,
            self.marks,
            self.value_floors,
            self.stack_slots,
            self.returns,
            self.discounts,
            self.next_slots,
            self.tree.block_masses,
            self.tree.block_sums,
        ]
        return sum(t.numel() * t.element_size() for t in tensors)

    def __len__(self) -> int:
        """Steps held."""
        return min(self.inserted, self.lanes * self.slots_per_lane)

    def add(self, chunk: Chunk, first_lane: int = 0) -> None:
        """Append k slots to lanes first ... first + m, over the oldest; take priorities now due."""
        self.write_slots(chunk, first_lane)
        self.finish_add(chunk, first_lane)

    def write_slots(self, chunk: Chunk, first_lane: int) -> None:
        """The part of `add` that a device does alone, without asking Python."""
        k, m = chunk.action.shape
        cursor = to_native(self.cursor)[first_lane : first_lane + m]
        lane, t = first_lane + self._arange(m), cursor + self._arange(k)[:, None]
        slot = self._slot_at(lane, t).reshape(-1)
        plane = torch.as_tensor(chunk.plane, device=self.device).reshape(len(slot), -1)
        self.plane_words.index_copy_(0, torch.as_tensor(slot), plane.view(self.plane_words.dtype))
        self._scatter(self.actions, slot, chunk.action)
        self._scatter(self.rewards, slot, chunk.reward)
        self._scatter(self.marks, slot, chunk.mark)
        self._index_stacks(lane, t)
        self._invalidate_overwritten(lane, t)
        self._compute_returns(lane, t - self.max_horizon)
        self._set_initial_priorities(
            lane, t - self.max_horizon, torch.as_tensor(chunk.priority, device=self.device)
        )
        cursor += k

    def finish_add(self, chunk: Chunk, first_lane: int) -> None:
        """The part of `add` that is Python's: count the steps, forget dropped episodes."""
        self.inserted += chunk.action.shape[0] * chunk.action.shape[1]
        for i in np.flatnonzero(chunk.invalidate_newest).tolist():
            self._invalidate_newest(first_lane + i, int(chunk.invalidate_newest[i]))

    def _to_native(self, array: np.ndarray | Tensor, dtype: torch.dtype | None = None) -> Any:
        return to_native(torch.as_tensor(array, dtype=dtype, device=self.device))

    def _scatter(self, own: Tensor, index: ArrayT, new: np.ndarray | Tensor) -> None:
        to_native(own)[index] = self._to_native(new, own.dtype).reshape(-1, *own.shape[1:])

    def _arange(self, n: int) -> Any:
        """0 ... n - 1."""
        if array_namespace(to_native(self.horizons)) is np:
            return np.arange(n)
        return torch.arange(n, device=self.device)

    def sample(self, count: int, out: Tensor | None = None) -> Batch:
        """`count` items in proportion to their mass, one from each of `count` equal strata.

        `both` [2, count, *observation] takes the observations where it is given.
        """
        item, weights, *rest = self._draw_items(count)
        return self._build_batch(item, weights, rest, out)

    def _draw_items(self, count: int) -> tuple[Any, ...]:
        """Items [B] drawn at random, their importance weights, and `_describe`."""
        place = self._arange(count)
        u = next_uniform(to_native(self.rng_state), place + 1)
        item, probability = self.tree.draw_items((place + u) / count)
        weights = importance_weights(probability, self.settings.beta)
        xp = array_namespace(weights)
        return item, xp.asarray(weights, dtype=xp.float32), *self._gather_columns(item)

    def update_priorities(self, item: Tensor, priority: Tensor) -> None:
        """Give sampled items new priorities; what has become unsamplable since stays so."""
        index = to_native(item)
        new, xp = self._to_mass(priority), array_namespace(index)
        self.tree.set(index, xp.where(self.tree.get(index) > 0, new, 0.0))

    def _to_mass(self, priority: Tensor) -> Any:
        """The masses of items with these priorities, in float64."""
        p = to_native(priority)
        xp = array_namespace(p)
        return priority_mass(
            xp.asarray(p, dtype=xp.float64), self.settings.alpha, self.settings.priority_offset
        )

    def iter_items(self, count: int) -> Iterator[Batch]:
        """Every samplable item once, in order, at most `count` at a time."""
        for item in self.tree.masses.nonzero().view(-1).split(count):
            weights = torch.ones(len(item), device=self.device)
            yield self._build_batch(item, weights, self._gather_columns(to_native(item)), None)

    def compile(self) -> None:
        """Let the arithmetic of sampling run as a few compiled kernels."""
        self.tree.compile()
        self._draw_items = torch.compile(self._draw_items, dynamic=False)
        self.update_priorities = torch.compile(self.update_priorities, dynamic=False)

    def _gather_columns(self, item: ArrayT) -> tuple[Any, ...]:
        """The columns of `Batch` from a to a_next of items [B], and their planes' rows."""
        xp, slot = array_namespace(item), item // len(self.settings.horizons)
        a = xp.asarray(to_native(self.actions).take(slot), dtype=xp.int64)
        r, discount = to_native(self.returns).take(item), to_native(self.discounts).take(item)
        e = xp.asarray((to_native(self.marks).take(slot) & BEST) != 0, dtype=xp.float32)
        following = xp.asarray(to_native(self.next_slots).take(item), dtype=xp.int64)
        floor = to_native(self.value_floors).take(following)
        a_next = xp.asarray(to_native(self.actions).take(following), dtype=xp.int64)
        both = xp.concatenate([slot, following])
        return a, r, discount, e, floor, a_next, take_rows(to_native(self.stack_slots), both)

    def _build_batch(
        self, item: Any, weights: Any, described: Sequence[Any], x_both: Tensor | None
    ) -> Batch:
        """The transitions of items [B], whole."""
        *rest, planes = described
        if x_both is None:
            shape = (2, len(item), *self.spec.observation_shape)
            x_both = torch.empty(shape, dtype=self.planes.dtype, device=self.device)
        slot = torch.as_tensor(planes).view(2, -1)
        parts = [(x_both, slot)] if x_both.is_contiguous() else zip(x_both, slot, strict=True)
        for out, index in parts:
            words = out.view(index.numel(), -1).view(self.plane_words.dtype)
            torch.index_select(self.plane_words, 0, index.view(-1), out=words)
        return Batch(x_both, *map(to_tensor, (*rest, weights, item)))

    def _index_stacks(self, lane: ArrayT, t: ArrayT) -> None:
        """Note where the planes seen at times t [k, m] lie, blank before an episode's start."""
        slot = self._slot_at(lane, t, self.stack_offsets)
        xp = array_namespace(slot)
        first = xp.asarray(to_native(self.marks).take(slot) & FIRST, dtype=xp.float32)
        # A plane is blank if a later plane of the stack opens the episode.
        planes = xp.where(first @ self.later_in_stack > 0, len(self.planes) - 1, slot)
        self._scatter(self.stack_slots, slot[..., -1].reshape(-1), planes)

    def _compute_returns(self, lane: ArrayT, t: ArrayT) -> None:
        """Note what follows the items of times t [k, m], whose successors have all arrived."""
        item = self._items_of(self._slot_at(lane, t))
        ahead = self._slot_at(lane, t, self.horizon_offsets)[..., None, :]
        ahead = torch.as_tensor(ahead).expand(*t.shape, len(self.horizons), -1)
        reward, mark = self.rewards.take(ahead[..., :-1]), self.marks.take(ahead[..., 1:])
        n = self.horizons.expand(*t.shape, -1)
        r, discount, steps = n_step_return(reward, mark, n, self.gamma)
        self._scatter(self.returns, item, r)
        self._scatter(self.discounts, item, discount)
        self._scatter(self.next_slots, item, self._slot_at(lane, t, to_native(steps)))

    def _slot_at(self, lane: ArrayT, t: ArrayT, offset: ArrayT | None = None) -> ArrayT:
        """Where time t of a lane is kept; with offsets [n], times t + offset as a last axis."""
        if offset is not None:
            lane, t = lane[..., None], t[..., None] + offset
        return lane * self.slots_per_lane + t % self.slots_per_lane

    def _items_of(self, slot: ArrayT) -> ArrayT:
        """[n * H] the items of all horizons of slots [n]."""
        h = len(self.settings.horizons)
        return (slot.reshape(-1, 1) * h + self._arange(h)).reshape(-1)

    def rebuild_index(self) -> None:
        """Work out anew all that follows from rewards and marks, after a change to them."""
        t = self._arange(self.slots_per_lane)[:, None]
        for lane in range(self.lanes):
            self._index_stacks(lane + self._arange(1), t)
            self._compute_returns(lane + self._arange(1), t)

    def _invalidate_overwritten(self, lane: ArrayT, t: ArrayT) -> None:
        """Mass 0 for the slots written at times t [k, m] and those whose stack they tore."""
        self._invalidate(self._slot_at(lane, t, self._arange(self.spec.stack)))

    def _set_initial_priorities(self, lane: ArrayT, t: ArrayT, priority: Tensor) -> None:
        """Give the items of times t [k, m] their first priorities [k, m, H]; 0: unsamplable."""
        allowed = (to_native(priority) > 0) & (t >= 0)[..., None]
        new = array_namespace(allowed).where(allowed, self._to_mass(priority), 0.0)
        self.tree.set(self._items_of(self._slot_at(lane, t)), new.reshape(-1))

    def _invalidate_newest(self, lane: int, count: int) -> None:
        """Mass 0 for the newest `count` slots of a lane: their episode was dropped."""
        n = min(count, self.slots_per_lane)
        t = to_native(self.cursor)[lane] - 1 - self._arange(n)
        self._invalidate(lane * self.slots_per_lane + t % self.slots_per_lane)

    def _invalidate(self, slot: ArrayT) -> None:
        """Mass 0 for the items of slots."""
        item = self._items_of(slot)
        self.tree.set(
            item, to_native(torch.zeros(item.shape, dtype=torch.float64, device=self.device))
        )

    def state(self) -> dict[str, Tensor]:
        """Everything, for a checkpoint: views where a device allows, so nothing is doubled."""
        filled = min(int(self.cursor.max()), self.slots_per_lane)
        shape = (self.lanes, self.slots_per_lane, -1)
        by_lane = lambda x: x[: self.lanes * self.slots_per_lane].view(shape)  # noqa: E731
        return {
            "planes": by_lane(self.planes)[:, :filled],
            "actions": by_lane(self.actions)[:, :filled],
            "rewards": by_lane(self.rewards)[:, :filled],
            "marks": by_lane(self.marks)[:, :filled],
            "mass": by_lane(self.tree.masses.view(len(self.actions), -1))[:, :filled],
            "cursor": self.cursor,
            "inserted": torch.tensor(self.inserted),
            "random": self.rng_state,
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        """The inverse of `state`."""
        lanes, filled, plane = state["planes"].shape
        if (lanes, plane) != (self.lanes, self.planes.shape[1]) or filled > self.slots_per_lane:
            raise CheckpointError(
                f"the saved replay has {lanes} lanes of {filled} slots of {plane} values, this one"
                f" {self.lanes} of {self.slots_per_lane} of {self.planes.shape[1]}:"
                " resume with its sizes"
            )
        slots = lanes * self.slots_per_lane
        whole = torch.zeros(lanes, self.slots_per_lane, len(self.horizons), dtype=torch.float64)
        whole[:, :filled] = state["mass"].cpu()
        self.tree.rebuild(whole.view(-1).to(self.device))
        self.planes[:slots].view(lanes, self.slots_per_lane, -1)[:, :filled] = state["planes"].to(
            self.device
        )
        for name in ("actions", "rewards", "marks"):
            target = getattr(self, name).view(lanes, self.slots_per_lane, 1)
            target[:, :filled] = state[name].to(self.device)
        self.rebuild_index()
        self.cursor.copy_(state["cursor"])
        self.inserted = int(state["inserted"])
        self.rng_state.copy_(state["random"])
