"""AdamStep of Algorithm 1 on a GPU as three kernels: the norm, what follows from it, the step.

Sixteen parameters go in one launch. A compiler's kernels are slower, and take 13 seconds to find.
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

from lookfurther.adam import BETA_1, BETA_2, Adam, match_layout
from lookfurther.master_weights import MasterWeights

BLOCK_SIZE = 2048  # numbers that a program has at a time
MAX_TENSORS_PER_LAUNCH = 16  # at most, in one launch
LOG_BETA_1, LOG_BETA_2 = tl.constexpr(log(BETA_1)), tl.constexpr(log(BETA_2))


@triton.jit
def sum_of_squares(
    gradients, parts, sizes: tl.constexpr, starts: tl.constexpr, block: tl.constexpr
):
    """|g|^2 of a stretch of one gradient: those of tensor i belong to programs from starts[i]."""
    program = tl.program_id(0)
    for i in tl.static_range(len(gradients)):
        if (program >= starts[i]) & (program < starts[i + 1]):
            at = (program - starts[i]) * block + tl.arange(0, block)
            g = tl.load(gradients[i] + at, mask=at < sizes[i], other=0.0).to(tl.float32)
            tl.store(parts + program, tl.sum(g * g, 0))


@triton.jit
def compute_step_factors(
    parts,
    loss,
    steps,
    factors,
    norm,
    norms,
    sound,
    limit,
    rate,
    tensors: tl.constexpr,
    padded: tl.constexpr,
    count: tl.constexpr,
    block: tl.constexpr,
):
    """|g|; factors of the gradient and of both moments, and 1 where all is finite, else 0.

    A step is counted where all is finite.
    """
    acc = tl.zeros((block,), tl.float32)
    for turn in range(tl.cdiv(count, block)):
        at = turn * block + tl.arange(0, block)
        acc += tl.load(parts + at, mask=at < count, other=0.0)
    length = tl.sqrt(tl.sum(acc, 0))
    good = tl.abs(length + tl.load(loss)) < float("inf")
    done = tl.load(steps)
    t = done.to(tl.float64) + 1.0
    tl.store(factors, tl.minimum(limit / length, 1.0))
    tl.store(factors + 1, (rate / (1.0 - tl.exp(t * LOG_BETA_1))).to(tl.float32))
    tl.store(factors + 2, (1.0 / (1.0 - tl.exp(t * LOG_BETA_2))).to(tl.float32))
    tl.store(factors + 3, good.to(tl.float32))
    tl.store(norm, length)
    tl.store(norms, tl.load(norms) + length)
    tl.store(sound, tl.minimum(tl.load(sound), good.to(tl.uint8)))
    each = tl.arange(0, padded)
    tl.debug_barrier()  # every thread has read how many there were
    tl.store(steps + each, tl.zeros((padded,), tl.float32) + (done + good), mask=each < tensors)


@triton.jit
def adam_step(
    parameters,
    twins,
    means,
    moments,
    gradients,
    factors,
    sizes: tl.constexpr,
    starts: tl.constexpr,
    beta_1: tl.constexpr,
    beta_2: tl.constexpr,
    eps: tl.constexpr,
    block: tl.constexpr,
):
    """The step of a stretch of one parameter and its twin; none where all is not finite."""
    program = tl.program_id(0)
    clip, rate, correction = tl.load(factors), tl.load(factors + 1), tl.load(factors + 2)
    good = tl.load(factors + 3) > 0
    for i in tl.static_range(len(gradients)):
        if (program >= starts[i]) & (program < starts[i + 1]) & good:
            at = (program - starts[i]) * block + tl.arange(0, block)
            inside = at < sizes[i]
            g = tl.load(gradients[i] + at, mask=inside).to(tl.float32) * clip
            m, v = tl.load(means[i] + at, mask=inside), tl.load(moments[i] + at, mask=inside)
            m += (g - m) * (1 - beta_1)
            v += (g * g - v) * (1 - beta_2)
            p = tl.load(parameters[i] + at, mask=inside)
            p -= rate * m / (tl.sqrt(v * correction) + eps)
            tl.store(means[i] + at, m, mask=inside)
            tl.store(moments[i] + at, v, mask=inside)
            tl.store(parameters[i] + at, p, mask=inside)
            tl.store(twins[i] + at, p.to(twins[i].dtype.element_ty), mask=inside)


class LaunchGroup(NamedTuple):
    """The tensors of one launch."""

    tensor_slice: slice
    sizes: tuple[int, ...]
    program_offsets: tuple[int, ...]  # the first program of each, and the number of all
    partials: Tensor  # where |g|^2 of each program goes

    @property
    def grid(self) -> tuple[int]:
        return (self.program_offsets[-1],)


class FusedAdam:
    """Adam on the clipped gradient, with the twin brought up to the new weights."""

    def __init__(self, adam: Adam, weights: MasterWeights, max_norm: float) -> None:
        self.adam, self.compute_parameters, self.max_norm = (
            adam,
            weights.compute_parameters,
            max_norm,
        )
        sizes = [p.numel() for p in adam.parameters]
        self.partials = torch.zeros(
            sum(ceil(n / BLOCK_SIZE) for n in sizes), device=adam.steps.device
        )
        self.factors = torch.zeros(4, device=adam.steps.device)
        self.launch_groups = list(_split_into_launches(sizes, self.partials))

    @torch.no_grad()
    def __call__(
        self, gradients: Sequence[Tensor], loss: Tensor, norm_sum: Tensor, all_finite: Tensor
    ) -> Tensor:
        """One step; gives |g|, adds it to `norms`, and makes `sound` false where not finite."""
        own, norm = self.adam, torch.empty_like(norm_sum)
        gradients = [match_layout(g, p) for g, p in zip(gradients, own.parameters, strict=True)]
        for share in self.launch_groups:
            run = cast(Any, sum_of_squares)[share.grid]
            run(
                tuple(gradients[share.tensor_slice]),
                share.partials,
                share.sizes,
                share.program_offsets,
                BLOCK_SIZE,
            )
        cast(Any, compute_step_factors)[(1,)](
            *(
                self.partials,
                loss,
                own.steps,
                self.factors,
                norm,
                norm_sum,
                all_finite.view(torch.uint8),
            ),
            *(
                self.max_norm,
                own.learning_rate,
                len(own.steps),
                triton.next_power_of_2(len(own.steps)),
            ),
            *(len(self.partials), BLOCK_SIZE),
        )
        lists = (
            own.parameters,
            self.compute_parameters,
            own.first_moments,
            own.second_moments,
            gradients,
        )
        for share in self.launch_groups:
            cast(Any, adam_step)[share.grid](
                *(tuple(tensors[share.tensor_slice]) for tensors in lists),
                *(
                    self.factors,
                    share.sizes,
                    share.program_offsets,
                    BETA_1,
                    BETA_2,
                    own.eps,
                    BLOCK_SIZE,
                ),
            )
        return norm


def _split_into_launches(sizes: Sequence[int], partials: Tensor) -> Iterator[LaunchGroup]:
    """So many tensors at a time as fit in one launch."""
    first = 0
    for i in range(0, len(sizes), MAX_TENSORS_PER_LAUNCH):
        some = tuple(sizes[i : i + MAX_TENSORS_PER_LAUNCH])
        starts = tuple(accumulate((ceil(n / BLOCK_SIZE) for n in some), initial=0))
        yield LaunchGroup(slice(i, i + MAX_TENSORS_PER_LAUNCH), some, starts, partials[first:])
        first += starts[-1]
