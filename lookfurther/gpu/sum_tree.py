"""Draws from a `SumTree` on a GPU as two kernels, where a compiler makes six, one after another.

The sums of blocks are summed by the chunk; then one program for each draw finds its chunk, in it
the block, and in that the item.
"""

# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false

from __future__ import annotations

from math import ceil
from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCKS_PER_GROUP = 256  # sums of blocks that are summed


@triton.jit
def sum_groups(sums, chunks, count, chunk: tl.constexpr):
    """The sum of a chunk."""
    at = tl.program_id(0) * chunk + tl.arange(0, chunk)
    total = tl.sum(tl.load(sums + at, mask=at < count, other=0.0), 0)
    tl.store(chunks + tl.program_id(0), total)


@triton.jit
def _find_interval(mass, u, n: tl.constexpr):
    """Of masses [n] the first whose stretch ends above u, and where in it u is.

    Never one of mass 0, though the ends of stretches are rounded, and so is u.
    """
    at, ends = tl.arange(0, n), tl.cumsum(mass, 0)
    last = tl.max(tl.where(mass > 0, at, 0), 0)
    first = tl.min(tl.where((mass > 0) & (ends > u), at, n), 0)
    place = tl.minimum(first, last)
    return place, u - tl.sum(tl.where(at == place - 1, ends, 0.0), 0)


@triton.jit
def find_items(
    share,
    chunks,
    sums,
    blocks,
    items,
    probability,
    count,
    many: tl.constexpr,
    padded: tl.constexpr,
    chunk: tl.constexpr,
    width: tl.constexpr,
):
    """The item at a share of the whole mass, and its probability."""
    draw = tl.program_id(0)
    at, inner, below = tl.arange(0, padded), tl.arange(0, chunk), tl.arange(0, width)
    mass = tl.load(chunks + at, mask=at < many, other=0.0)
    total = tl.sum(mass, 0)
    place, u = _find_interval(mass, tl.load(share + draw) * total, padded)
    inner += place * chunk
    place, u = _find_interval(tl.load(sums + inner, mask=inner < count, other=0.0), u, chunk)
    below += (tl.min(inner, 0) + place) * width
    mass = tl.load(blocks + below)
    place, u = _find_interval(mass, u, width)
    item = tl.min(below, 0) + place
    tl.store(items + draw, item.to(tl.int64))
    tl.store(probability + draw, tl.load(blocks + item) / total)


@torch.library.custom_op("lookfurther::draw", mutates_args=())
def draw_items(fraction: Tensor, sums: Tensor, blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Items [n] at shares [n] of the mass, and their probabilities; of a tree's sums and blocks."""
    own = sums[1:]  # the first is no block's
    count = len(own)
    many = ceil(count / BLOCKS_PER_GROUP)
    chunks, probability = sums.new_empty(many), torch.empty_like(fraction)
    items = torch.empty_like(fraction, dtype=torch.int64)
    cast(Any, sum_groups)[(many,)](own, chunks, count, BLOCKS_PER_GROUP)
    cast(Any, find_items)[(len(fraction),)](
        *(fraction, chunks, own, blocks, items, probability, count),
        *(many, triton.next_power_of_2(many), BLOCKS_PER_GROUP, len(blocks) // count),
        num_warps=1,  # its sums and scans then wait for no other
    )
    return items, probability


@draw_items.register_fake
def _(share: Tensor, sums: Tensor, blocks: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(share, dtype=torch.int64), torch.empty_like(share)
