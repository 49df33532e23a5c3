"""A sum tree of two wide levels: sampling in proportion to mass with a dozen tensor operations.

Items stand in blocks of `WIDTH`, whose sums are kept. A draw is found among the blocks, then in
its block, each time by a cumulative sum and bisection: at four million items both cost about the
same, and less than the many small operations of a deep tree. Sums are recomputed from the masses,
never adjusted, hence exact to float64 rounding for ever. The same operations run on any device,
with static shapes and no synchronisation.
"""

from __future__ import annotations

import torch
from torch import Tensor

WIDTH = 128


class SumTree:
    """Masses of `size` items; an item of mass 0 is never sampled."""

    def __init__(self, size: int, device: torch.device | str = "cpu") -> None:
        self.size = size
        blocks = -(-size // WIDTH)
        self.blocks = torch.zeros(blocks, WIDTH, dtype=torch.float64, device=device)
        self.sums = torch.zeros(blocks, dtype=torch.float64, device=device)

    @property
    def mass(self) -> Tensor:
        """[size] the masses of all items."""
        return self.blocks.view(-1)[: self.size]

    @property
    def total(self) -> Tensor:
        return self.sums.sum()

    def set(self, index: Tensor, mass: Tensor) -> None:
        """Give items [n] new masses [n]; an item named twice must be given the same mass twice."""
        self.blocks.view(-1).index_copy_(0, index, mass)
        block = index // WIDTH
        self.sums.index_copy_(0, block, self.blocks.index_select(0, block).sum(-1))

    def get(self, index: Tensor) -> Tensor:
        """The masses of items [n]."""
        return self.blocks.view(-1).index_select(0, index)

    def find(self, u: Tensor) -> Tensor:
        """For each u [n] in [0, total) the item whose stretch of the cumulative mass holds it."""
        block, u = locate(self.sums, u)
        child, _ = locate(self.blocks.index_select(0, block), u.unsqueeze(-1))
        return block * WIDTH + child.squeeze(-1)

    def rebuild(self, mass: Tensor) -> None:
        """Replace all masses [size]."""
        self.blocks.view(-1)[: self.size] = mass
        torch.sum(self.blocks, -1, out=self.sums)


def locate(mass: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Along the last axis of mass, the place whose stretch holds each u, and how far in u lies."""
    edges = mass.cumsum(-1)
    # Rounding may carry u past the last edge, where a place of mass 0 might stand.
    u = torch.minimum(u, torch.nextafter(edges[..., -1:], u.new_zeros(())))
    place = torch.searchsorted(edges, u, right=True)
    before = edges.gather(-1, (place - 1).clamp_(min=0)) * (place > 0)
    return place, u - before
