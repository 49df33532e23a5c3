"""The one composition of the losses: L = L_TD + L_TC + L_IM, its gradients and what it reports."""

from __future__ import annotations

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


class Judged(NamedTuple):
    """What the loss says of a batch's values, before the network's gradients."""

    slope: Tensor  # [2B, A]: dL/df for x, then for x'
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
        self.judge = torch.compile(self.judge_in_one, dynamic=False)

    def forward(self, online: nn.Module, target: nn.Module, batch: Batch) -> tuple[Tensor, Judged]:
        """f_theta of x and x' [2B, A], and what the loss says of it."""
        with self.aside.branch(), torch.no_grad():
            q_target = self.target_values(target, batch.x_next)
        q_both = self.online_values(online, batch.both.flatten(0, 1))
        self.aside.join()
        return q_both, self.judge(q_both.detach(), q_target, batch)

    def judge(self, q_both: Tensor, q_target: Tensor, batch: Batch) -> Judged:
        """The loss of the values [2B, A], and its slope."""
        q_both = q_both.requires_grad_()
        loss, (td_error, terms) = self.losses(q_both, q_target, batch)
        (slope,) = torch.autograd.grad(loss, q_both)
        return self._report(slope, td_error, terms)

    def judge_in_one(self, q_both: Tensor, q_target: Tensor, batch: Batch) -> Judged:
        """The same in a form that a compiler takes whole."""
        slope_of = torch.func.grad(self.losses, has_aux=True)
        slope, (td_error, terms) = slope_of(q_both, q_target, batch)
        return self._report(slope, td_error, terms)

    def _report(self, slope: Tensor, td_error: Tensor, terms: dict[str, Tensor]) -> Judged:
        share = expert_share(slope, self.settings.agent_items)
        return Judged(slope, td_error, terms | {"expert_share_of_gradient": share})

    def losses(
        self, q_both: Tensor, q_target: Tensor, batch: Batch
    ) -> tuple[Tensor, tuple[Tensor, dict[str, Tensor]]]:
        """L, and beside it the TD errors [B] and the terms to report."""
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
        return loss, ((chosen(q, a) - goal).detach(), terms)

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


def expert_share(slope: Tensor, agent_items: int) -> Tensor:
    """Share of |dL/df| that falls on expert items; slope [2B, A] is for x, then x'."""
    size = slope.abs().sum(-1).view(2, -1).sum(0)
    return size[agent_items:].sum() / size.sum().clamp(min=torch.finfo(size.dtype).tiny)
