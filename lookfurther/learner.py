"""Algorithm 1: the learner."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lookfurther.adam import Adam
from lookfurther.aside import Aside
from lookfurther.config import Learner as Settings
from lookfurther.errors import TrainingDiverged
from lookfurther.losses import clip_by_global_norm
from lookfurther.objective import Objective
from lookfurther.priorities import PRIORITIES
from lookfurther.types import Batch
from lookfurther.weights import Weights


class Update(NamedTuple):
    """What one step of Algorithm 1 gives back."""

    priority: Tensor  # [B], for the items of the batch
    terms: dict[str, Tensor]  # scalars, on the device
    sound: Tensor  # bool, on the device: loss and gradient were finite, else nothing was learned


class Learner:
    """theta^(k), theta^(k-1) and Adam.

    `compiled` has the arithmetic fused into a few kernels, on a GPU: the same numbers but for
    the order of additions.
    """

    def __init__(
        self,
        network: nn.Module,
        settings: Settings,
        device: torch.device,
        precision: torch.dtype,
        compiled: bool = False,
    ) -> None:
        self.settings = settings
        self.online = network.to(device)
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.weights = Weights(self.online, precision)
        self.target_weights = Weights(self.target, precision)
        self.objective = Objective(settings, device)
        self.aside = Aside(device)
        self.priority_of = PRIORITIES[settings.priority]
        self.parameters = list(self.online.parameters())
        self.adam = Adam(self.parameters, settings.learning_rate, settings.adam_eps)
        self.adam_step = self.adam.step
        if compiled:
            self.objective.compile()
            self.adam_step = self.adam.fusible_step
            options: dict[str, Any] = {"combo_kernels": True}  # one kernel for many small tensors
            self._descend = torch.compile(self._descend, dynamic=False, options=options)
        self.updates = 0

    def step(self, batch: Batch) -> Update:
        """One AdamStep of L, the target copy when due, and the updated priorities."""
        update = self.advance(batch)
        self.check(update.sound)
        self.count()
        return update

    def advance(self, batch: Batch, tell: Callable[[Tensor], None] = lambda _: None) -> Update:
        """The part of a step that a device does alone, without asking Python.

        `tell` is given the priorities as soon as they are known, beside the rest.
        """
        after = self.settings.priority_after_step
        with self.weights.autocast():
            q_both, judged = self.objective.forward(
                self.weights.computing, self.target_weights.computing, batch
            )
            with self.aside.branch():
                priority = self.priority_of(judged.td_error)
                if not after:
                    tell(priority)
            gradients = torch.autograd.grad(q_both, self.weights.parameters, judged.slope)
        norm, sound = self._descend(list(gradients), judged.terms["loss"])
        self.aside.join()
        if after:
            priority = self.priority(batch)
            tell(priority)
        return Update(priority, judged.terms | {"gradient_norm": norm}, sound)

    def _descend(self, gradients: list[Tensor], loss: Tensor) -> tuple[Tensor, Tensor]:
        """Adam on the clipped gradient, and the twin brought up to the new weights."""
        gradients, norm = clip_by_global_norm(gradients, self.settings.max_gradient_norm)
        sound = torch.isfinite(norm + loss)
        self.adam_step(gradients, sound)
        self.weights.refresh()
        return norm, sound

    def count(self) -> None:
        """One more update is made: copy theta to the target network when it is due."""
        self.updates += 1
        if self.updates % self.settings.target_period == 0:
            self.target_weights.copy_(self.weights)

    def check(self, sound: Tensor) -> None:
        """Stop the run where a loss or a gradient was not finite."""
        if not sound:
            raise TrainingDiverged(
                f"the loss or the gradient at update {self.updates + 1} is not finite: the"
                " weights are left as they were before it"
            )

    def td_error(self, batch: Batch) -> Tensor:
        """TD errors [B] at the current weights."""
        with self.weights.autocast():
            return self.objective.td_error(
                self.weights.computing, self.target_weights.computing, batch
            )

    def priority(self, batch: Batch) -> Tensor:
        """Priorities [B] at the current weights."""
        return self.priority_of(self.td_error(batch))

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Everything, for a checkpoint: weights, target weights, Adam's moments."""
        return {
            "weights": dict(self.online.state_dict()),
            "target": dict(self.target.state_dict()),
            "adam": self.adam.state(),
        }

    def load_state(self, state: dict[str, dict[str, Tensor]], updates: int) -> None:
        """The inverse of `state`."""
        self.weights.load_state_dict(state["weights"])
        self.target_weights.load_state_dict(state["target"])
        self.adam.load_state(state["adam"])
        self.updates = updates
