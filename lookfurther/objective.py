"""The one composition of the losses: L = L_TD + L_TC + L_IM, its gradients and what it reports."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lookfurther import array_api
from lookfurther.autograd import Passes
from lookfurther.config import Learner
from lookfurther.losses import (
    chosen,
    double_q_action,
    im_loss,
    raise_to_floor,
    tc_loss,
    td_loss,
    td_target,
    widen_action_gap,
)
from lookfurther.networks import prepare
from lookfurther.priorities import PRIORITIES
from lookfurther.transforms import transform
from lookfurther.types import Batch


class Fetched(NamedTuple):
    """A batch and what an update needs of it besides, none of which depends on theta."""

    batch: Batch
    inputs: Tensor  # [2B, ...]: x, then x', as `passes` takes them
    q_target: Tensor  # [B, A]: f_theta^(k-1) of x'

    @property
    def inputs_next(self) -> Tensor:
        return self.inputs[len(self.q_target) :]


class Judged(NamedTuple):
    """What the loss says of a batch's values, before the network's gradients."""

    slope: Tensor  # [2B, A]: dL/df of x, then of x'
    loss: Tensor  # scalar
    td: Tensor  # [B]: L_TD of each item, without its weight
    tc: Tensor  # [B]
    im: Tensor  # [B]
    priority: Tensor  # [B], before the step


def _passes(network: nn.Module, precision: torch.dtype) -> Passes:
    """Compiled ones, for the paper's own networks on a GPU those that are written out."""
    device = next(network.parameters()).device
    if array_api.runs_kernels(device):
        from lookfurther.gpu import conv, dueling  # need Triton

        if conv.fit(network, precision):
            return dueling.DuelingPasses(device)
    return Passes(compiled=True)


class Objective:
    """L(theta; batch, theta^(k-1)) of Sec. 3.4, or a variant a configuration names."""

    def __init__(self, settings: Learner) -> None:
        self.settings = settings
        self.transform = transform(settings.transform, settings.transform_eps)
        self.priority_of = PRIORITIES[settings.priority]
        self.take, self.passes = prepare, Passes()

    def compile(self, network: nn.Module, precision: torch.dtype) -> None:
        """Let the parts of a pass run as compiled kernels."""
        # Without gaps between rows: words and bytes are two views of one memory.
        dense: dict[str, Any] = {"comprehensive_padding": False}
        self.take = torch.compile(prepare, dynamic=False, options=dense)
        self.passes = _passes(network, precision)
        self.judge = torch.compile(self.judge_in_one, dynamic=False)
        self.report = torch.compile(self.report, dynamic=False)

    @torch.no_grad()
    def prepare(self, online: nn.Module, target: nn.Module, fetched: Fetched) -> None:
        """Fill in what a batch needs besides its transitions."""
        if not self.passes.whole:
            self.take(online, fetched.batch.both.flatten(0, 1), fetched.inputs)
        fetched.q_target.copy_(self.passes.target(target, fetched.inputs_next))

    def forward(self, online: nn.Module, fetched: Fetched) -> tuple[Tensor, Any, Judged]:
        """f_theta of x and x' [2B, A], what its gradients need, and what the loss says of it."""
        q_both, seen = self.passes.forward(online, fetched.inputs)
        return q_both, seen, self.judge(q_both, fetched.q_target, fetched.batch)

    def judge(self, q_both: Tensor, q_target: Tensor, batch: Batch) -> Judged:
        """What the loss says of values f_theta [2B, A] of x, then x'."""
        q_both = q_both.detach().requires_grad_()
        loss, parts = self.loss(q_both, q_target, batch)
        (slope,) = torch.autograd.grad(loss, q_both)
        return Judged(slope, loss.detach(), *parts)

    def judge_in_one(self, q_both: Tensor, q_target: Tensor, batch: Batch) -> Judged:
        """The same in a form that a compiler takes whole."""

        def twice(q_both: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
            loss, parts = self.loss(q_both, q_target, batch)
            return loss, (loss.detach(), *parts)

        slope, rest = torch.func.grad(twice, has_aux=True)(q_both)
        return Judged(slope, *rest)

    def loss(
        self, q_both: Tensor, q_target: Tensor, batch: Batch
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """L, and as constants L_TD, L_TC, L_IM and the priority of each item [B]."""
        td, tc, im, td_error = self.losses(q_both, q_target, batch)
        s = self.settings
        loss = (batch.w * (td + s.consistency * tc + s.imitation * im)).mean()
        return loss, tuple(x.detach() for x in (td, tc, im, self.priority_of(td_error)))

    def losses(self, q_both: Tensor, q_target: Tensor, batch: Batch) -> tuple[Tensor, ...]:
        """L_TD, L_TC, L_IM and the TD error of each item [B]."""
        _, a, r, discount, e, floor, a_shown, _, _ = batch
        q, q_next = q_both.chunk(2)
        a_next = double_q_action(q_next)
        q_next_target = chosen(q_target, a_next)
        bootstrap = raise_to_floor(q_next_target, floor, self.transform)
        goal = td_target(r, discount, bootstrap, self.transform)
        goal = widen_action_gap(goal, q, a, self.settings.advantage_learning)
        td = td_loss(chosen(q, a), goal)
        # The bound is a value of the action shown: other actions are held to their own values.
        anchor = torch.where(a_next == a_shown, bootstrap, q_next_target)
        tc = tc_loss(chosen(q_next, a_next), anchor, alive=(discount > 0).float())
        im = im_loss(q, a, e, self.settings.margin)
        return td, tc, im, chosen(q, a) - goal

    @torch.no_grad()
    def report(self, q_both: Tensor, judged: Judged, w: Tensor) -> dict[str, Tensor]:
        """What there is to know of an update, as scalars on the device."""
        n = self.settings.agent_items
        terms = {
            "loss": judged.loss,
            "loss_td": (w * judged.td).mean(),
            "loss_tc": (w * judged.tc).mean(),
            "loss_im": (w * judged.im).mean(),
            "q_mean": q_both.chunk(2)[0].mean(),
            "expert_share_of_gradient": expert_share(judged.slope, n),
            "priority_agent": judged.priority[:n].mean(),
        }
        if self.settings.expert_items:
            terms["priority_expert"] = judged.priority[n:].mean()
        return terms

    def priority(self, q_both: Tensor, q_target: Tensor, batch: Batch) -> Tensor:
        """Priorities [B] of values f_theta [2B, A] of x, then x'."""
        return self.priority_of(self.losses(q_both, q_target, batch)[-1])


def expert_share(slope: Tensor, agent_items: int) -> Tensor:
    """Share of |dL/df| that falls on expert items; slope [2B, A] is for x, then x'."""
    size = slope.abs().sum(-1).view(2, -1).sum(0)
    return size[agent_items:].sum() / size.sum().clamp(min=torch.finfo(size.dtype).tiny)
