"""Categorical value distributions, C51 (Bellemare et al. 2017).

A distribution has fixed atoms z_1 ... z_N, equally spaced, and probabilities softmax(logits).
"""

from __future__ import annotations

import torch
from torch import Tensor


def expected_values(logits: Tensor, atoms: Tensor) -> Tensor:
    """Q(x, a) = sum_i z_i p_i(x, a): [B, A] of logits [B, A, N]."""
    return (logits.softmax(-1) * atoms).sum(-1)


def logits_of_action(logits: Tensor, a: Tensor) -> Tensor:
    """The logits [B, N] of action a [B]."""
    return torch.take_along_dim(logits, a.view(-1, 1, 1), 1).squeeze(1)


def project_distribution(target_atoms: Tensor, p: Tensor, atoms: Tensor) -> Tensor:
    """Phi(sum_i p_i delta(target_atoms_i)) on the fixed atoms (Algorithm 1 there): [B, N].

    Each atom of target_atoms [B, N] is clipped to the support, and its probability p [B, N] is
    split between the two nearest fixed atoms, in proportion to how near they are.
    """
    clipped = target_atoms.clamp(atoms[0], atoms[-1])
    spacing = (atoms[-1] - atoms[0]) / (len(atoms) - 1)
    distance = (clipped.unsqueeze(-2) - atoms.unsqueeze(-1)).abs() / spacing  # [B, fixed, target]
    return ((1 - distance).clamp(min=0) * p.unsqueeze(-2)).sum(-1)


def cross_entropy(target: Tensor, logits: Tensor) -> Tensor:
    """-sum_i m_i log p_i(x, a) per item: the loss of C51, for a target [B, N] that is constant."""
    return -(target.detach() * logits.log_softmax(-1)).sum(-1)


def entropy(p: Tensor) -> Tensor:
    """-sum_i p_i log p_i per item."""
    return -torch.xlogy(p, p).sum(-1)


def kl_divergence(target: Tensor, logits: Tensor) -> Tensor:
    """KL(m || p) per item: the cross-entropy less its minimum, Rainbow's priority."""
    return (cross_entropy(target, logits) - entropy(target)).clamp(min=0)
