"""L = L_TD + L_TC + L_IM: the loss of a batch, its gradient, the priorities and the metrics."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lookfurther.array_api import compile_static
from lookfurther.autograd import AutogradPasses
from lookfurther.config import LearnerConfig
from lookfurther.losses import (
    NEXT_ACTIONS,
    TD_LOSSES,
    im_loss,
    imitation_margin,
    raise_to_floor,
    tc_loss,
    td_loss,
    td_target,
    value_of_action,
    widen_action_gap,
)
from lookfurther.networks.dueling import network_value_transform, prepare_inputs
from lookfurther.priorities import PRIORITY_FUNCTIONS, PRIORITY_LOSSES
from lookfurther.system import acceleration
from lookfurther.types import Batch


class PreparedBatch(NamedTuple):
    """A batch with the network inputs and target values of an update; independent of theta."""

    batch: Batch
    inputs: Tensor  # [2B, ...]: x, then x', in the form that `passes` takes
    q_target: Tensor  # [B, A]: f_theta^(k-1) of x'

    @property
    def inputs_next(self) -> Tensor:
        return self.inputs[len(self.q_target) :]


class LossOutput(NamedTuple):
    """Loss terms, gradient with respect to Q, and new priorities of a batch."""

    grad_q: Tensor  # [2B, A]: dL/df at x, then at x'
    loss: Tensor  # scalar
    td: Tensor  # [B]: L_TD of each item, before weighting
    tc: Tensor  # [B]
    im: Tensor  # [B]
    priority: Tensor  # [B], at the weights before the step


def _make_passes(network: nn.Module, precision: torch.dtype) -> AutogradPasses:
    """Compiled passes; for the paper's networks on a GPU the hand-written ones."""
    device = next(network.parameters()).device
    conv, dueling = (acceleration.load_kernels(name, device) for name in ("conv", "dueling"))
    if conv and dueling and conv.is_supported(network, precision):
        return dueling.FusedDuelingPasses(device)
    return AutogradPasses(compiled=True)


class Objective:
    """L(theta; batch, theta^(k-1)) of Sec. 3.4, or the variant that the configuration selects."""

    def __init__(self, config: LearnerConfig, online: nn.Module, target: nn.Module) -> None:
        self.config, self.online, self.target = config, online, target
        self.value_transform = network_value_transform(online, config)
        self.priority_function = PRIORITY_FUNCTIONS[config.priority_type]
        self.add_priorities = PRIORITY_LOSSES[config.priority_losses]
        self.td_loss = TD_LOSSES[config.td_loss]
        self.choose_next_action = NEXT_ACTIONS[config.double_q]
        self.measure_sources = SOURCE_METRICS[config.demonstrations]
        self.prepare_fn, self.passes = prepare_inputs, AutogradPasses()

    def compile(self, network: nn.Module, precision: torch.dtype) -> None:
        """Compile the passes, the loss and the metrics."""
        # No padding between rows: words and bytes are two views of the same memory.
        self.prepare_fn = compile_static(prepare_inputs, comprehensive_padding=False)
        self.passes = _make_passes(network, precision)
        self.compute_loss = compile_static(self.compute_loss_functional)
        self.compute_metrics = compile_static(self.compute_metrics)

    @torch.no_grad()
    def prepare_into(self, online: nn.Module, target: nn.Module, prepared: PreparedBatch) -> None:
        """Compute the inputs and target values of `prepared.batch`, in place."""
        self.prepare_inputs_into(online, prepared)
        prepared.q_target.copy_(self.passes.target_forward(target, prepared.inputs_next))

    def prepare_inputs_into(self, online: nn.Module, prepared: PreparedBatch) -> None:
        """Compute the inputs of `prepared.batch`, in place."""
        if not self.passes.takes_raw_observations:
            self.prepare_fn(online, prepared.batch.x_both.flatten(0, 1), prepared.inputs)

    def values(self, outputs: Tensor) -> Tensor:
        """f [B, A] of the network's outputs."""
        return outputs

    def compute_loss(self, q_both: Tensor, q_target: Tensor, batch: Batch) -> LossOutput:
        """The loss of values f_theta [2B, A] at x, then at x', and its gradient."""
        q_both = q_both.detach().requires_grad_()
        loss, parts = self.weighted_loss(q_both, q_target, batch)
        (grad_q,) = torch.autograd.grad(loss, q_both)
        return LossOutput(grad_q, loss.detach(), *parts)

    def compute_loss_functional(self, q_both: Tensor, q_target: Tensor, batch: Batch) -> LossOutput:
        """`compute_loss` in a form that torch.compile traces as one graph."""

        def loss_and_output(q_both: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
            loss, parts = self.weighted_loss(q_both, q_target, batch)
            return loss, (loss.detach(), *parts)

        grad_q, rest = torch.func.grad(loss_and_output, has_aux=True)(q_both)
        return LossOutput(grad_q, *rest)

    def weighted_loss(
        self, q_both: Tensor, q_target: Tensor, batch: Batch
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """L, and detached: L_TD, L_TC, L_IM and the priority of each item [B]."""
        td, tc, im, td_error = self.loss_terms(q_both, q_target, batch)
        weighted = td + self.config.tc_weight * tc + self.config.im_weight * im
        loss = (batch.w * weighted).mean()
        priority = self.add_priorities(self.priority_function(td_error), im)
        return loss, tuple(term.detach() for term in (td, tc, im, priority))

    def loss_terms(self, q_both: Tensor, q_target: Tensor, batch: Batch) -> tuple[Tensor, ...]:
        """L_TD, L_TC, L_IM and the TD error of each item [B]."""
        _, a, r, discount, e, floor, a_recorded, _, _ = batch
        q, q_next = q_both.chunk(2)
        a_next = self.choose_next_action(q_next, q_target)
        q_next_target = value_of_action(q_target, a_next)
        bootstrap = raise_to_floor(q_next_target, floor, self.value_transform)
        target = td_target(r, discount, bootstrap, self.value_transform)
        target = widen_action_gap(target, q, a, self.config.advantage_learning)
        td = td_loss(value_of_action(q, a), target, self.td_loss)
        # The floor bounds the value of the recorded action; other actions keep their own anchor.
        anchor = torch.where(a_next == a_recorded, bootstrap, q_next_target)
        tc = tc_loss(value_of_action(q_next, a_next), anchor, alive=(discount > 0).float())
        margin = imitation_margin(q, a, self.config.margin, self.config.margin_scale)
        im = im_loss(q, a, e, margin)
        return td, tc, im, value_of_action(q, a) - target

    def begin_update(self, network: nn.Module, prepared: PreparedBatch) -> None:
        """Adapt to a batch before its gradient is computed: nothing, for fixed transforms."""

    def compute_gradients(
        self, network: nn.Module, prepared: PreparedBatch, saved: Any, output: LossOutput
    ) -> list[Tensor]:
        """dL/dtheta of every parameter, in the network's order."""
        return self.passes.backward(network, saved, output.grad_q)

    @torch.no_grad()
    def compute_metrics(
        self, q_both: Tensor, output: LossOutput, w: Tensor, item: Tensor
    ) -> dict[str, Tensor]:
        """The metrics of an update, as scalars on the device."""
        metrics = {
            "loss": output.loss,
            "loss_td": (w * output.td).mean(),
            "loss_tc": (w * output.tc).mean(),
            "loss_im": (w * output.im).mean(),
            "q_mean": self.values(q_both.chunk(2)[0]).mean(),
        }
        return metrics | self.measure_sources(output, item, self.config.agent_items)

    def compute_priority(self, q_both: Tensor, q_target: Tensor, batch: Batch) -> Tensor:
        """Priorities [B] for values f_theta [2B, A] at x, then at x'."""
        *_, im, td_error = self.loss_terms(q_both, q_target, batch)
        return self.add_priorities(self.priority_function(td_error), im)


def measure_fixed_shares(output: LossOutput, item: Tensor, agent_items: int) -> dict[str, Tensor]:
    """The metrics of agent and expert items, if the first `agent_items` are the agent's."""
    metrics = {
        "expert_share_of_gradient": expert_gradient_share(output.grad_q, agent_items),
        "priority_agent": output.priority[:agent_items].mean(),
    }
    if agent_items < len(item):
        metrics["priority_expert"] = output.priority[agent_items:].mean()
    return metrics


def measure_varying_shares(output: LossOutput, item: Tensor, agent_items: int) -> dict[str, Tensor]:
    """The metrics of agent and expert items of a `SharedMixture`: expert items are negative."""
    is_expert = item < 0
    size = output.grad_q.flatten(1).abs().sum(-1).view(2, -1).sum(0)
    return {
        "expert_share": is_expert.float().mean(),
        "expert_share_of_gradient": torch.where(is_expert, size, 0.0).sum()
        / above_zero(size.sum()),
        "priority_agent": mean_where(~is_expert, output.priority),
        "priority_expert": mean_where(is_expert, output.priority),
    }


def mean_where(mask: Tensor, values: Tensor) -> Tensor:
    """The mean of the values [B] at a mask [B]; 0 if it is empty."""
    return torch.where(mask, values, 0.0).sum() / mask.sum().clamp(min=1)


SOURCE_METRICS = {
    "fixed": measure_fixed_shares,
    "spike": measure_fixed_shares,
    "annealed": measure_varying_shares,
    "priority": measure_varying_shares,
}


def expert_gradient_share(grad_q: Tensor, agent_items: int) -> Tensor:
    """Share of |dL/df| that falls on expert items; grad_q [2B, A] is for x, then x'."""
    size = grad_q.flatten(1).abs().sum(-1).view(2, -1).sum(0)
    return size[agent_items:].sum() / above_zero(size.sum())


def above_zero(x: Tensor) -> Tensor:
    """x, at least the smallest normal number: a divisor."""
    return x.clamp(min=torch.finfo(x.dtype).tiny)
