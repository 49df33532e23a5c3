"""Triton kernels for the dueling head: from the last layer of both streams to Q-values, and back.

Everything else waits for the head, and a GEMM with 18 columns leaves a GPU idle. torch.compile
makes four kernels of the forward pass, one after another; here each direction is one kernel.
"""

# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false

from __future__ import annotations

from math import ceil
from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK_M, BLOCK_K = 16, 64  # rows and hidden units per program
MIN_DOT_SIZE = 16  # the smallest side of a product on tensor cores


@triton.jit
def dueling_head_forward(
    h_ptr,
    value_w_ptr,
    value_bias_ptr,
    w_ptr,
    bias_ptr,
    out_ptr,
    num_rows,
    stride_hs,
    stride_hm,
    WIDTH: tl.constexpr,
    ACTIONS: tl.constexpr,
    BLOCK_A: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Partial sums [WIDTH / BLOCK_K, rows, ACTIONS] of V + A - mean A.

    stride_hs and stride_hm are the strides of h over streams and rows.
    """
    offs_m, offs_a = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_A)
    split = tl.program_id(1)
    offs_k = split * BLOCK_K + tl.arange(0, BLOCK_K)
    mask_m, mask_a = (offs_m < num_rows)[:, None], offs_a < ACTIONS
    h_ptrs = h_ptr + (offs_m * stride_hm)[:, None] + offs_k[None, :]
    mask_h = mask_m & (offs_k < WIDTH)[None, :]
    value_h = tl.load(h_ptrs, mask=mask_h, other=0.0).to(tl.float32)
    value_w = tl.load(value_w_ptr + offs_k, mask=offs_k < WIDTH, other=0.0)
    value = tl.sum(value_h * value_w[None, :], 1)
    advantage_h = tl.load(h_ptrs + stride_hs, mask=mask_h, other=0.0).to(tl.float32)
    mask_w = mask_a[:, None] & (offs_k < WIDTH)[None, :]
    w = tl.load(w_ptr + offs_a[:, None] * WIDTH + offs_k[None, :], mask=mask_w, other=0.0)
    advantage = tl.dot(advantage_h, tl.trans(w), input_precision="tf32x3")
    if split == 0:
        advantage += tl.load(bias_ptr + offs_a, mask=mask_a, other=0.0)[None, :]
        value += tl.load(value_bias_ptr)
    q = (value - tl.sum(advantage, 1) / ACTIONS)[:, None] + advantage
    out_ptrs = out_ptr + ((split * num_rows + offs_m) * ACTIONS)[:, None] + offs_a[None, :]
    tl.store(out_ptrs, q, mask=mask_m & mask_a[None, :])


@triton.jit
def dueling_head_backward(
    grad_q_ptr,
    value_w_ptr,
    w_ptr,
    h_ptr,
    out_ptr,
    num_rows,
    stride_hs,
    stride_hm,
    WIDTH: tl.constexpr,
    ACTIONS: tl.constexpr,
    BLOCK_A: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """dL/dh [rows, 2 WIDTH] from dL/dq [rows, ACTIONS], before the ReLU that gave h."""
    offs_m, offs_a = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_A)
    offs_k = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    mask_m, mask_a = (offs_m < num_rows)[:, None], offs_a < ACTIONS
    grad_q_ptrs = grad_q_ptr + (offs_m * ACTIONS)[:, None] + offs_a[None, :]
    grad_q = tl.load(grad_q_ptrs, mask=mask_m & mask_a[None, :], other=0.0)
    grad_value = tl.sum(grad_q, 1)[:, None]
    mask_w = mask_a[:, None] & (offs_k < WIDTH)[None, :]
    w = tl.load(w_ptr + offs_a[:, None] * WIDTH + offs_k[None, :], mask=mask_w, other=0.0)
    grad_advantage = tl.where(mask_a[None, :], grad_q - grad_value / ACTIONS, 0.0)
    advantage_h_grad = tl.dot(grad_advantage, w, input_precision="tf32x3")
    value_w = tl.load(value_w_ptr + offs_k, mask=offs_k < WIDTH, other=0.0)
    value_h_grad = grad_value * value_w[None, :]
    h_ptrs = h_ptr + (offs_m * stride_hm)[:, None] + offs_k[None, :]
    mask_h = mask_m & (offs_k < WIDTH)[None, :]
    out_ptrs = out_ptr + (offs_m * 2 * WIDTH)[:, None] + offs_k[None, :]
    value_h = tl.load(h_ptrs, mask=mask_h, other=0.0)
    value_h_grad = tl.where(value_h > 0, value_h_grad, 0.0)
    advantage_h = tl.load(h_ptrs + stride_hs, mask=mask_h, other=0.0)
    advantage_h_grad = tl.where(advantage_h > 0, advantage_h_grad, 0.0)
    tl.store(out_ptrs, value_h_grad.to(out_ptr.dtype.element_ty), mask=mask_h)
    tl.store(out_ptrs + WIDTH, advantage_h_grad.to(out_ptr.dtype.element_ty), mask=mask_h)


@torch.library.custom_op("lookfurther::head_forward", mutates_args=())
def head_forward(h: Tensor, parameters: list[Tensor]) -> Tensor:
    """Partial sums [n, B, A] in float32 from the streams' last layers h [2, B, width].

    The Q-values are their sum over n. The parameters, in float32, are weight and bias of the value,
    then of the advantages.
    """
    value_w, value_bias, w, bias = parameters
    out = _allocate_partial_values(h, w)
    cast(Any, dueling_head_forward)[(ceil(h.shape[1] / BLOCK_M), len(out))](
        *(h, value_w, value_bias, w, bias, out), **_launch_sizes(h, w)
    )
    return out


@head_forward.register_fake
def _(h: Tensor, parameters: list[Tensor]) -> Tensor:
    return _allocate_partial_values(h, parameters[2])


def _allocate_partial_values(h: Tensor, w: Tensor) -> Tensor:
    _, num_rows, width = h.shape
    return w.new_empty(ceil(width / BLOCK_K), num_rows, len(w))


@torch.library.custom_op("lookfurther::head_backward", mutates_args=())
def head_backward(grad_q: Tensor, h: Tensor, parameters: list[Tensor]) -> Tensor:
    """dL/dh [B, 2 width] from dL/dq [B, A], before the ReLU that gave h."""
    value_w, _, w, _ = parameters
    out, (_, num_rows, width) = _allocate_grad_hidden(h), h.shape
    cast(Any, dueling_head_backward)[(ceil(num_rows / BLOCK_M), ceil(width / BLOCK_K))](
        *(grad_q.contiguous(), value_w, w, h, out), **_launch_sizes(h, w)
    )
    return out


@head_backward.register_fake
def _(grad_q: Tensor, h: Tensor, parameters: list[Tensor]) -> Tensor:
    return _allocate_grad_hidden(h)


def _allocate_grad_hidden(h: Tensor) -> Tensor:
    return h.new_empty(h.shape[1], 2 * h.shape[2])


def _launch_sizes(h: Tensor, w: Tensor) -> dict[str, int]:
    """The arguments of both kernels that are numbers."""
    (_, num_rows, width), (stride_hs, stride_hm, stride_hk) = h.shape, h.stride()
    assert stride_hk == 1
    return {
        "num_rows": num_rows,
        "stride_hs": stride_hs,
        "stride_hm": stride_hm,
        "WIDTH": width,
        "ACTIONS": len(w),
        "BLOCK_A": max(MIN_DOT_SIZE, 1 << (len(w) - 1).bit_length()),
        "BLOCK_M": BLOCK_M,
        "BLOCK_K": BLOCK_K,
    }
