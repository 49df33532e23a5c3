"""The paper's losses per item, one function each; the objective weights and averages them.

Letters as in the paper: f is the network, theta the online and theta^(k-1) the target weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lookfurther.transforms import ValueTransform

MAX_WIDENED_GAP = 1.0  # action gaps up to this size are widened in proportion


def huber(x: Tensor) -> Tensor:
    """L(x) = x^2 / 2 for |x| <= 1, |x| - 1/2 beyond (Sec. 3.1)."""
    magnitude = x.abs()
    return torch.where(magnitude <= 1, 0.5 * x.square(), magnitude - 0.5)


def half_square(x: Tensor) -> Tensor:
    """x^2 / 2 (Horgan et al. 2018, Eq. 1; DQfD prints it without the 1/2)."""
    return 0.5 * x.square()


# The loss of a TD error, by the setting `learner.td_loss`.
TD_LOSSES: dict[str, Callable[[Tensor], Tensor]] = {"huber": huber, "squared": half_square}


def value_of_action(q: Tensor, a: Tensor) -> Tensor:
    """f(x_i, a_i): the value of action a [B] in each row of q [B, A]."""
    return torch.where(action_mask(q, a), q, 0.0).sum(-1)


def action_mask(q: Tensor, a: Tensor) -> Tensor:
    """[B, A] bool: true at action a [B] of each row. A mask fuses with other operations."""
    return a.unsqueeze(-1) == torch.arange(q.shape[-1], device=q.device)


def double_q_action(q_next: Tensor) -> Tensor:
    """a'_i = argmax_a f_theta(x'_i, a), chosen by the online network (Double DQN, Sec. 3.2)."""
    return q_next.argmax(-1)


def target_max_action(q_target: Tensor) -> Tensor:
    """a'_i = argmax_a f_theta^(k-1)(x'_i, a), chosen by the target network (Mnih et al. 2015)."""
    return q_target.argmax(-1)


# The next action from the online and the target network, by the setting `learner.double_q`.
NEXT_ACTIONS: dict[bool, Callable[[Tensor, Tensor], Tensor]] = {
    True: lambda q_next, q_target: double_q_action(q_next),
    False: lambda q_next, q_target: target_max_action(q_target),
}


def td_target(r: Tensor, discount: Tensor, q_next: Tensor, transform: ValueTransform) -> Tensor:
    """h(r' + gamma h^-1(f_theta^(k-1)(x', a'))), one sample of T_h f (Sec. 3.2)."""
    return transform.h(r + discount * transform.h_inv(q_next))


def raise_to_floor(q_next: Tensor, floor: Tensor, transform: ValueTransform) -> Tensor:
    """max(f_theta^(k-1)(x', a'), h(G(x'))): a bootstrap value is at least the return obtained.

    G(x') is the discounted return of a demonstration from x' on. In a deterministic environment it
    is a lower bound of V*(x'), so h(Q*) stays the fixed point (He et al. 2016). -inf: no bound.
    """
    return torch.maximum(q_next, transform.h(floor))


def widen_action_gap(target: Tensor, q: Tensor, a: Tensor, alpha: float) -> Tensor:
    """target + alpha max(f(x, a) - max_b f(x, b), -1): advantage learning (Bellemare et al. 2016).

    At the fixed point the best action keeps its value, and a gap g to another action becomes
    min(g / (1 - alpha), g + alpha). The limit is that of Munchausen DQN (Vieillard et al. 2020):
    without it a gap of 50, as when an action loses the game, becomes 500 at alpha = 0.9, and the
    network diverges.
    """
    q = q.detach()
    gap = value_of_action(q, a) - q.max(-1).values
    return target + alpha * gap.clamp(min=-MAX_WIDENED_GAP)


def td_loss(q_a: Tensor, target: Tensor, loss: Callable[[Tensor], Tensor] = huber) -> Tensor:
    """L_TD per item: L(f_theta(x, a) - (T_h f)(x, a)), the target a constant (Sec. 3.2)."""
    return loss(q_a - target.detach())


def tc_loss(q_next_a: Tensor, target_q_next_a: Tensor, alive: Tensor) -> Tensor:
    """L_TC per item: L(f_theta(x', a') - f_theta^(k-1)(x', a')) (Sec. 3.3).

    The target network's value is a constant. The loss is 0 if x' is terminal (alive = 0).
    """
    return huber(q_next_a - target_q_next_a.detach()) * alive


def imitation_margin(q: Tensor, a: Tensor, margin: float, scale: float) -> Tensor:
    """lambda of each item [B, 1]: max(margin, scale |f(x, a)|), a constant; the paper's scale is 0.

    The network's errors grow with its values. Where values are 500, a margin of 1 is within them.
    """
    return (scale * value_of_action(q.detach(), a).abs()).clamp(min=margin).unsqueeze(-1)


def im_loss(q: Tensor, a: Tensor, e: Tensor, margin: Tensor | float) -> Tensor:
    """L_IM per item: e (max_b [f(x, b) + lambda 1{b != a}] - f(x, a)) (Eq. 2, Sec. 3.4)."""
    with_margin = torch.where(action_mask(q, a), q, q + margin)
    return e * (value_of_action(with_margin, with_margin.argmax(-1)) - value_of_action(q, a))


def clip_by_global_norm(
    gradients: Sequence[Tensor], max_norm: float
) -> tuple[list[Tensor], Tensor]:
    """g min(max_norm / |g|, 1) and |g|, the norm over all gradients together (Table 6)."""
    # First within rows, then over rows: short sums have smaller rounding errors than long ones.
    squares = [g.float().square() for g in gradients]
    rows = [s.flatten(1).sum(1) if s.ndim > 1 else s.flatten() for s in squares]
    norm = torch.cat(rows).sum().sqrt()
    scale = torch.clamp(max_norm / norm, max=1.0)
    return [g.float() * scale for g in gradients], norm


def add_l2_gradients(
    gradients: Sequence[Tensor], parameters: Sequence[Tensor], weight: float
) -> list[Tensor]:
    """g + 2 weight theta: the gradient with weight |theta|^2 added to the loss (DQfD's J_L2)."""
    pairs = zip(gradients, parameters, strict=True)
    return [g.float() + 2 * weight * p.detach() for g, p in pairs]
