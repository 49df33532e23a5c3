"""A wide sum tree: sampling in proportion to mass, with a handful of tensor operations a level.

Each node sums a block of `WIDTH` children, so four levels hold 16 million items. Sums are
recomputed from the children, never adjusted, hence exact to float64 rounding for ever. The
same operations run on any device, with static shapes and no synchronisation.
"""

from __future__ import annotations

import torch
from torch import Tensor

WIDTH = 64


class SumTree:
    """Masses of `size` items; an item of mass 0 is never sampled."""

    def __init__(self, size: int, device: torch.device | str = "cpu") -> None:
        self.size = size
        self.levels: list[Tensor] = []  # leaves first; each [blocks, WIDTH] float64
        count = size
        while not self.levels or len(self.levels[-1]) > 1:
            blocks = -(-count // WIDTH)
            self.levels.append(torch.zeros(blocks, WIDTH, dtype=torch.float64, device=device))
            count = blocks

    @property
    def mass(self) -> Tensor:
        """[size] the masses of all items."""
        return self.levels[0].view(-1)[: self.size]

    @property
    def total(self) -> Tensor:
        return self.levels[-1].sum()

    def set(self, index: Tensor, mass: Tensor) -> None:
        """Give items [n] new masses [n]; an item named twice must be given the same mass twice."""
        self.levels[0].view(-1).index_copy_(0, index, mass)
        for below, level in zip(self.levels, self.levels[1:], strict=False):
            index = index // WIDTH
            level.view(-1).index_copy_(0, index, below.index_select(0, index).sum(-1))

    def get(self, index: Tensor) -> Tensor:
        """The masses of items [n]."""
        return self.levels[0].view(-1).index_select(0, index)

    def find(self, u: Tensor) -> Tensor:
        """For each u [n] in [0, total) the item whose stretch of the cumulative mass holds it."""
        index = torch.zeros_like(u, dtype=torch.int64)
        for level in reversed(self.levels):
            cumulative = level.index_select(0, index).cumsum(-1)
            # Rounding may carry u past the block's end, where an item of mass 0 might stand.
            u = torch.minimum(u, torch.nextafter(cumulative[:, -1], u.new_zeros(())))
            child = (cumulative <= u.unsqueeze(-1)).sum(-1)
            before = cumulative.gather(-1, (child - 1).clamp(min=0).unsqueeze(-1)).squeeze(-1)
            u = torch.where(child > 0, u - before, u)
            index = index * WIDTH + child
        return index

    def rebuild(self, mass: Tensor) -> None:
        """Replace all masses [size]."""
        self.levels[0].view(-1)[: self.size] = mass
        for below, level in zip(self.levels, self.levels[1:], strict=False):
            level.view(-1)[: len(below)] = below.sum(-1)
