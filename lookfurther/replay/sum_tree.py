"""A sum tree of two wide levels: sampling in proportion to mass with a dozen array operations.

Items stand in blocks, whose sums are kept. A draw is found among the blocks, then in its block,
each time by a cumulative sum and bisection: that costs less than the many small operations of a
deep tree. Sums are recomputed from the masses, never adjusted, hence exact to float64 rounding
for ever. Arrays in and out are NumPy's on the host and tensors elsewhere, where shapes are static
and nothing waits.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lookfurther.acceleration import load_kernels
from lookfurther.array_api import ArrayT, array_namespace, take_rows, to_native

TYPICAL_BATCH_SIZE = 256  # a usual batch, for which the two levels are to cost the same


class SumTree:
    """Masses of `size` items; an item of mass 0 is never sampled."""

    def __init__(self, size: int, device: torch.device | str = "cpu") -> None:
        self.size, self.block_width = size, choose_block_width(size)
        blocks = -(-size // self.block_width)
        self.block_masses = torch.zeros(
            blocks * self.block_width, dtype=torch.float64, device=device
        )
        # The sum of block i is sums[i + 1]: their cumulative sum is where blocks begin and end.
        self.block_sums = torch.zeros(blocks + 1, dtype=torch.float64, device=device)
        self._block_masses, self._block_sums = (
            to_native(self.block_masses),
            to_native(self.block_sums),
        )

    @property
    def masses(self) -> Tensor:
        """[size] the masses of all items."""
        return self.block_masses[: self.size]

    @property
    def total_mass(self) -> Any:
        return self._block_sums.sum()

    def set(self, index: ArrayT, mass: ArrayT) -> None:
        """Give items [n] new masses [n]; an item named twice must be given the same mass twice."""
        self._block_masses[index] = mass
        block = index // self.block_width
        self._block_sums[block + 1] = self._masses_in_blocks(block).sum(-1)

    def get(self, index: ArrayT) -> ArrayT:
        """The masses of items [n]."""
        return self._block_masses.take(index)

    def draw_items(self, share: ArrayT) -> tuple[ArrayT, ArrayT]:
        """The items [n] at shares [n] in [0, 1) of the whole mass, and their probabilities."""
        total = self.total_mass
        item = self.find_items(share * total)
        return item, self.get(item) / total

    def find_items(self, u: ArrayT) -> ArrayT:
        """For each u [n] in [0, total) the item whose stretch of the cumulative mass holds it."""
        edges = self._block_sums.cumsum(-1)
        u = clamp_below(u, edges[-1:])
        block = array_namespace(u).searchsorted(edges, u, side="right") - 1
        within = self._masses_in_blocks(block).cumsum(-1)
        return block * self.block_width + search_rows(within, u - edges.take(block))

    def compile(self) -> None:
        """Draw items by Triton kernels, where they run."""
        kernels = load_kernels("sum_tree", self.block_masses.device)
        if kernels:

            def draw_items(fraction: Any) -> Any:
                return kernels.draw_items(fraction, self.block_sums, self.block_masses)

            self.draw_items: Any = draw_items

    def rebuild(self, mass: Tensor) -> None:
        """Replace all masses [size]."""
        self.masses.copy_(mass)
        self._block_sums[1:] = self._block_masses.reshape(-1, self.block_width).sum(-1)

    def _masses_in_blocks(self, block: ArrayT) -> ArrayT:
        """[n, width] the masses in blocks [n]."""
        return take_rows(self._block_masses.reshape(-1, self.block_width), block)


def choose_block_width(size: int) -> int:
    """Items in a block, a power of two: `DRAWS` blocks are then about as many as all the sums."""
    return 2 ** max(4, math.ceil(math.log2(size / TYPICAL_BATCH_SIZE) / 2))


def clamp_below(u: ArrayT, end: ArrayT) -> ArrayT:
    """u, but less than `end`: rounding may carry it past, where a place of mass 0 might stand."""
    xp = array_namespace(u)
    return xp.minimum(u, xp.nextafter(end, xp.zeros_like(end)))


def search_rows(edges: ArrayT, u: ArrayT) -> ArrayT:
    """In each row of edges [n, width], which ascend, the first place above u [n]."""
    u = clamp_below(u[:, None], edges[:, -1:])
    xp = array_namespace(u)
    if xp is torch:
        return xp.searchsorted(edges, u, side="right")[:, 0]
    return xp.argmax(edges > u, -1)
