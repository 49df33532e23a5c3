"""A wide sum tree: sampling in proportion to mass, with a handful of tensor operations a level.

Each node sums a block of `WIDTH` children, so four levels hold 16 million items. Beside the masses
each level keeps the cumulative sums of its blocks, in which a draw is found by bisection. Sums are
recomputed from the children, never adjusted, hence exact to float64 rounding for ever. The same
operations run on any device, with static shapes and no synchronisation.
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
        self.cumulative = [torch.zeros_like(level) for level in self.levels]
        self.zero = torch.zeros((), dtype=torch.float64, device=device)

    @property
    def mass(self) -> Tensor:
        """[size] the masses of all items."""
        return self.levels[0].view(-1)[: self.size]

    @property
    def total(self) -> Tensor:
        return self.cumulative[-1][0, -1]

    def set(self, index: Tensor, mass: Tensor) -> None:
        """Give items [n] new masses [n]; an item named twice must be given the same mass twice."""
        for level, cumulative in zip(self.levels, self.cumulative, strict=True):
            level.view(-1).index_copy_(0, index, mass)
            index = index // WIDTH
            sums = level.index_select(0, index).cumsum(-1)
            cumulative.index_copy_(0, index, sums)
            mass = sums[:, -1]

    def get(self, index: Tensor) -> Tensor:
        """The masses of items [n]."""
        return self.levels[0].view(-1).index_select(0, index)

    def find(self, u: Tensor) -> Tensor:
        """For each u [n] in [0, total) the item whose stretch of the cumulative mass holds it."""
        index = torch.zeros_like(u, dtype=torch.int64)
        for level, cumulative in zip(reversed(self.levels), reversed(self.cumulative), strict=True):
            sums = cumulative.index_select(0, index)
            # Rounding may carry u past the block's end, where an item of mass 0 might stand.
            u = torch.minimum(u, torch.nextafter(sums[:, -1], self.zero))
            child = torch.searchsorted(sums, u.unsqueeze(-1), right=True)
            index = index * WIDTH + child.squeeze(-1)
            end = sums.gather(-1, child).squeeze(-1)
            u = (u - (end - level.view(-1).index_select(0, index))).clamp_(min=0)
        return index

    def rebuild(self, mass: Tensor) -> None:
        """Replace all masses [size]."""
        for level, cumulative in zip(self.levels, self.cumulative, strict=True):
            level.view(-1)[: len(mass)] = mass
            torch.cumsum(level, -1, out=cumulative)
            mass = cumulative[:, -1]
