"""The one composition of the losses: L = L_TD + L_TC + L_IM, its gradients and what it reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lookfurther.aside import Aside
from lookfurther.config import Learner
from lookfurther.losses import (
    chosen,
    double_q_action,
    im_loss,
    tc_loss,
    td_loss,
    td_target,
)
from lookfurther.transforms import transform
from lookfurther.types import Batch


class Forward(NamedTuple):
    """The loss, and what is known before its gradients."""

    q_both: Tensor  # [2B, A]: f_theta of x, then of x'
    loss: Tensor
    td_error: Tensor  # [B]: f_theta(x, a) - target, before the step
    terms: dict[str, Tensor]  # scalars, on the device


class Objective:
    """L(theta; batch, theta^(k-1)) of Sec. 3.4, or a variant a configuration names."""

    def __init__(self, settings: Learner, device: torch.device) -> None:
        self.settings = settings
        self.transform = transform(settings.transform, settings.transform_eps)
        self.aside = Aside(device)
        self.online_values = self.target_values = values

    def compile(self) -> None:
        """Let the parts of a pass run as compiled kernels."""
        self.online_values = torch.compile(values, dynamic=False)
        self.target_values = torch.compile(values, dynamic=False)
        self.losses = torch.compile(self.losses, dynamic=False)
        self.expert_share = torch.compile(self.expert_share, dynamic=False)

    def forward(self, online: nn.Module, target: nn.Module, batch: Batch) -> Forward:
        """The loss of a batch."""
        with self.aside.branch(), torch.no_grad():
            q_target = self.target_values(target, batch.x_next)
        q_both = self.online_values(online, batch.both.flatten(0, 1))
        self.aside.join()
        return Forward(q_both, *self.losses(q_both, q_target, batch))

    def backward(
        self, forward: Forward, parameters: Sequence[Tensor]
    ) -> tuple[list[Tensor], Tensor]:
        """Gradients of the loss, and the demonstrations' share in them."""
        slope, *gradients = torch.autograd.grad(forward.loss, [forward.q_both, *parameters])
        return gradients, self.expert_share(slope)

    def losses(
        self, q_both: Tensor, q_target: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """L, the TD errors [B], and the terms to report."""
        s, (_, a, r, discount, e, w, _) = self.settings, batch
        q, q_next = q_both.chunk(2)
        a_next = double_q_action(q_next)
        bootstrap = chosen(q_target, a_next)
        goal = td_target(r, discount, bootstrap, self.transform)
        td = td_loss(chosen(q, a), goal)
        tc = tc_loss(chosen(q_next, a_next), bootstrap, alive=(discount > 0).float())
        im = im_loss(q, a, e, s.margin)
        loss = (w * (td + s.consistency * tc + s.imitation * im)).mean()
        terms = {
            "loss": loss.detach(),
            "loss_td": (w * td).mean().detach(),
            "loss_tc": (w * tc).mean().detach(),
            "loss_im": (w * im).mean().detach(),
            "q_mean": q.detach().mean(),
        }
        return loss, (chosen(q, a) - goal).detach(), terms

    def expert_share(self, slope: Tensor) -> Tensor:
        """Share of |dL/df| that falls on expert items; slope [2B, A] is for x, then x'."""
        size = slope.abs().sum(-1).view(2, -1).sum(0)
        whole = size.sum().clamp(min=torch.finfo(size.dtype).tiny)
        return size[self.settings.agent_items :].sum() / whole

    @torch.no_grad()
    def td_error(self, online: nn.Module, target: nn.Module, batch: Batch) -> Tensor:
        """f_theta(x, a) - target [B], without gradients."""
        a_next = double_q_action(values(online, batch.x_next))
        bootstrap = chosen(values(target, batch.x_next), a_next)
        goal = td_target(batch.r, batch.discount, bootstrap, self.transform)
        return chosen(values(online, batch.x), batch.a) - goal


def values(network: nn.Module, x: Tensor) -> Tensor:
    """f(x, a) [B, A] in float32."""
    return network(x).float()
