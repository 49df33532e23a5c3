"""Algorithm 1: the learner."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lookfurther.config import LearnerConfig
from lookfurther.errors import TrainingDiverged
from lookfurther.losses import add_l2_gradients, clip_by_global_norm
from lookfurther.master_weights import MasterWeights
from lookfurther.networks.dueling import head_outputs, prepare_inputs
from lookfurther.objective import Objective, PreparedBatch
from lookfurther.optimizers.adam import FusedStep
from lookfurther.optimizers.choice import make_optimizer
from lookfurther.optimizers.weight_average import WeightAverage
from lookfurther.system import acceleration
from lookfurther.types import Batch

UpdateMetrics = dict[str, Tensor]  # scalars, on the device


class UpdateResult(NamedTuple):
    """The result of one update."""

    priority: Tensor  # [B], for the items of the batch
    metrics: UpdateMetrics


class Learner:
    """theta^(k), theta^(k-1) and the optimizer.

    An iteration of Algorithm 1 is `prepare_into`, `update` and `finish_update`. On a GPU the first
    two run inside a captured graph; `training/updates.py` calls all three.

    `compiled` fuses the arithmetic into a few kernels. The numbers are the same except for the
    order of additions.
    """

    def __init__(
        self,
        network: nn.Module,
        config: LearnerConfig,
        device: torch.device,
        precision: torch.dtype,
        compiled: bool = False,
        objective: type[Objective] = Objective,
    ) -> None:
        self.config, self.device = config, device
        self.online_network = network.to(device)
        self.target_network = copy.deepcopy(self.online_network).requires_grad_(False)
        self.online_weights = MasterWeights(self.online_network, precision)
        self.target_weights = MasterWeights(self.target_network, precision)
        self.weight_average = make_weight_average(config, self.online_weights)
        self.objective = objective(config, self.online_network, self.target_network)
        self.priority_stream = acceleration.make_side_stream(device, high_priority=True)
        self.metrics_stream = acceleration.make_side_stream(device)
        self.parameters = list(self.online_network.parameters())
        self.optimizer = make_optimizer(config, self.parameters)
        self.fused_step: FusedStep | None = None
        self.regularize = make_regularizer(config.l2_weight, self.parameters)
        if compiled:
            self._compile(precision)
        self.updates = 0
        self.target_hooks: list[Callable[[], None]] = []  # called when the target network changes
        # Over all updates since the last reset by the caller.
        self.gradient_norm_sum = torch.zeros((), device=device)
        self.all_finite = torch.ones((), dtype=torch.bool, device=device)

    def _compile(self, precision: torch.dtype) -> None:
        """Use compiled kernels, and on a GPU the optimizer's fused step if it has one."""
        self.objective.compile(self.online_network, precision)
        self.fused_step = self.optimizer.fuse(self.online_weights, self.config.max_gradient_norm)

    def prepare_into(self, prepared: PreparedBatch) -> None:
        """Compute the network inputs and f_theta^(k-1)(x') of `prepared.batch`, in place.

        They stay valid until theta^(k-1) changes.
        """
        with self.online_weights.autocast():
            self.objective.prepare_into(
                self.online_weights.compute_network, self.target_weights.compute_network, prepared
            )

    def update(
        self,
        prepared: PreparedBatch,
        on_priority: Callable[[Tensor], None] = lambda priority: None,
        on_metrics: Callable[[UpdateMetrics], None] = lambda metrics: None,
    ) -> UpdateResult:
        """theta^(k) <- AdamStep(L(theta; batch, theta^(k-1))) and the new priorities p_i.

        This is the device's part of Algorithm 1: no operation waits for the host, so a CUDA graph
        can capture it. `on_priority` and `on_metrics` are called as soon as their arguments are
        known; on a GPU their work runs on side streams, concurrently with the backward pass.
        """
        network, passes = self.online_weights.compute_network, self.objective.passes
        after_step = self.config.priority_after_step
        with self.online_weights.autocast():
            self.objective.begin_update(network, prepared)
            # f_theta(x) and f_theta(x') in one forward pass; L = L_TD + L_TC + L_IM and dL/df.
            q_both, saved = passes.forward(network, prepared.inputs)
            output = self.objective.compute_loss(q_both, prepared.q_target, prepared.batch)
            priority = output.priority  # p_i <- |L_TD|
            with self.priority_stream.fork():
                if not after_step:
                    on_priority(priority)
            with self.metrics_stream.fork():
                w, item = prepared.batch.w, prepared.batch.item
                metrics = self.objective.compute_metrics(q_both, output, w, item)
                on_metrics(metrics)
            # dL/dtheta, clipped, and AdamStep.
            gradients = self.objective.compute_gradients(network, prepared, saved, output)
        norm = self.apply_gradients(gradients, output.loss)
        self.priority_stream.join()
        self.metrics_stream.join()
        if after_step:  # p_i at the new weights, as Algorithm 1 prints it
            priority = self._priority_of_prepared(prepared, passes.q_values)
            on_priority(priority)
        return UpdateResult(priority, metrics | {"gradient_norm": norm})

    def apply_gradients(self, gradients: Sequence[Tensor], loss: Tensor) -> Tensor:
        """AdamStep on the clipped gradients, skipped if they are not finite; returns their norm."""
        gradients = self.regularize(gradients)
        if self.fused_step:
            return self.fused_step(gradients, loss, self.gradient_norm_sum, self.all_finite)
        clipped, norm = clip_by_global_norm(gradients, self.config.max_gradient_norm)
        is_finite = torch.isfinite(norm + loss)
        self.optimizer.step(clipped, is_finite)
        self.online_weights.refresh_compute_network()
        self.gradient_norm_sum += norm
        self.all_finite &= is_finite
        return norm

    def finish_update(self) -> None:
        """The host's part of Algorithm 1: theta^(k-1) <- theta^(k) every `target_period` updates.

        On a CPU a loss that is not finite raises here. On a GPU the check would wait for the
        device, so the training loop calls `raise_if_diverged` less often.
        """
        if self.device.type == "cpu":
            self.raise_if_diverged()
        if self.updates_until_target_copy == 1:
            self.target_weights.copy_(self.online_weights)
            if self.weight_average:
                copies = self.updates // self.config.target_period
                self.weight_average.add(self.online_weights, copies)
            self._run_target_hooks()
        self.updates += 1

    def _run_target_hooks(self) -> None:
        for hook in self.target_hooks:
            hook()

    @property
    def acting_weights(self) -> MasterWeights:
        """The weights for acting and evaluation: the average if there is one."""
        return self.weight_average.weights if self.weight_average else self.online_weights

    @property
    def updates_until_target_copy(self) -> int:
        """The number of updates up to and including the next one that ends with a target copy."""
        return self.config.target_period - self.updates % self.config.target_period

    def raise_if_diverged(self) -> None:
        """Raise if a loss or gradient since the last call was not finite; waits for a GPU."""
        if not self.all_finite:
            self.all_finite.fill_(True)
            raise TrainingDiverged(
                f"the loss or the gradient at update {self.updates + 1} is not finite: the"
                " weights are left as they were before it"
            )

    def prepare_batch(self, batch: Batch) -> PreparedBatch:
        """Allocate what `prepare_into` fills for a batch, and fill it."""
        prepared = self._prepare_any_size(batch)
        if self.objective.passes.takes_raw_observations:
            return prepared._replace(inputs=batch.x_both.flatten(0, 1))
        return prepared

    @torch.no_grad()
    def _prepare_any_size(self, batch: Batch) -> PreparedBatch:
        """A prepared batch of any size, computed without the compiled kernels."""
        with self.online_weights.autocast():
            inputs = prepare_inputs(self.online_network, batch.x_both.flatten(0, 1))
            q_target = head_outputs(self.target_weights.compute_network, inputs[len(batch.a) :])
        return PreparedBatch(batch, inputs, q_target)

    def compute_priority(self, batch: Batch) -> Tensor:
        """Priorities [B] at the current weights, for a batch of any size."""
        return self._priority_of_prepared(self._prepare_any_size(batch), head_outputs)

    @torch.no_grad()
    def _priority_of_prepared(
        self, prepared: PreparedBatch, q_function: Callable[..., Tensor]
    ) -> Tensor:
        with self.online_weights.autocast():
            q_both = q_function(self.online_weights.compute_network, prepared.inputs)
        return self.objective.compute_priority(q_both, prepared.q_target, prepared.batch)

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Weights, target weights and the optimizer's moments, for a checkpoint.

        `weights` are those that act. If they are an average, `online` are those that learn.
        """
        online = dict(self.online_network.state_dict())
        files = {
            "weights": online,
            "target": dict(self.target_network.state_dict()),
            self.optimizer.name: self.optimizer.state(),
        }
        if self.weight_average:
            averaged = dict(self.acting_weights.network.state_dict())
            files |= {"weights": averaged, "online": online}
        return files

    def load_state(self, state: Mapping[str, dict[str, Tensor]], updates: int) -> None:
        """Restore what `state` returned."""
        self.online_weights.load_state_dict(state.get("online", state["weights"]))
        self.target_weights.load_state_dict(state["target"])
        self.optimizer.load_state(state[self.optimizer.name])
        if self.weight_average:
            self.weight_average.weights.load_state_dict(state["weights"])
        self.updates = updates
        self._run_target_hooks()


def make_weight_average(config: LearnerConfig, weights: MasterWeights) -> WeightAverage | None:
    """The average of the setting `learner.weight_average`; None if it is 0."""
    if not config.weight_average:
        return None
    return WeightAverage(weights, config.target_period, config.weight_average)


def make_regularizer(
    l2_weight: float, parameters: Sequence[Tensor]
) -> Callable[[Sequence[Tensor]], Sequence[Tensor]]:
    """A function from the gradients of L to those of L + l2_weight |theta|^2."""
    if not l2_weight:
        return lambda gradients: gradients
    return lambda gradients: add_l2_gradients(gradients, parameters, l2_weight)
