"""The optimizer of the learner, by the setting `learner.optimizer`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from lookfurther.config import LearnerConfig
from lookfurther.master_weights import MasterWeights
from lookfurther.optimizers.adam import Adam, FusedStep
from lookfurther.optimizers.rmsprop import RMSProp


class Optimizer(Protocol):
    """Moments of the gradients of all parameters, and the step that they determine."""

    name: str  # of its file in a checkpoint
    learning_rate: Tensor

    def step(self, gradients: list[Tensor], all_finite: Tensor) -> None:
        """One step, skipped if the gradients are not all finite."""
        ...

    def fuse(self, weights: MasterWeights, max_norm: float) -> FusedStep | None:
        """Clipping and step in GPU kernels; None where they cannot run."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Everything for a checkpoint."""
        ...

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        ...


OPTIMIZERS: dict[str, Callable[[LearnerConfig, Sequence[Tensor]], Optimizer]] = {
    "adam": lambda config, parameters: Adam(parameters, config.learning_rate, config.adam_eps),
    "rmsprop": lambda config, parameters: RMSProp(
        parameters, config.learning_rate, config.rmsprop_eps
    ),
}


def make_optimizer(config: LearnerConfig, parameters: Sequence[Tensor]) -> Optimizer:
    """The configured optimizer of these parameters."""
    return OPTIMIZERS[config.optimizer](config, parameters)
