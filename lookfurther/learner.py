"""Algorithm 1: the learner."""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lookfurther.config import Learner as Settings
from lookfurther.errors import TrainingDiverged
from lookfurther.losses import clip_by_global_norm
from lookfurther.objective import Objective
from lookfurther.priorities import PRIORITIES
from lookfurther.types import Batch


class Update(NamedTuple):
    """What one step of Algorithm 1 gives back."""

    priority: Tensor  # [B], for the items of the batch
    terms: dict[str, Tensor]  # scalars, on the device


class Learner:
    """theta^(k), theta^(k-1) and Adam."""

    def __init__(
        self, network: nn.Module, settings: Settings, device: torch.device, precision: torch.dtype
    ) -> None:
        self.settings, self.device, self.precision = settings, device, precision
        self.online = network.to(device)
        self.target = copy.deepcopy(network).requires_grad_(False)
        self.objective = Objective(settings)
        self.priority_of = PRIORITIES[settings.priority]
        self.adam = torch.optim.Adam(
            self.online.parameters(), lr=settings.learning_rate, eps=settings.adam_eps, fused=True
        )
        self.updates = 0

    def step(self, batch: Batch) -> Update:
        """One AdamStep of L, the target copy when due, and the updated priorities."""
        with self._autocast():
            gradients, td_error, terms = self.objective(self.online, self.target, batch)
        gradients, norm = clip_by_global_norm(gradients, self.settings.max_gradient_norm)
        if not torch.isfinite(norm + terms["loss"]):
            raise TrainingDiverged(
                f"loss {float(terms['loss'])} and gradient norm {float(norm)} at update"
                f" {self.updates + 1} are not finite: the weights are left as they were before it"
            )
        for p, g in zip(self.online.parameters(), gradients, strict=True):
            p.grad = g
        self.adam.step()
        self.updates += 1
        if self.settings.priority_after_step:
            td_error = self.td_error(batch)
        if self.updates % self.settings.target_period == 0:
            self.target.load_state_dict(self.online.state_dict())
        return Update(self.priority_of(td_error), terms | {"gradient_norm": norm})

    def td_error(self, batch: Batch) -> Tensor:
        """TD errors [B] at the current weights."""
        with self._autocast():
            return self.objective.td_error(self.online, self.target, batch)

    def priority(self, batch: Batch) -> Tensor:
        """Priorities [B] at the current weights."""
        return self.priority_of(self.td_error(batch))

    def _autocast(self) -> torch.autocast:
        enabled = self.precision != torch.float32
        return torch.autocast(self.device.type, self.precision, enabled=enabled)

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Everything, for a checkpoint: weights, target weights, Adam's moments."""
        moments = self.adam.state_dict()["state"]
        return {
            "weights": dict(self.online.state_dict()),
            "target": dict(self.target.state_dict()),
            "adam": {f"{i}.{k}": v for i, s in moments.items() for k, v in s.items()},
        }

    def load_state(self, state: dict[str, dict[str, Tensor]], updates: int) -> None:
        """The inverse of `state`."""
        self.online.load_state_dict(state["weights"])
        self.target.load_state_dict(state["target"])
        moments: dict[int, dict[str, Tensor]] = {}
        for key, value in state["adam"].items():
            index, _, name = key.partition(".")
            moments.setdefault(int(index), {})[name] = value
        groups = self.adam.state_dict()["param_groups"]
        self.adam.load_state_dict({"state": moments, "param_groups": groups})
        self.updates = updates
