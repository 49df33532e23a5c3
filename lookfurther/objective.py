"""The one composition of the losses: L = L_TD + L_TC + L_IM, its gradients and what it reports."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lookfurther import acceleration
from lookfurther.autograd import AutogradPasses
from lookfurther.config import LearnerConfig
from lookfurther.losses import (
    double_q_action,
    im_loss,
    raise_to_floor,
    tc_loss,
    td_loss,
    td_target,
    value_of_action,
    widen_action_gap,
)
from lookfurther.networks import prepare_inputs
from lookfurther.priorities import PRIORITY_FUNCTIONS
from lookfurther.transforms import make_value_transform
from lookfurther.types import Batch


class PreparedBatch(NamedTuple):
    """A batch and what an update needs of it besides, none of which depends on theta."""

    batch: Batch
    inputs: Tensor  # [2B, ...]: x, then x', as `passes` takes them
    q_target: Tensor  # [B, A]: f_theta^(k-1) of x'

    @property
    def inputs_next(self) -> Tensor:
        return self.inputs[len(self.q_target) :]


class LossOutput(NamedTuple):
    """What the loss says of a batch's values, before the network's gradients."""

    grad_q: Tensor  # [2B, A]: dL/df of x, then of x'
    loss: Tensor  # scalar
    td: Tensor  # [B]: L_TD of each item, without its weight
    tc: Tensor  # [B]
    im: Tensor  # [B]
    priority: Tensor  # [B], before the step


def _make_passes(network: nn.Module, precision: torch.dtype) -> AutogradPasses:
    """Compiled ones, for the paper's own networks on a GPU those that are written out."""
    device = next(network.parameters()).device
    conv, dueling = (acceleration.load_kernels(name, device) for name in ("conv", "dueling"))
    if conv and dueling and conv.is_supported(network, precision):
        return dueling.FusedDuelingPasses(device)
    return AutogradPasses(compiled=True)


class Objective:
    """L(theta; batch, theta^(k-1)) of Sec. 3.4, or a variant a configuration names."""

    def __init__(self, settings: LearnerConfig) -> None:
        self.settings = settings
        self.value_transform = make_value_transform(
            settings.value_transform, settings.value_transform_eps
        )
        self.priority_function = PRIORITY_FUNCTIONS[settings.priority_type]
        self.prepare_fn, self.passes = prepare_inputs, AutogradPasses()

    def compile(self, network: nn.Module, precision: torch.dtype) -> None:
        """Let the parts of a pass run as compiled kernels."""
        # Without gaps between rows: words and bytes are two views of one memory.
        dense: dict[str, Any] = {"comprehensive_padding": False}
        self.prepare_fn = torch.compile(prepare_inputs, dynamic=False, options=dense)
        self.passes = _make_passes(network, precision)
        self.compute_loss = torch.compile(self.compute_loss_functional, dynamic=False)
        self.compute_metrics = torch.compile(self.compute_metrics, dynamic=False)

    @torch.no_grad()
    def prepare_into(self, online: nn.Module, target: nn.Module, prepared: PreparedBatch) -> None:
        """Fill in what a batch needs besides its transitions."""
        if not self.passes.takes_raw_observations:
            self.prepare_fn(online, prepared.batch.x_both.flatten(0, 1), prepared.inputs)
        prepared.q_target.copy_(self.passes.target_forward(target, prepared.inputs_next))

    def forward(self, online: nn.Module, prepared: PreparedBatch) -> tuple[Tensor, Any, LossOutput]:
        """f_theta of x and x' [2B, A], what its gradients need, and what the loss says of it."""
        q_both, seen = self.passes.forward(online, prepared.inputs)
        return q_both, seen, self.compute_loss(q_both, prepared.q_target, prepared.batch)

    def compute_loss(self, q_both: Tensor, q_target: Tensor, batch: Batch) -> LossOutput:
        """What the loss says of values f_theta [2B, A] of x, then x'."""
        q_both = q_both.detach().requires_grad_()
        loss, parts = self.weighted_loss(q_both, q_target, batch)
        (slope,) = torch.autograd.grad(loss, q_both)
        return LossOutput(slope, loss.detach(), *parts)

    def compute_loss_functional(self, q_both: Tensor, q_target: Tensor, batch: Batch) -> LossOutput:
        """The same in a form that a compiler takes whole."""

        def twice(q_both: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
            loss, parts = self.weighted_loss(q_both, q_target, batch)
            return loss, (loss.detach(), *parts)

        slope, rest = torch.func.grad(twice, has_aux=True)(q_both)
        return LossOutput(slope, *rest)

    def weighted_loss(
        self, q_both: Tensor, q_target: Tensor, batch: Batch
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """L, and as constants L_TD, L_TC, L_IM and the priority of each item [B]."""
        td, tc, im, td_error = self.loss_terms(q_both, q_target, batch)
        s = self.settings
        loss = (batch.w * (td + s.tc_weight * tc + s.im_weight * im)).mean()
        return loss, tuple(x.detach() for x in (td, tc, im, self.priority_function(td_error)))

    def loss_terms(self, q_both: Tensor, q_target: Tensor, batch: Batch) -> tuple[Tensor, ...]:
        """L_TD, L_TC, L_IM and the TD error of each item [B]."""
        _, a, r, discount, e, floor, a_shown, _, _ = batch
        q, q_next = q_both.chunk(2)
        a_next = double_q_action(q_next)
        q_next_target = value_of_action(q_target, a_next)
        bootstrap = raise_to_floor(q_next_target, floor, self.value_transform)
        goal = td_target(r, discount, bootstrap, self.value_transform)
        goal = widen_action_gap(goal, q, a, self.settings.advantage_learning)
        td = td_loss(value_of_action(q, a), goal)
        # The bound is a value of the action shown: other actions are held to their own values.
        anchor = torch.where(a_next == a_shown, bootstrap, q_next_target)
        tc = tc_loss(value_of_action(q_next, a_next), anchor, alive=(discount > 0).float())
        im = im_loss(q, a, e, self.settings.margin)
        return td, tc, im, value_of_action(q, a) - goal

    @torch.no_grad()
    def compute_metrics(self, q_both: Tensor, output: LossOutput, w: Tensor) -> dict[str, Tensor]:
        """What there is to know of an update, as scalars on the device."""
        n = self.settings.agent_items
        terms = {
            "loss": output.loss,
            "loss_td": (w * output.td).mean(),
            "loss_tc": (w * output.tc).mean(),
            "loss_im": (w * output.im).mean(),
            "q_mean": q_both.chunk(2)[0].mean(),
            "expert_share_of_gradient": expert_gradient_share(output.grad_q, n),
            "priority_agent": output.priority[:n].mean(),
        }
        if self.settings.expert_items:
            terms["priority_expert"] = output.priority[n:].mean()
        return terms

    def compute_priority(self, q_both: Tensor, q_target: Tensor, batch: Batch) -> Tensor:
        """Priorities [B] of values f_theta [2B, A] of x, then x'."""
        return self.priority_function(self.loss_terms(q_both, q_target, batch)[-1])


def expert_gradient_share(grad_q: Tensor, agent_items: int) -> Tensor:
    """Share of |dL/df| that falls on expert items; slope [2B, A] is for x, then x'."""
    size = grad_q.abs().sum(-1).view(2, -1).sum(0)
    return size[agent_items:].sum() / size.sum().clamp(min=torch.finfo(size.dtype).tiny)
