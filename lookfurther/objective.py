"""The one composition of the losses: L = L_TD + L_TC + L_IM, its gradients and what it reports."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

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


class Result(NamedTuple):
    """Gradients of L and the quantities the learner passes on."""

    gradients: list[Tensor]
    td_error: Tensor  # [B]: f_theta(x, a) - target, before the step
    terms: dict[str, Tensor]  # scalars, on the device


class Objective:
    """L(theta; batch, theta^(k-1)) of Sec. 3.4, or a variant a configuration names."""

    def __init__(self, settings: Learner) -> None:
        self.settings = settings
        self.transform = transform(settings.transform, settings.transform_eps)

    def __call__(self, online: nn.Module, target: nn.Module, batch: Batch) -> Result:
        """One forward and one backward pass."""
        s, (x, a, r, discount, x_next, e, w, _) = self.settings, batch
        q_both = online(torch.cat([x, x_next])).float()
        q, q_next = q_both.chunk(2)
        with torch.no_grad():
            q_target = target(x_next).float()
        a_next = double_q_action(q_next)
        bootstrap = chosen(q_target, a_next)
        goal = td_target(r, discount, bootstrap, self.transform)
        td = td_loss(chosen(q, a), goal)
        tc = tc_loss(chosen(q_next, a_next), bootstrap, alive=(discount > 0).float())
        im = im_loss(q, a, e, s.margin)
        loss = (w * (td + s.consistency * tc + s.imitation * im)).mean()
        slope, *gradients = torch.autograd.grad(loss, [q_both, *online.parameters()])
        terms = {
            "loss": loss.detach(),
            "loss_td": (w * td).mean().detach(),
            "loss_tc": (w * tc).mean().detach(),
            "loss_im": (w * im).mean().detach(),
            "q_mean": q.detach().mean(),
            "expert_share_of_gradient": expert_share(slope, s.agent_items),
        }
        return Result(gradients, (chosen(q, a) - goal).detach(), terms)

    @torch.no_grad()
    def td_error(self, online: nn.Module, target: nn.Module, batch: Batch) -> Tensor:
        """f_theta(x, a) - target [B], without gradients."""
        a_next = double_q_action(online(batch.x_next).float())
        bootstrap = chosen(target(batch.x_next).float(), a_next)
        goal = td_target(batch.r, batch.discount, bootstrap, self.transform)
        return chosen(online(batch.x).float(), batch.a) - goal


def expert_share(slope: Tensor, agent_items: int) -> Tensor:
    """Share of |dL/df| that falls on expert items; slope [2B, A] is for x, then x'."""
    size = slope.abs().sum(-1).view(2, -1).sum(0)
    return size[agent_items:].sum() / size.sum().clamp(min=torch.finfo(size.dtype).tiny)
