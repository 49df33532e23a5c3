"""Algorithm 1: the learner."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lookfurther import array_api
from lookfurther.adam import Adam
from lookfurther.config import Learner as Settings
from lookfurther.errors import TrainingDiverged
from lookfurther.gpu.streams import Aside
from lookfurther.losses import clip_by_global_norm
from lookfurther.master_weights import Weights
from lookfurther.networks import prepare, values
from lookfurther.objective import Fetched, Objective
from lookfurther.types import Batch

Terms = dict[str, Tensor]  # scalars, on the device


class Update(NamedTuple):
    """What one step of Algorithm 1 gives back."""

    priority: Tensor  # [B], for the items of the batch
    terms: Terms


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
        self.objective = Objective(settings)
        self.aside, self.reporting = Aside(device, urgent=True), Aside(device)
        self.parameters = list(self.online.parameters())
        self.adam = Adam(self.parameters, settings.learning_rate, settings.adam_eps)
        self.descent: Callable[..., Tensor] | None = None  # for GPUs
        if compiled:
            self.objective.compile(self.online, precision)
            if array_api.runs_kernels(device) and self.adam.dense:
                from lookfurther.gpu.adam import Descent  # needs Triton

                self.descent = Descent(self.adam, self.weights, settings.max_gradient_norm)
        self.updates = 0
        # Over all updates since they were last asked for.
        self.norms = torch.zeros((), device=device)
        self.sound = torch.ones((), dtype=torch.bool, device=device)

    def step(self, batch: Batch) -> Update:
        """One AdamStep of L, the target copy when due, and the updated priorities."""
        update = self.advance(self.fetched(batch))
        self.check()
        self.count()
        return update

    def fetched(self, batch: Batch) -> Fetched:
        """The batch and what goes with it."""
        fetched = self._prepared(batch)
        if self.objective.passes.whole:
            return fetched._replace(inputs=batch.both.flatten(0, 1))
        return fetched

    @torch.no_grad()
    def _prepared(self, batch: Batch) -> Fetched:
        """A batch of any size, for networks as they are written."""
        with self.weights.autocast():
            inputs = prepare(self.online, batch.both.flatten(0, 1))
            q_target = values(self.target_weights.computing, inputs[len(batch.a) :])
        return Fetched(batch, inputs, q_target)

    def prepare(self, fetched: Fetched) -> None:
        """Fill in what goes with a batch; it holds until theta^(k-1) changes."""
        with self.weights.autocast():
            self.objective.prepare(self.weights.computing, self.target_weights.computing, fetched)

    def advance(
        self,
        fetched: Fetched,
        tell: Callable[[Tensor], None] = lambda priority: None,
        note: Callable[[Terms], None] = lambda terms: None,
    ) -> Update:
        """The part of a step that a device does alone, without asking Python.

        `tell` and `note` are called as soon as priorities and terms are known; their work runs
        beside the rest.
        """
        with self.weights.autocast():
            q_both, seen, judged = self.objective.forward(self.weights.computing, fetched)
            priority = judged.priority
            with self.aside.branch():
                if not self.settings.priority_after_step:
                    tell(priority)
            with self.reporting.branch():
                terms = self.objective.report(q_both, judged, fetched.batch.w)
                note(terms)
            gradients = self.objective.passes.backward(self.weights.computing, seen, judged.slope)
        norm = self._descend(gradients, judged.loss)
        self.aside.join()
        self.reporting.join()
        if self.settings.priority_after_step:
            priority = self._priority(fetched, self.objective.passes.values)
            tell(priority)
        return Update(priority, terms | {"gradient_norm": norm})

    def _descend(self, gradients: Sequence[Tensor], loss: Tensor) -> Tensor:
        """Adam on the clipped gradient, and the twin brought up to the new weights."""
        if self.descent:
            return self.descent(gradients, loss, self.norms, self.sound)
        clipped, norm = clip_by_global_norm(gradients, self.settings.max_gradient_norm)
        sound = torch.isfinite(norm + loss)
        self.adam.step(clipped, sound)
        self.weights.refresh()
        self.norms += norm
        self.sound &= sound
        return norm

    def count(self) -> None:
        """One more update is made: copy theta to the target network when it is due."""
        if self.until_copy == 1:
            self.target_weights.copy_(self.weights)
        self.updates += 1

    @property
    def until_copy(self) -> int:
        """How many updates there are up to the next one that ends with a copy to the target."""
        return self.settings.target_period - self.updates % self.settings.target_period

    def check(self) -> None:
        """Stop the run where a loss or a gradient was not finite; on a GPU this waits for it."""
        if not self.sound:
            self.sound.fill_(True)
            raise TrainingDiverged(
                f"the loss or the gradient at update {self.updates + 1} is not finite: the"
                " weights are left as they were before it"
            )

    def priority(self, batch: Batch) -> Tensor:
        """Priorities [B] at the current weights, of a batch of any size."""
        return self._priority(self._prepared(batch), values)

    @torch.no_grad()
    def _priority(self, fetched: Fetched, ask: Callable[..., Tensor]) -> Tensor:
        with self.weights.autocast():
            q_both = ask(self.weights.computing, fetched.inputs)
        return self.objective.priority(q_both, fetched.q_target, fetched.batch)

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
