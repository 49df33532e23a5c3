"""Objectives other than the paper's: PopArt, constrained TD and value distributions."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from lookfurther.config import Config, LearnerConfig
from lookfurther.errors import ConfigError
from lookfurther.losses import (
    double_q_action,
    im_loss,
    imitation_margin,
    raise_to_floor,
    tc_loss,
    td_target,
    value_of_action,
)
from lookfurther.networks.heads import CategoricalHead, DuelingHead, PopArtHead
from lookfurther.objective import LossOutput, Objective, PreparedBatch
from lookfurther.transforms import IDENTITY
from lookfurther.types import Batch
from lookfurther.variants.categorical import (
    cross_entropy,
    kl_divergence,
    logits_of_action,
    project_distribution,
)
from lookfurther.variants.constrained_td import mean_value_gradient, project_orthogonal

HeadT = TypeVar("HeadT", bound=DuelingHead)


class PopArtObjective(Objective):
    """The paper's loss on values that PopArt normalises (Fig. 4).

    The moments are those of the targets. They change before the gradient is computed, so a target
    that is larger than all before it has a bounded normalised error.
    """

    def __init__(self, config: LearnerConfig, online: nn.Module, target: nn.Module) -> None:
        super().__init__(config, online, target)
        self.head, self.target_head = (require_head(n, PopArtHead) for n in (online, target))

    @torch.no_grad()
    def begin_update(self, network: nn.Module, prepared: PreparedBatch) -> None:
        """Update the moments with the targets of the batch, and rescale the last layer."""
        batch = prepared.batch
        q_next = self.passes.target_forward(network, prepared.inputs_next)
        a_next = self.choose_next_action(q_next, prepared.q_target)
        q_target = self.target_head.value_transform.h_inv(prepared.q_target)
        bootstrap = raise_to_floor(value_of_action(q_target, a_next), batch.floor, IDENTITY)
        targets = td_target(batch.r, batch.discount, bootstrap, IDENTITY)
        self.head.update_moments(targets, self.config.popart_step)

    def loss_terms(self, q_both: Tensor, q_target: Tensor, batch: Batch) -> tuple[Tensor, ...]:
        """L_TD, L_TC, L_IM and the TD error, all on values normalised by the online moments."""
        q_target = self.target_head.value_transform.h_inv(q_target)
        return super().loss_terms(q_both, self.value_transform.h(q_target), batch)


class ConstrainedTDObjective(Objective):
    """TD learning without a target network: no step along the gradient of f(x', a') (Fig. 4)."""

    @torch.no_grad()
    def prepare_into(self, online: nn.Module, target: nn.Module, prepared: PreparedBatch) -> None:
        self.prepare_inputs_into(online, prepared)

    def loss_terms(self, q_both: Tensor, q_target: Tensor, batch: Batch) -> tuple[Tensor, ...]:
        """L_TD, L_TC, L_IM and the TD error; the online network bootstraps from itself."""
        return super().loss_terms(q_both, q_both.chunk(2)[1].detach(), batch)

    def compute_gradients(
        self, network: nn.Module, prepared: PreparedBatch, saved: Any, output: LossOutput
    ) -> list[Tensor]:
        """dL/dtheta without its part along the gradient of the batch mean of f(x', a')."""
        gradients = super().compute_gradients(network, prepared, saved, output)
        q_next, saved_next = self.passes.forward(network, prepared.inputs_next)
        alive = (prepared.batch.discount > 0).float()
        grad_next = mean_value_gradient(q_next, double_q_action(q_next), alive)
        return project_orthogonal(gradients, self.passes.backward(network, saved_next, grad_next))


class CategoricalObjective(Objective):
    """Cross-entropy to the projected target distribution (C51).

    L_TC and L_IM are those of expected values. The priority is a function of the KL divergence.
    """

    def __init__(self, config: LearnerConfig, online: nn.Module, target: nn.Module) -> None:
        super().__init__(config, online, target)
        self.head = require_head(online, CategoricalHead)

    def values(self, outputs: Tensor) -> Tensor:
        return self.head.values(outputs)

    def loss_terms(self, q_both: Tensor, q_target: Tensor, batch: Batch) -> tuple[Tensor, ...]:
        """The losses of logits [2B, A, N] and target logits [B, A, N], and the KL divergence."""
        atoms, (logits, logits_next) = self.head.atoms, q_both.chunk(2)
        q_next, q_next_target = self.values(logits_next), self.values(q_target)
        a_next = self.choose_next_action(q_next, q_next_target)
        p_target = logits_of_action(q_target, a_next).softmax(-1)
        r, discount = batch.r.unsqueeze(-1), batch.discount.unsqueeze(-1)
        target_atoms = td_target(r, discount, atoms, self.value_transform)
        target = project_distribution(target_atoms, p_target, atoms)
        logits_a = logits_of_action(logits, batch.a)
        anchor = value_of_action(q_next_target, a_next)
        alive = (batch.discount > 0).float()
        tc = tc_loss(value_of_action(q_next, a_next), anchor, alive)
        q, config = self.values(logits), self.config
        margin = imitation_margin(q, batch.a, config.margin, config.margin_scale)
        im = im_loss(q, batch.a, batch.e, margin)
        return cross_entropy(target, logits_a), tc, im, kl_divergence(target, logits_a)


def require_head(network: nn.Module, kind: type[HeadT]) -> HeadT:
    """The head of a network, which must be of this kind."""
    head = getattr(network, "head", None)
    if not isinstance(head, kind):
        raise ConfigError(
            "network.head applies to the networks of this package: use values for a custom network"
        )
    return head


# By network.head and learner.constrained_td.
OBJECTIVES: dict[tuple[str, bool], type[Objective]] = {
    ("values", False): Objective,
    ("values", True): ConstrainedTDObjective,
    ("popart", False): PopArtObjective,
    ("categorical", False): CategoricalObjective,
}


def choose_objective(config: Config) -> type[Objective]:
    """The objective that the settings select."""
    return OBJECTIVES[config.network.head, config.learner.constrained_td]
