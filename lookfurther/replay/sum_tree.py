"""A sum tree of two wide levels: sampling in proportion to mass with a dozen array operations.

Items are grouped in blocks, whose sums are stored. A draw searches the blocks, then the items of
one block, each time by a cumulative sum and a binary search. This costs less than the many small
operations of a deep tree. Sums are recomputed from the masses, never adjusted, so rounding errors
do not accumulate. Arrays in and out are NumPy's on the host and tensors elsewhere, with static
shapes and without synchronization.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lookfurther.array_api import ArrayT, array_namespace, take_rows, to_native
from lookfurther.system.acceleration import load_kernels

TYPICAL_BATCH_SIZE = 256  # the two levels cost the same for this number of draws


class SumTree:
    """Masses of `size` items; an item of mass 0 is never sampled."""

    def __init__(self, size: int, device: torch.device | str = "cpu") -> None:
        self.size, self.block_width = size, choose_block_width(size)
        blocks = -(-size // self.block_width)
        self.block_masses = torch.zeros(
            blocks * self.block_width, dtype=torch.float64, device=device
        )
        # The sum of block i is block_sums[i + 1]: the cumulative sums are the edges of the blocks.
        self.block_sums = torch.zeros(blocks + 1, dtype=torch.float64, device=device)
        self._block_masses = to_native(self.block_masses)
        self._block_sums = to_native(self.block_sums)

    @property
    def masses(self) -> Tensor:
        """[size] the masses of all items."""
        return self.block_masses[: self.size]

    @property
    def total_mass(self) -> Any:
        return self._block_sums.sum()

    def set(self, index: ArrayT, mass: ArrayT) -> None:
        """Set the masses [n] of items [n]; duplicate items must have the same mass."""
        self._block_masses[index] = mass
        block = index // self.block_width
        self._block_sums[block + 1] = self._masses_in_blocks(block).sum(-1)

    def get(self, index: ArrayT) -> ArrayT:
        """The masses of items [n]."""
        return self._block_masses.take(index)

    def draw_items(self, share: ArrayT) -> tuple[ArrayT, ArrayT]:
        """The items [n] at shares [n] in [0, 1) of the total mass, and their probabilities."""
        total = self.total_mass
        item = self.find_items(share * total)
        return item, self.get(item) / total

    def find_items(self, u: ArrayT) -> ArrayT:
        """The items [n] whose intervals of the cumulative mass contain u [n] in [0, total_mass)."""
        edges = self._block_sums.cumsum(-1)
        u = clamp_below(u, edges[-1:])
        block = array_namespace(u).searchsorted(edges, u, side="right") - 1
        within = self._masses_in_blocks(block).cumsum(-1)
        return block * self.block_width + search_rows(within, u - edges.take(block))

    def compile(self) -> None:
        """Draw items by Triton kernels, where they run."""
        kernels = load_kernels("sum_tree", self.block_masses.device)
        if kernels:
            self.draw_items = lambda share: kernels.draw_items(
                share, self.block_sums, self.block_masses
            )

    def rebuild(self, mass: Tensor) -> None:
        """Replace all masses [size]."""
        self.masses.copy_(mass)
        self._block_sums[1:] = self._block_masses.reshape(-1, self.block_width).sum(-1)

    def _masses_in_blocks(self, block: ArrayT) -> ArrayT:
        """[n, width] the masses in blocks [n]."""
        return take_rows(self._block_masses.reshape(-1, self.block_width), block)


def choose_block_width(size: int) -> int:
    """Items in a block, a power of two.

    The blocks of a typical batch then hold about as many numbers as there are blocks.
    """
    return 2 ** max(4, math.ceil(math.log2(size / TYPICAL_BATCH_SIZE) / 2))


def clamp_below(u: ArrayT, end: ArrayT) -> ArrayT:
    """u, but below `end`: rounding may reach it, and an item of mass 0 might follow."""
    xp = array_namespace(u)
    return xp.minimum(u, xp.nextafter(end, xp.zeros_like(end)))


def search_rows(edges: ArrayT, u: ArrayT) -> ArrayT:
    """The first column above u [n] in each row of ascending edges [n, width]."""
    u = clamp_below(u[:, None], edges[:, -1:])
    xp = array_namespace(u)
    if xp is torch:
        return xp.searchsorted(edges, u, side="right")[:, 0]
    return xp.argmax(edges > u, -1)
