"""Prioritized replay: items of several horizons that share the same frames.

An item is (slot, horizon). Its n-step return, discount and successor are computed when the last of
its steps arrives, so sampling is a lookup. An item that may not be sampled has mass 0: its
successor has not arrived, its oldest plane is overwritten, its episode was dropped, or its slot is
an end. There is no other bookkeeping. The expert replay is this class too, filled once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lookfurther.array_api import (
    ArrayT,
    array_namespace,
    compile_static,
    take_rows,
    to_native,
    to_tensor,
)
from lookfurther.config import ReplayConfig
from lookfurther.errors import CheckpointError
from lookfurther.priorities import importance_weights, priority_mass
from lookfurther.replay.slots import SlotRings
from lookfurther.replay.splitmix import init_rng_state, next_uniform
from lookfurther.replay.sum_tree import SumTree
from lookfurther.returns import n_step_return
from lookfurther.types import BEST, Batch, Chunk, Spec


class PrioritizedReplay(SlotRings):
    """Items of all `config.horizons` of every slot, sampled in proportion to their mass."""

    def __init__(
        self,
        spec: Spec,
        lanes: int,
        capacity: int,
        config: ReplayConfig,
        gamma: float,
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> None:
        super().__init__(spec, lanes, capacity, device)
        self.config, self.gamma = config, gamma
        self.beta: Any = config.beta  # a number, or an array of one that a schedule changes
        self.max_horizon = max(config.horizons)
        # Derived from rewards and marks: an item's n-step reward, discount and slot of x'.
        items = len(self.actions) * len(config.horizons)
        self.returns = torch.zeros(items, dtype=torch.float32, device=device)
        self.discounts = torch.zeros(items, dtype=torch.float32, device=device)
        self.next_slots = torch.zeros(items, dtype=torch.int32, device=device)
        self.tree = SumTree(items, device)
        self.horizons = torch.tensor(config.horizons, device=device)
        self.horizon_offsets = self._arange(self.max_horizon + 1)
        self.inserted = 0  # steps ever added, all lanes
        self.rng_state = init_rng_state(seed, device)

    @staticmethod
    def estimate_bytes(spec: Spec, capacity: int, horizons: int) -> int:
        """The memory that a replay of `capacity` steps takes."""
        plane_bytes = math.prod(spec.plane) * np.dtype(spec.dtype).itemsize
        slot_bytes = plane_bytes + 4 + 4 + 1 + 4 + 4 * spec.stack
        return capacity * (slot_bytes + (3 * 4 + 8) * horizons)

    @property
    def num_bytes(self) -> int:
        """The memory that this replay takes."""
        slots = (self.planes, self.actions, self.rewards, self.marks, self.value_floors)
        derived = (self.stack_slots, self.returns, self.discounts, self.next_slots)
        tree = (self.tree.block_masses, self.tree.block_sums)
        return sum(tensor.nbytes for tensor in (*slots, *derived, *tree))

    def __len__(self) -> int:
        """The number of steps in the replay."""
        return min(self.inserted, self.lanes * self.slots_per_lane)

    # Adding

    def add(self, chunk: Chunk, first_lane: int = 0) -> None:
        """Append k slots to m lanes from `first_lane` on, and set the priorities now due."""
        self.write_slots(chunk, first_lane)
        self.finish_add(chunk, first_lane)

    def write_slots(self, chunk: Chunk, first_lane: int) -> None:
        """The device's part of `add`: a CUDA graph can capture it."""
        k, m = chunk.action.shape
        cursor = to_native(self.cursor)[first_lane : first_lane + m]
        lane, t = first_lane + self._arange(m), cursor + self._arange(k)[:, None]
        self._write_chunk(chunk, lane, t)
        self._invalidate_overwritten(lane, t)
        self._compute_returns(lane, t - self.max_horizon)
        priority = torch.as_tensor(chunk.priority, device=self.device)
        self._set_initial_priorities(lane, t - self.max_horizon, priority)
        cursor += k

    def finish_add(self, chunk: Chunk, first_lane: int) -> None:
        """The host's part of `add`: count the steps, invalidate dropped episodes."""
        self.inserted += chunk.action.shape[0] * chunk.action.shape[1]
        for i in np.flatnonzero(chunk.invalidate_newest).tolist():
            self._invalidate_newest(first_lane + i, int(chunk.invalidate_newest[i]))

    def _compute_returns(self, lane: ArrayT, t: ArrayT) -> None:
        """Store return, discount and next slot of the items at times t [k, m].

        All their successors have arrived.
        """
        item = self._items_of(self._slot_at(lane, t))
        ahead = self._slot_at(lane, t, self.horizon_offsets)[..., None, :]
        ahead = torch.as_tensor(ahead).expand(*t.shape, len(self.horizons), -1)
        reward, mark = self.rewards.take(ahead[..., :-1]), self.marks.take(ahead[..., 1:])
        n = self.horizons.expand(*t.shape, -1)
        r, discount, steps = n_step_return(reward, mark, n, self.gamma)
        self._scatter(self.returns, item, r)
        self._scatter(self.discounts, item, discount)
        self._scatter(self.next_slots, item, self._slot_at(lane, t, to_native(steps)))

    def _set_initial_priorities(self, lane: ArrayT, t: ArrayT, priority: Tensor) -> None:
        """Set the first priorities [k, m, H] of the items at times t [k, m]; 0: unsamplable."""
        allowed = (to_native(priority) > 0) & (t >= 0)[..., None]
        mass = array_namespace(allowed).where(allowed, self._to_mass(priority), 0.0)
        self.tree.set(self._items_of(self._slot_at(lane, t)), mass.reshape(-1))

    def _invalidate_overwritten(self, lane: ArrayT, t: ArrayT) -> None:
        """Mass 0 for the slots written at times t [k, m], and for those whose stacks they cut."""
        self._invalidate(self._slot_at(lane, t, self._arange(self.spec.stack)))

    def _invalidate_newest(self, lane: int, count: int) -> None:
        """Mass 0 for the newest `count` slots of a lane: their episode was dropped."""
        n = min(count, self.slots_per_lane)
        t = to_native(self.cursor)[lane] - 1 - self._arange(n)
        self._invalidate(lane * self.slots_per_lane + t % self.slots_per_lane)

    def _invalidate(self, slot: ArrayT) -> None:
        """Mass 0 for all items of slots."""
        item = self._items_of(slot)
        zeros = torch.zeros(item.shape, dtype=torch.float64, device=self.device)
        self.tree.set(item, to_native(zeros))

    def _items_of(self, slot: ArrayT) -> ArrayT:
        """[n * H] the items of all horizons of slots [n]."""
        h = len(self.config.horizons)
        return (slot.reshape(-1, 1) * h + self._arange(h)).reshape(-1)

    def rebuild_index(self) -> None:
        """Recompute everything derived from rewards and marks, after a change to them."""
        t = self._arange(self.slots_per_lane)[:, None]
        for lane in range(self.lanes):
            self._index_stacks(lane + self._arange(1), t)
            self._compute_returns(lane + self._arange(1), t)

    # Sampling

    def sample(self, count: int, out: Tensor | None = None) -> Batch:
        """`count` items in proportion to their mass, one from each of `count` equal strata.

        The observations are written to `out` [2, count, *observation_shape] if it is given.
        """
        item, weights, *columns = self._draw_items(count // self.rows_per_item)
        return self._build_batch(item, weights, columns, out)

    def load_items(self, item: Any, weights: Any, out: Tensor) -> Batch:
        """The transitions of drawn items [n] with these weights, observations in `out`."""
        item, weights, *columns = self._expand_and_gather(item, weights)
        return self._build_batch(item, weights, columns, out)

    def draw_shares(self, count: int) -> Any:
        """A random position in each of `count` equal strata of [0, 1), in order."""
        stratum = self._arange(count)
        return (stratum + next_uniform(to_native(self.rng_state), stratum + 1)) / count

    def _draw_items(self, count: int) -> tuple[Any, ...]:
        """Items drawn at random, their importance weights, and `gather_columns` of them."""
        item, probability = self.tree.draw_items(self.draw_shares(count))
        return self._expand_and_gather(item, importance_weights(probability, self.beta))

    def _expand_and_gather(self, item: Any, weights: Any) -> tuple[Any, ...]:
        """The rows [B] of a batch for items, their weights in float32, and their columns."""
        item, weights = self.expand_items(item, weights)
        xp = array_namespace(weights)
        return item, xp.asarray(weights, dtype=xp.float32), *self.gather_columns(item)

    @property
    def rows_per_item(self) -> int:
        """The rows of a batch that one drawn item fills."""
        return 1

    def expand_items(self, item: ArrayT, weights: ArrayT) -> tuple[ArrayT, ArrayT]:
        """The items of the rows of a batch, and their weights."""
        return item, weights

    def gather_columns(self, item: ArrayT) -> tuple[Any, ...]:
        """The columns of `Batch` from a to a_next for items [B], and the rows of their planes."""
        xp, slot = array_namespace(item), item // len(self.config.horizons)
        a = xp.asarray(to_native(self.actions).take(slot), dtype=xp.int64)
        r, discount = to_native(self.returns).take(item), to_native(self.discounts).take(item)
        e = xp.asarray((to_native(self.marks).take(slot) & BEST) != 0, dtype=xp.float32)
        next_slot = xp.asarray(to_native(self.next_slots).take(item), dtype=xp.int64)
        floor = to_native(self.value_floors).take(next_slot)
        a_next = xp.asarray(to_native(self.actions).take(next_slot), dtype=xp.int64)
        plane_rows = take_rows(to_native(self.stack_slots), xp.concatenate([slot, next_slot]))
        return a, r, discount, e, floor, a_next, plane_rows

    def _build_batch(
        self, item: Any, weights: Any, columns: Sequence[Any], x_both: Tensor | None
    ) -> Batch:
        """The transitions of items [B] with their observations."""
        *columns, plane_rows = columns
        if x_both is None:
            shape = (2, len(item), *self.spec.observation_shape)
            x_both = torch.empty(shape, dtype=self.planes.dtype, device=self.device)
        self._gather_observations(plane_rows, x_both)
        return Batch(x_both, *map(to_tensor, (*columns, weights, item)))

    def iter_items(self, count: int) -> Iterator[Batch]:
        """Every samplable item once, in order, at most `count` at a time."""
        samplable = self.samplable_items()
        groups = torch.split(samplable, count // self.rows_per_item) if len(samplable) else ()
        for item in groups:
            yield self.gather_items(item)

    def samplable_items(self) -> Tensor:
        """[n] every samplable item, in order."""
        return self.tree.masses.nonzero().view(-1)

    def gather_items(self, item: Tensor) -> Batch:
        """The transitions of items [n], with importance weights of 1."""
        weights = torch.ones(len(item), dtype=torch.float64, device=self.device)
        rows, weights, *columns = self._expand_and_gather(to_native(item), to_native(weights))
        return self._build_batch(rows, weights, columns, None)

    def update_priorities(self, item: Tensor, priority: Tensor) -> None:
        """Set new priorities of sampled items; an item that became unsamplable stays so."""
        index = to_native(item)
        mass, xp = self._to_mass(priority), array_namespace(index)
        self.tree.set(index, xp.where(self.tree.get(index) > 0, mass, 0.0))

    def _to_mass(self, priority: Tensor) -> Any:
        """The masses of items with these priorities, in float64."""
        p = to_native(priority)
        xp = array_namespace(p)
        p = xp.asarray(p, dtype=xp.float64)
        return priority_mass(p, self.config.alpha, self.config.priority_offset)

    def compile(self) -> None:
        """Compile the arithmetic of sampling into a few kernels."""
        self.tree.compile()
        self._draw_items = compile_static(self._draw_items)
        self.update_priorities = compile_static(self.update_priorities)

    # Checkpoints

    def state(self) -> dict[str, Tensor]:
        """Everything for a checkpoint, as views where possible, to avoid copies."""
        return {
            "planes": self._by_lane(self.planes),
            "actions": self._by_lane(self.actions),
            "rewards": self._by_lane(self.rewards),
            "marks": self._by_lane(self.marks),
            "mass": self._by_lane(self.tree.masses.view(len(self.actions), -1)),
            "cursor": self.cursor,
            "inserted": torch.tensor(self.inserted),
            "random": self.rng_state,
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        lanes, filled, plane = state["planes"].shape
        if (lanes, plane) != (self.lanes, self.planes.shape[1]) or filled > self.slots_per_lane:
            raise CheckpointError(
                f"the saved replay has {lanes} lanes of {filled} slots of {plane} values, this one"
                f" {self.lanes} of {self.slots_per_lane} of {self.planes.shape[1]}:"
                " resume with its sizes"
            )
        slots = lanes * self.slots_per_lane
        masses = torch.zeros(lanes, self.slots_per_lane, len(self.horizons), dtype=torch.float64)
        masses[:, :filled] = state["mass"].cpu()
        self.tree.rebuild(masses.view(-1).to(self.device))
        for name in ("planes", "actions", "rewards", "marks"):
            tensor = getattr(self, name)[:slots].view(lanes, self.slots_per_lane, -1)
            tensor[:, :filled] = state[name].to(self.device)
        self.rebuild_index()
        self.cursor.copy_(state["cursor"])
        self.inserted = int(state["inserted"])
        self.rng_state.copy_(state["random"])
