"""Algorithm 1: the learner."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lookfurther import acceleration
from lookfurther.adam import Adam
from lookfurther.config import LearnerConfig as Settings
from lookfurther.errors import TrainingDiverged
from lookfurther.losses import clip_by_global_norm
from lookfurther.master_weights import MasterWeights
from lookfurther.networks import prepare_inputs, q_from_inputs
from lookfurther.objective import Objective, PreparedBatch
from lookfurther.types import Batch

UpdateMetrics = dict[str, Tensor]  # scalars, on the device


class UpdateResult(NamedTuple):
    """What one step of Algorithm 1 gives back."""

    priority: Tensor  # [B], for the items of the batch
    metrics: UpdateMetrics


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
        self.online_network = network.to(device)
        self.target_network = copy.deepcopy(self.online_network).requires_grad_(False)
        self.online_weights = MasterWeights(self.online_network, precision)
        self.target_weights = MasterWeights(self.target_network, precision)
        self.objective = Objective(settings)
        self.priority_stream, self.metrics_stream = (
            acceleration.make_side_stream(device, high_priority=True),
            acceleration.make_side_stream(device),
        )
        self.parameters = list(self.online_network.parameters())
        self.adam = Adam(self.parameters, settings.learning_rate, settings.adam_eps)
        self.fused_adam: Callable[..., Tensor] | None = None  # for GPUs
        if compiled:
            self.objective.compile(self.online_network, precision)
            kernels = acceleration.load_kernels("adam", device)
            if kernels and self.adam.is_dense:
                self.fused_adam = kernels.FusedAdam(
                    self.adam, self.online_weights, settings.max_gradient_norm
                )
        self.updates = 0
        # Over all updates since they were last asked for.
        self.gradient_norm_sum = torch.zeros((), device=device)
        self.all_finite = torch.ones((), dtype=torch.bool, device=device)

    def step(self, batch: Batch) -> UpdateResult:
        """One AdamStep of L, the target copy when due, and the updated priorities."""
        update = self.update(self.prepare_batch(batch))
        self.raise_if_diverged()
        self.maybe_update_target()
        return update

    def prepare_batch(self, batch: Batch) -> PreparedBatch:
        """The batch and what goes with it."""
        fetched = self._prepare_any_size(batch)
        if self.objective.passes.takes_raw_observations:
            return fetched._replace(inputs=batch.x_both.flatten(0, 1))
        return fetched

    @torch.no_grad()
    def _prepare_any_size(self, batch: Batch) -> PreparedBatch:
        """A batch of any size, for networks as they are written."""
        with self.online_weights.autocast():
            inputs = prepare_inputs(self.online_network, batch.x_both.flatten(0, 1))
            q_target = q_from_inputs(self.target_weights.compute_network, inputs[len(batch.a) :])
        return PreparedBatch(batch, inputs, q_target)

    def prepare_into(self, prepared: PreparedBatch) -> None:
        """Fill in what goes with a batch; it holds until theta^(k-1) changes."""
        with self.online_weights.autocast():
            self.objective.prepare_into(
                self.online_weights.compute_network, self.target_weights.compute_network, prepared
            )

    def update(
        self,
        prepared: PreparedBatch,
        on_priority: Callable[[Tensor], None] = lambda priority: None,
        on_metrics: Callable[[UpdateMetrics], None] = lambda terms: None,
    ) -> UpdateResult:
        """The part of a step that a device does alone, without asking Python.

        `tell` and `note` are called as soon as priorities and terms are known; their work runs
        beside the rest.
        """
        with self.online_weights.autocast():
            q_both, seen, judged = self.objective.forward(
                self.online_weights.compute_network, prepared
            )
            priority = judged.priority
            with self.priority_stream.fork():
                if not self.settings.priority_after_step:
                    on_priority(priority)
            with self.metrics_stream.fork():
                terms = self.objective.compute_metrics(q_both, judged, prepared.batch.w)
                on_metrics(terms)
            gradients = self.objective.passes.backward(
                self.online_weights.compute_network, seen, judged.grad_q
            )
        norm = self.apply_gradients(gradients, judged.loss)
        self.priority_stream.join()
        self.metrics_stream.join()
        if self.settings.priority_after_step:
            priority = self._priority_of_prepared(prepared, self.objective.passes.q_values)
            on_priority(priority)
        return UpdateResult(priority, terms | {"gradient_norm": norm})

    def apply_gradients(self, gradients: Sequence[Tensor], loss: Tensor) -> Tensor:
        """Adam on the clipped gradient, and the twin brought up to the new weights."""
        if self.fused_adam:
            return self.fused_adam(gradients, loss, self.gradient_norm_sum, self.all_finite)
        clipped, norm = clip_by_global_norm(gradients, self.settings.max_gradient_norm)
        sound = torch.isfinite(norm + loss)
        self.adam.step(clipped, sound)
        self.online_weights.refresh_compute_network()
        self.gradient_norm_sum += norm
        self.all_finite &= sound
        return norm

    def maybe_update_target(self) -> None:
        """One more update is made: copy theta to the target network when it is due."""
        if self.updates_until_target_copy == 1:
            self.target_weights.copy_(self.online_weights)
        self.updates += 1

    @property
    def updates_until_target_copy(self) -> int:
        """How many updates there are up to the next one that ends with a copy to the target."""
        return self.settings.target_period - self.updates % self.settings.target_period

    def raise_if_diverged(self) -> None:
        """Stop the run where a loss or a gradient was not finite; on a GPU this waits for it."""
        if not self.all_finite:
            self.all_finite.fill_(True)
            raise TrainingDiverged(
                f"the loss or the gradient at update {self.updates + 1} is not finite: the"
                " weights are left as they were before it"
            )

    def compute_priority(self, batch: Batch) -> Tensor:
        """Priorities [B] at the current weights, of a batch of any size."""
        return self._priority_of_prepared(self._prepare_any_size(batch), q_from_inputs)

    @torch.no_grad()
    def _priority_of_prepared(
        self, prepared: PreparedBatch, q_function: Callable[..., Tensor]
    ) -> Tensor:
        with self.online_weights.autocast():
            q_both = q_function(self.online_weights.compute_network, prepared.inputs)
        return self.objective.compute_priority(q_both, prepared.q_target, prepared.batch)

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Everything, for a checkpoint: weights, target weights, Adam's moments."""
        return {
            "weights": dict(self.online_network.state_dict()),
            "target": dict(self.target_network.state_dict()),
            "adam": self.adam.state(),
        }

    def load_state(self, state: dict[str, dict[str, Tensor]], updates: int) -> None:
        """The inverse of `state`."""
        self.online_weights.load_state_dict(state["weights"])
        self.target_weights.load_state_dict(state["target"])
        self.adam.load_state(state["adam"])
        self.updates = updates
