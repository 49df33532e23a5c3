"""Sampling from a `SumTree` on a GPU as two Triton kernels; torch.compile makes six.

The first kernel adds up the block sums in groups. The second runs one program per sample, which
finds the group, the block in the group, and the item in the block.
"""

# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false

from __future__ import annotations

from math import ceil
from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCKS_PER_GROUP = 256


@triton.jit
def sum_groups(block_sums_ptr, group_sums_ptr, num_blocks, GROUP_SIZE: tl.constexpr):
    """The sum of one group of block sums."""
    offs = tl.program_id(0) * GROUP_SIZE + tl.arange(0, GROUP_SIZE)
    group_sum = tl.sum(tl.load(block_sums_ptr + offs, mask=offs < num_blocks, other=0.0), 0)
    tl.store(group_sums_ptr + tl.program_id(0), group_sum)


@triton.jit
def _find_interval(mass, u, SIZE: tl.constexpr):
    """The index of the interval of the cumulative masses [SIZE] with u, and u's offset in it.

    Never an index of mass 0, although interval ends and u are rounded.
    """
    offs, ends = tl.arange(0, SIZE), tl.cumsum(mass, 0)
    last = tl.max(tl.where(mass > 0, offs, 0), 0)
    first = tl.min(tl.where((mass > 0) & (ends > u), offs, SIZE), 0)
    index = tl.minimum(first, last)
    return index, u - tl.sum(tl.where(offs == index - 1, ends, 0.0), 0)


@triton.jit
def find_items(
    fraction_ptr,
    group_sums_ptr,
    block_sums_ptr,
    masses_ptr,
    items_ptr,
    probability_ptr,
    num_blocks,
    NUM_GROUPS: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
):
    """The item at a fraction of the total mass, and its probability."""
    sample = tl.program_id(0)
    offs_group, offs_block = tl.arange(0, BLOCK_GROUPS), tl.arange(0, GROUP_SIZE)
    offs_item = tl.arange(0, BLOCK_WIDTH)
    mass = tl.load(group_sums_ptr + offs_group, mask=offs_group < NUM_GROUPS, other=0.0)
    total = tl.sum(mass, 0)
    index, u = _find_interval(mass, tl.load(fraction_ptr + sample) * total, BLOCK_GROUPS)
    offs_block += index * GROUP_SIZE
    mass = tl.load(block_sums_ptr + offs_block, mask=offs_block < num_blocks, other=0.0)
    index, u = _find_interval(mass, u, GROUP_SIZE)
    offs_item += (tl.min(offs_block, 0) + index) * BLOCK_WIDTH
    mass = tl.load(masses_ptr + offs_item)
    index, u = _find_interval(mass, u, BLOCK_WIDTH)
    item = tl.min(offs_item, 0) + index
    tl.store(items_ptr + sample, item.to(tl.int64))
    tl.store(probability_ptr + sample, tl.load(masses_ptr + item) / total)


@torch.library.custom_op("lookfurther::draw_items", mutates_args=())
def draw_items(fraction: Tensor, block_sums: Tensor, masses: Tensor) -> tuple[Tensor, Tensor]:
    """Items [n] at fractions [n] of a tree's total mass, and their probabilities [n]."""
    block_sums = block_sums[1:]  # the first entry is a 0 before the first block
    num_blocks = len(block_sums)
    num_groups = ceil(num_blocks / BLOCKS_PER_GROUP)
    group_sums, probability = block_sums.new_empty(num_groups), torch.empty_like(fraction)
    items = torch.empty_like(fraction, dtype=torch.int64)
    cast(Any, sum_groups)[(num_groups,)](
        block_sums, group_sums, num_blocks, GROUP_SIZE=BLOCKS_PER_GROUP
    )
    cast(Any, find_items)[(len(fraction),)](
        *(fraction, group_sums, block_sums, masses, items, probability, num_blocks),
        NUM_GROUPS=num_groups,
        BLOCK_GROUPS=triton.next_power_of_2(num_groups),
        GROUP_SIZE=BLOCKS_PER_GROUP,
        BLOCK_WIDTH=len(masses) // num_blocks,
        num_warps=1,  # sums and scans then need no synchronization between warps
    )
    return items, probability


@draw_items.register_fake
def _(fraction: Tensor, block_sums: Tensor, masses: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(fraction, dtype=torch.int64), torch.empty_like(fraction)
