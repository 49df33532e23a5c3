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

from lookfurther.adam import BETA_1, BETA_2, Adam, laid_out
from lookfurther.master_weights import Weights

BLOCK = 2048  # numbers that a program has at a time
TENSORS = 16  # at most, in one launch
LOG_1, LOG_2 = tl.constexpr(log(BETA_1)), tl.constexpr(log(BETA_2))


@triton.jit
def squares(gradients, parts, sizes: tl.constexpr, starts: tl.constexpr, block: tl.constexpr):
    """|g|^2 of a stretch of one gradient: those of tensor i belong to programs from starts[i]."""
    program = tl.program_id(0)
    for i in tl.static_range(len(gradients)):
        if (program >= starts[i]) & (program < starts[i + 1]):
            at = (program - starts[i]) * block + tl.arange(0, block)
            g = tl.load(gradients[i] + at, mask=at < sizes[i], other=0.0).to(tl.float32)
            tl.store(parts + program, tl.sum(g * g, 0))


@triton.jit
def settle(
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
    tl.store(factors + 1, (rate / (1.0 - tl.exp(t * LOG_1))).to(tl.float32))
    tl.store(factors + 2, (1.0 / (1.0 - tl.exp(t * LOG_2))).to(tl.float32))
    tl.store(factors + 3, good.to(tl.float32))
    tl.store(norm, length)
    tl.store(norms, tl.load(norms) + length)
    tl.store(sound, tl.minimum(tl.load(sound), good.to(tl.uint8)))
    each = tl.arange(0, padded)
    tl.debug_barrier()  # every thread has read how many there were
    tl.store(steps + each, tl.zeros((padded,), tl.float32) + (done + good), mask=each < tensors)


@triton.jit
def adam(
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


class Share(NamedTuple):
    """The tensors of one launch."""

    tensors: slice
    sizes: tuple[int, ...]
    starts: tuple[int, ...]  # the first program of each, and the number of all
    parts: Tensor  # where |g|^2 of each program goes

    @property
    def grid(self) -> tuple[int]:
        return (self.starts[-1],)


class Descent:
    """Adam on the clipped gradient, with the twin brought up to the new weights."""

    def __init__(self, adam: Adam, weights: Weights, limit: float) -> None:
        self.adam, self.twins, self.limit = adam, weights.parameters, limit
        sizes = [p.numel() for p in adam.parameters]
        self.parts = torch.zeros(sum(ceil(n / BLOCK) for n in sizes), device=adam.steps.device)
        self.factors = torch.zeros(4, device=adam.steps.device)
        self.shares = list(_shares(sizes, self.parts))

    @torch.no_grad()
    def __call__(
        self, gradients: Sequence[Tensor], loss: Tensor, norms: Tensor, sound: Tensor
    ) -> Tensor:
        """One step; gives |g|, adds it to `norms`, and makes `sound` false where not finite."""
        own, norm = self.adam, torch.empty_like(norms)
        gradients = [laid_out(g, p) for g, p in zip(gradients, own.parameters, strict=True)]
        for share in self.shares:
            run = cast(Any, squares)[share.grid]
            run(tuple(gradients[share.tensors]), share.parts, share.sizes, share.starts, BLOCK)
        cast(Any, settle)[(1,)](
            *(self.parts, loss, own.steps, self.factors, norm, norms, sound.view(torch.uint8)),
            *(self.limit, own.rate, len(own.steps), triton.next_power_of_2(len(own.steps))),
            *(len(self.parts), BLOCK),
        )
        lists = own.parameters, self.twins, own.means, own.squares, gradients
        for share in self.shares:
            cast(Any, adam)[share.grid](
                *(tuple(tensors[share.tensors]) for tensors in lists),
                *(self.factors, share.sizes, share.starts, BETA_1, BETA_2, own.eps, BLOCK),
            )
        return norm


def _shares(sizes: Sequence[int], parts: Tensor) -> Iterator[Share]:
    """So many tensors at a time as fit in one launch."""
    first = 0
    for i in range(0, len(sizes), TENSORS):
        some = tuple(sizes[i : i + TENSORS])
        starts = tuple(accumulate((ceil(n / BLOCK) for n in some), initial=0))
        yield Share(slice(i, i + TENSORS), some, starts, parts[first:])
        first += starts[-1]
