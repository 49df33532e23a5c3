"""Rings of slots: every frame is stored once for all items that use it.

A lane is one continuous trajectory. A slot holds the newest plane of x_t, the action taken there,
the reward that followed, and marks.

All memory is tensors. Index arithmetic runs in NumPy for memory on the host and in torch
elsewhere, using only functions that both have in common; batches are tensors.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lookfurther.array_api import ArrayT, array_namespace, to_native, widest_dtype
from lookfurther.types import FIRST, Chunk, Spec


class SlotRings:
    """`lanes` rings of capacity // lanes slots each, in the memory of `device`."""

    def __init__(
        self, spec: Spec, lanes: int, capacity: int, device: torch.device | str = "cpu"
    ) -> None:
        self.spec, self.lanes = spec, lanes
        self.device = torch.device(device)
        self.slots_per_lane = capacity // lanes
        slots, plane = lanes * self.slots_per_lane, math.prod(spec.plane)
        # The last row stays blank: it represents the planes before an episode's start.
        self.planes = torch.zeros(slots + 1, plane, dtype=getattr(torch, spec.dtype), device=device)
        # The same memory as the widest words that fit: rows are copied faster in them.
        self.plane_words = self.planes.view(widest_dtype(self.planes[0].nbytes))
        self.actions = torch.zeros(slots, dtype=torch.int32, device=device)
        self.rewards = torch.zeros(slots, dtype=torch.float32, device=device)
        self.marks = torch.zeros(slots, dtype=torch.uint8, device=device)
        # A lower bound of the value of each slot's state, if one is known.
        self.value_floors = torch.full((slots,), -math.inf, device=device)
        # The rows of `planes` that make the stack of each slot, derived from the marks.
        self.stack_slots = torch.zeros(slots, spec.stack, dtype=torch.int32, device=device)
        self.cursor = torch.zeros(lanes, dtype=torch.int64, device=device)  # slots ever written
        self.stack_offsets = self._arange(spec.stack) + 1 - spec.stack  # oldest plane first
        self.later_in_stack = to_native(torch.ones(spec.stack, spec.stack, device=device).tril(-1))

    def _write_chunk(self, chunk: Chunk, lane: ArrayT, t: ArrayT) -> None:
        """Store k slots of m lanes [m] at times t [k, m], over the oldest ones."""
        slot = self._slot_at(lane, t).reshape(-1)
        plane = torch.as_tensor(chunk.plane, device=self.device).reshape(len(slot), -1)
        self.plane_words.index_copy_(0, torch.as_tensor(slot), plane.view(self.plane_words.dtype))
        self._scatter(self.actions, slot, chunk.action)
        self._scatter(self.rewards, slot, chunk.reward)
        self._scatter(self.marks, slot, chunk.mark)
        self._index_stacks(lane, t)

    def _index_stacks(self, lane: ArrayT, t: ArrayT) -> None:
        """Store the plane rows of the stacks at times t [k, m], blank before an episode's start."""
        slot = self._slot_at(lane, t, self.stack_offsets)
        xp = array_namespace(slot)
        first = xp.asarray(to_native(self.marks).take(slot) & FIRST, dtype=xp.float32)
        # A plane is blank if a later plane of the stack opens the episode.
        planes = xp.where(first @ self.later_in_stack > 0, len(self.planes) - 1, slot)
        self._scatter(self.stack_slots, slot[..., -1].reshape(-1), planes)

    def _gather_observations(self, plane_rows: Any, x_both: Tensor) -> None:
        """Write the stacks of plane rows [2B, stack] to x_both [2, B, *observation_shape]."""
        rows = torch.as_tensor(plane_rows).view(2, -1)
        parts = [(x_both, rows)] if x_both.is_contiguous() else zip(x_both, rows, strict=True)
        for out, index in parts:
            words = out.view(index.numel(), -1).view(self.plane_words.dtype)
            torch.index_select(self.plane_words, 0, index.view(-1), out=words)

    def gather_states(self, slot: Tensor) -> Tensor:
        """The observations of slots [n] as [n, *observation_shape]."""
        rows = self.stack_slots[slot].long().view(-1)
        return self.planes[rows].view(len(slot), *self.spec.observation_shape)

    def _slot_at(self, lane: ArrayT, t: ArrayT, offset: ArrayT | None = None) -> ArrayT:
        """The slot of time t of a lane; with offsets [n], of times t + offset as a last axis."""
        if offset is not None:
            lane, t = lane[..., None], t[..., None] + offset
        return lane * self.slots_per_lane + t % self.slots_per_lane

    def _by_lane(self, values: Tensor) -> Tensor:
        """Values of all slots as [lanes, slots written so far, ...]."""
        filled = min(int(self.cursor.max()), self.slots_per_lane)
        slots = values[: self.lanes * self.slots_per_lane]
        return slots.view(self.lanes, self.slots_per_lane, -1)[:, :filled]

    def _arange(self, n: int) -> Any:
        """0 ... n - 1."""
        if array_namespace(to_native(self.cursor)) is np:
            return np.arange(n)
        return torch.arange(n, device=self.device)

    def _to_native(self, array: np.ndarray | Tensor, dtype: torch.dtype | None = None) -> Any:
        return to_native(torch.as_tensor(array, dtype=dtype, device=self.device))

    def _scatter(self, target: Tensor, index: ArrayT, new: np.ndarray | Tensor) -> None:
        """target[index] = new, converted to the target's type."""
        rows = self._to_native(new, target.dtype).reshape(-1, *target.shape[1:])
        to_native(target)[index] = rows
