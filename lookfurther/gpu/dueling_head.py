"""Dueling heads as GPU kernels, in Triton: from both streams' last layers to values, and back.

All else waits for these, and a product of 18 columns leaves a GPU idle: by torch's compiler the way
forward is four kernels, one after the other. Names: c the width of a stream; `bm` and `bk` rows and
columns of one program.
"""

# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false

from __future__ import annotations

from math import ceil
from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK_M, BLOCK_K = 16, 64  # of one program
MIN_DOT_SIZE = 16  # actions that a product on tensor cores takes


@triton.jit
def dueling_head_forward(
    h,
    value_weight,
    value_bias,
    weight,
    bias,
    out,
    count,
    stream,
    row,
    c: tl.constexpr,
    actions: tl.constexpr,
    padded: tl.constexpr,
    bm: tl.constexpr,
    bk: tl.constexpr,
):
    """Shares [c / bk, rows, actions] of V + A - mean A; `stream`, `row`: h's strides."""
    p, a = tl.program_id(0) * bm + tl.arange(0, bm), tl.arange(0, padded)
    share = tl.program_id(1)
    k = share * bk + tl.arange(0, bk)
    inside, real = (p < count)[:, None], a < actions
    at, seen = h + (p * row)[:, None] + k[None, :], inside & (k < c)[None, :]
    mine = tl.load(at, mask=seen, other=0.0).to(tl.float32)
    v = tl.sum(mine * tl.load(value_weight + k, mask=k < c, other=0.0)[None, :], 1)
    theirs = tl.load(at + stream, mask=seen, other=0.0).to(tl.float32)
    there = real[:, None] & (k < c)[None, :]
    w = tl.load(weight + a[:, None] * c + k[None, :], mask=there, other=0.0)
    acc = tl.dot(theirs, tl.trans(w), input_precision="tf32x3")
    if share == 0:
        acc += tl.load(bias + a, mask=real, other=0.0)[None, :]
        v += tl.load(value_bias)
    q = (v - tl.sum(acc, 1) / actions)[:, None] + acc
    to = out + ((share * count + p) * actions)[:, None] + a[None, :]
    tl.store(to, q, mask=inside & real[None, :])


@triton.jit
def dueling_head_backward(
    slope,
    value_weight,
    weight,
    h,
    out,
    count,
    stream,
    row,
    c: tl.constexpr,
    actions: tl.constexpr,
    padded: tl.constexpr,
    bm: tl.constexpr,
    bk: tl.constexpr,
):
    """dL/dh [rows, 2 c] of slopes [rows, actions], before h was rectified: 0 where h is."""
    p, a = tl.program_id(0) * bm + tl.arange(0, bm), tl.arange(0, padded)
    k = tl.program_id(1) * bk + tl.arange(0, bk)
    inside, real = (p < count)[:, None], a < actions
    s = tl.load(slope + (p * actions)[:, None] + a[None, :], mask=inside & real[None, :], other=0.0)
    total = tl.sum(s, 1)[:, None]
    there = real[:, None] & (k < c)[None, :]
    w = tl.load(weight + a[:, None] * c + k[None, :], mask=there, other=0.0)
    theirs = tl.dot(tl.where(real[None, :], s - total / actions, 0.0), w, input_precision="tf32x3")
    mine = total * tl.load(value_weight + k, mask=k < c, other=0.0)[None, :]
    at, seen = h + (p * row)[:, None] + k[None, :], inside & (k < c)[None, :]
    to = out + (p * 2 * c)[:, None] + k[None, :]
    mine = tl.where(tl.load(at, mask=seen, other=0.0) > 0, mine, 0.0)
    theirs = tl.where(tl.load(at + stream, mask=seen, other=0.0) > 0, theirs, 0.0)
    tl.store(to, mine.to(out.dtype.element_ty), mask=seen)
    tl.store(to + c, theirs.to(out.dtype.element_ty), mask=seen)


@torch.library.custom_op("lookfurther::head", mutates_args=())
def head_forward(h: Tensor, learned: list[Tensor]) -> Tensor:
    """Shares [n, B, A] in float32 of the streams' last layers h [2, B, c]; f is their sum.

    Learned are, in float32, the value's weight and bias, then the advantages'.
    """
    out = _allocate_partials(h, learned[2])
    cast(Any, dueling_head_forward)[(ceil(h.shape[1] / BLOCK_M), len(out))](
        *(h, *learned, out, *_launch_sizes(h, learned[2]))
    )
    return out


@head_forward.register_fake
def _(h: Tensor, learned: list[Tensor]) -> Tensor:
    return _allocate_partials(h, learned[2])


def _allocate_partials(h: Tensor, weight: Tensor) -> Tensor:
    _, count, c = h.shape
    return weight.new_empty(ceil(c / BLOCK_K), count, len(weight))


@torch.library.custom_op("lookfurther::head_slope", mutates_args=())
def head_backward(grad_q: Tensor, h: Tensor, learned: list[Tensor]) -> Tensor:
    """dL/dh, before h was rectified, as rows [B, 2 c], of dL/df [B, A]."""
    value_weight, _, weight, _ = learned
    out, (_, count, c) = _allocate_grad_hidden(h), h.shape
    cast(Any, dueling_head_backward)[(ceil(count / BLOCK_M), ceil(c / BLOCK_K))](
        *(grad_q.contiguous(), value_weight, weight, h, out, *_launch_sizes(h, weight))
    )
    return out


@head_backward.register_fake
def _(slope: Tensor, h: Tensor, learned: list[Tensor]) -> Tensor:
    return _allocate_grad_hidden(h)


def _allocate_grad_hidden(h: Tensor) -> Tensor:
    return h.new_empty(h.shape[1], 2 * h.shape[2])


def _launch_sizes(h: Tensor, weight: Tensor) -> tuple[int, ...]:
    """Rows, how far streams and rows lie apart, widths, actions, and what is done at a time."""
    (_, count, c), (stream, row, column), actions = h.shape, h.stride(), len(weight)
    assert column == 1
    padded = max(MIN_DOT_SIZE, 1 << (actions - 1).bit_length())
    return count, stream, row, c, actions, padded, BLOCK_M, BLOCK_K
