"""AdamStep of Algorithm 1 as three Triton kernels: gradient norm, step factors, step.

One launch handles up to 16 parameters. The kernels of torch.compile are slower and take 13 seconds
to compile.
"""

# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import ceil, log
from typing import Any, NamedTuple, cast

import torch
import triton
import triton.language as tl
from torch import Tensor

from lookfurther.master_weights import MasterWeights
from lookfurther.optimizers.adam import BETA_1, BETA_2, Adam, match_layout

BLOCK_SIZE = 2048  # elements per program
MAX_TENSORS_PER_LAUNCH = 16
LOG_BETA_1, LOG_BETA_2 = tl.constexpr(log(BETA_1)), tl.constexpr(log(BETA_2))


@triton.jit
def sum_of_squares(
    gradient_ptrs,
    partials_ptr,
    SIZES: tl.constexpr,
    PROGRAM_OFFSETS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """|g|^2 of one block of one gradient; tensor i has the programs from PROGRAM_OFFSETS[i] on."""
    pid = tl.program_id(0)
    for i in tl.static_range(len(gradient_ptrs)):
        if (pid >= PROGRAM_OFFSETS[i]) & (pid < PROGRAM_OFFSETS[i + 1]):
            offs = (pid - PROGRAM_OFFSETS[i]) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
            g = tl.load(gradient_ptrs[i] + offs, mask=offs < SIZES[i], other=0.0).to(tl.float32)
            tl.store(partials_ptr + pid, tl.sum(g * g, 0))


@triton.jit
def compute_step_factors(
    partials_ptr,
    loss_ptr,
    steps_ptr,
    factors_ptr,
    norm_ptr,
    norm_sum_ptr,
    all_finite_ptr,
    learning_rate_ptr,
    max_norm,
    NUM_TENSORS: tl.constexpr,
    BLOCK_TENSORS: tl.constexpr,
    NUM_PARTIALS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """The norm |g|, and four factors of the step.

    The factors are the clipping factor, the learning rate with the first bias correction, the
    second bias correction, and 1 if loss and norm are finite, else 0. Only finite steps count.
    """
    acc = tl.zeros((BLOCK_SIZE,), tl.float32)
    for block in range(tl.cdiv(NUM_PARTIALS, BLOCK_SIZE)):
        offs = block * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
        acc += tl.load(partials_ptr + offs, mask=offs < NUM_PARTIALS, other=0.0)
    norm = tl.sqrt(tl.sum(acc, 0))
    is_finite = tl.abs(norm + tl.load(loss_ptr)) < float("inf")
    steps = tl.load(steps_ptr)
    t = steps.to(tl.float64) + 1.0
    learning_rate = tl.load(learning_rate_ptr)
    tl.store(factors_ptr, tl.minimum(max_norm / norm, 1.0))
    tl.store(factors_ptr + 1, (learning_rate / (1.0 - tl.exp(t * LOG_BETA_1))).to(tl.float32))
    tl.store(factors_ptr + 2, (1.0 / (1.0 - tl.exp(t * LOG_BETA_2))).to(tl.float32))
    tl.store(factors_ptr + 3, is_finite.to(tl.float32))
    tl.store(norm_ptr, norm)
    tl.store(norm_sum_ptr, tl.load(norm_sum_ptr) + norm)
    tl.store(all_finite_ptr, tl.minimum(tl.load(all_finite_ptr), is_finite.to(tl.uint8)))
    offs = tl.arange(0, BLOCK_TENSORS)
    tl.debug_barrier()  # every thread has read the number of steps
    new_steps = tl.zeros((BLOCK_TENSORS,), tl.float32) + (steps + is_finite)
    tl.store(steps_ptr + offs, new_steps, mask=offs < NUM_TENSORS)


@triton.jit
def adam_step(
    parameter_ptrs,
    compute_parameter_ptrs,
    first_moment_ptrs,
    second_moment_ptrs,
    gradient_ptrs,
    factors_ptr,
    SIZES: tl.constexpr,
    PROGRAM_OFFSETS: tl.constexpr,
    BETA_1: tl.constexpr,
    BETA_2: tl.constexpr,
    EPS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """The step of one block of one parameter and of its copy for computing, if all is finite."""
    pid = tl.program_id(0)
    clip_factor, rate = tl.load(factors_ptr), tl.load(factors_ptr + 1)
    correction = tl.load(factors_ptr + 2)
    is_finite = tl.load(factors_ptr + 3) > 0
    for i in tl.static_range(len(gradient_ptrs)):
        if (pid >= PROGRAM_OFFSETS[i]) & (pid < PROGRAM_OFFSETS[i + 1]) & is_finite:
            offs = (pid - PROGRAM_OFFSETS[i]) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
            mask = offs < SIZES[i]
            g = tl.load(gradient_ptrs[i] + offs, mask=mask).to(tl.float32) * clip_factor
            m = tl.load(first_moment_ptrs[i] + offs, mask=mask)
            v = tl.load(second_moment_ptrs[i] + offs, mask=mask)
            m += (g - m) * (1 - BETA_1)
            v += (g * g - v) * (1 - BETA_2)
            p = tl.load(parameter_ptrs[i] + offs, mask=mask)
            p -= rate * m / (tl.sqrt(v * correction) + EPS)
            tl.store(first_moment_ptrs[i] + offs, m, mask=mask)
            tl.store(second_moment_ptrs[i] + offs, v, mask=mask)
            tl.store(parameter_ptrs[i] + offs, p, mask=mask)
            rounded = p.to(compute_parameter_ptrs[i].dtype.element_ty)
            tl.store(compute_parameter_ptrs[i] + offs, rounded, mask=mask)


class LaunchGroup(NamedTuple):
    """The tensors of one launch."""

    tensor_slice: slice
    sizes: tuple[int, ...]
    program_offsets: tuple[int, ...]  # the first program of each tensor, and the number of programs
    partials: Tensor  # |g|^2 of each program

    @property
    def grid(self) -> tuple[int]:
        return (self.program_offsets[-1],)

    @property
    def meta_parameters(self) -> dict[str, Any]:
        return {
            "SIZES": self.sizes,
            "PROGRAM_OFFSETS": self.program_offsets,
            "BLOCK_SIZE": BLOCK_SIZE,
        }

    def select(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(tensors[self.tensor_slice])


class FusedAdam:
    """Adam on the clipped gradient, which also updates the parameters used for computing."""

    def __init__(self, adam: Adam, weights: MasterWeights, max_norm: float) -> None:
        self.adam, self.max_norm = adam, max_norm
        self.compute_parameters = weights.compute_parameters
        sizes, device = [p.numel() for p in adam.parameters], adam.steps.device
        self.partials = torch.zeros(sum(ceil(n / BLOCK_SIZE) for n in sizes), device=device)
        self.factors = torch.zeros(4, device=device)
        self.launch_groups = list(_split_into_launches(sizes, self.partials))

    @torch.no_grad()
    def __call__(
        self, gradients: Sequence[Tensor], loss: Tensor, norm_sum: Tensor, all_finite: Tensor
    ) -> Tensor:
        """One step. Returns |g|, adds it to `norm_sum`, and clears `all_finite` if it must."""
        adam = self.adam
        gradients = [match_layout(g, p) for g, p in zip(gradients, adam.parameters, strict=True)]
        for group in self.launch_groups:
            cast(Any, sum_of_squares)[group.grid](
                group.select(gradients), group.partials, **group.meta_parameters
            )
        norm = self._compute_step_factors(loss, norm_sum, all_finite)
        lists = (adam.parameters, self.compute_parameters, adam.first_moments, adam.second_moments)
        for group in self.launch_groups:
            cast(Any, adam_step)[group.grid](
                *(group.select(tensors) for tensors in (*lists, gradients)),
                self.factors,
                **group.meta_parameters,
                BETA_1=BETA_1,
                BETA_2=BETA_2,
                EPS=adam.eps,
            )
        return norm

    def _compute_step_factors(self, loss: Tensor, norm_sum: Tensor, all_finite: Tensor) -> Tensor:
        norm, steps = torch.empty_like(norm_sum), self.adam.steps
        cast(Any, compute_step_factors)[(1,)](
            *(self.partials, loss, steps, self.factors, norm, norm_sum),
            *(all_finite.view(torch.uint8), self.adam.learning_rate, self.max_norm),
            NUM_TENSORS=len(steps),
            BLOCK_TENSORS=triton.next_power_of_2(len(steps)),
            NUM_PARTIALS=len(self.partials),
            BLOCK_SIZE=BLOCK_SIZE,
        )
        return norm


def _split_into_launches(sizes: Sequence[int], partials: Tensor) -> Iterator[LaunchGroup]:
    """As many tensors per launch as fit."""
    first = 0
    for i in range(0, len(sizes), MAX_TENSORS_PER_LAUNCH):
        group_sizes = tuple(sizes[i : i + MAX_TENSORS_PER_LAUNCH])
        offsets = tuple(accumulate((ceil(n / BLOCK_SIZE) for n in group_sizes), initial=0))
        tensor_slice = slice(i, i + MAX_TENSORS_PER_LAUNCH)
        yield LaunchGroup(tensor_slice, group_sizes, offsets, partials[first:])
        first += offsets[-1]
