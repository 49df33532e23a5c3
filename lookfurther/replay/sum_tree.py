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

from lookfurther.array_api import A, namespace, native, rows

DRAWS = 256  # a usual batch, for which the two levels are to cost the same


class SumTree:
    """Masses of `size` items; an item of mass 0 is never sampled."""

    def __init__(self, size: int, device: torch.device | str = "cpu") -> None:
        self.size, self.width = size, width(size)
        blocks = -(-size // self.width)
        self.blocks = torch.zeros(blocks * self.width, dtype=torch.float64, device=device)
        # The sum of block i is sums[i + 1]: their cumulative sum is where blocks begin and end.
        self.sums = torch.zeros(blocks + 1, dtype=torch.float64, device=device)
        self._blocks, self._sums = native(self.blocks), native(self.sums)

    @property
    def mass(self) -> Tensor:
        """[size] the masses of all items."""
        return self.blocks[: self.size]

    @property
    def total(self) -> Any:
        return self._sums.sum()

    def set(self, index: A, mass: A) -> None:
        """Give items [n] new masses [n]; an item named twice must be given the same mass twice."""
        self._blocks[index] = mass
        block = index // self.width
        self._sums[block + 1] = self._rows(block).sum(-1)

    def get(self, index: A) -> A:
        """The masses of items [n]."""
        return self._blocks.take(index)

    def draw(self, share: A) -> tuple[A, A]:
        """The items [n] at shares [n] in [0, 1) of the whole mass, and their probabilities."""
        total = self.total
        item = self.find(share * total)
        return item, self.get(item) / total

    def find(self, u: A) -> A:
        """For each u [n] in [0, total) the item whose stretch of the cumulative mass holds it."""
        edges = self._sums.cumsum(-1)
        u = below(u, edges[-1:])
        block = namespace(u).searchsorted(edges, u, side="right") - 1
        within = self._rows(block).cumsum(-1)
        return block * self.width + bisect(within, u - edges.take(block))

    def compile(self) -> None:
        """Draw by kernels of its own, on a GPU."""
        from lookfurther.gpu import sum_tree  # needs Triton

        self.draw = lambda share: sum_tree.draw(share, self.sums, self.blocks)

    def rebuild(self, mass: Tensor) -> None:
        """Replace all masses [size]."""
        self.mass.copy_(mass)
        self._sums[1:] = self._blocks.reshape(-1, self.width).sum(-1)

    def _rows(self, block: A) -> A:
        """[n, width] the masses in blocks [n]."""
        return rows(self._blocks.reshape(-1, self.width), block)


def width(size: int) -> int:
    """Items in a block, a power of two: `DRAWS` blocks are then about as many as all the sums."""
    return 2 ** max(4, math.ceil(math.log2(size / DRAWS) / 2))


def below(u: A, end: A) -> A:
    """u, but less than `end`: rounding may carry it past, where a place of mass 0 might stand."""
    xp = namespace(u)
    return xp.minimum(u, xp.nextafter(end, xp.zeros_like(end)))


def bisect(edges: A, u: A) -> A:
    """In each row of edges [n, width], which ascend, the first place above u [n]."""
    u = below(u[:, None], edges[:, -1:])
    xp = namespace(u)
    if xp is torch:
        return xp.searchsorted(edges, u, side="right")[:, 0]
    return xp.argmax(edges > u, -1)
