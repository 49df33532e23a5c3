"""Centred RMSProp (Graves 2013), the optimizer of DQN and Ape-X DQN, on all parameters at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lookfurther.master_weights import MasterWeights
from lookfurther.optimizers.adam import FusedStep
from lookfurther.optimizers.learning_rate import make_learning_rate

DECAY = 0.95


class RMSProp:
    """theta - rate g / sqrt(mean(g^2) - mean(g)^2 + eps), with decaying means that start at 0.

    The regularizer is inside the root, as in DQN's own code and in DQN Zoo. torch's RMSprop adds
    it outside.
    """

    name = "rmsprop"  # of its file in a checkpoint

    def __init__(self, parameters: Sequence[Tensor], learning_rate: float, eps: float) -> None:
        self.parameters, self.eps = list(parameters), eps
        self.learning_rate = make_learning_rate(learning_rate, self.parameters[0])
        self.means = [torch.zeros_like(p) for p in self.parameters]
        self.squares = [torch.zeros_like(p) for p in self.parameters]

    @torch.no_grad()
    def step(self, gradients: list[Tensor], all_finite: Tensor) -> None:
        """One step, skipped if the gradients are not all finite."""
        tensors = (self.parameters, self.means, self.squares, gradients)
        for p, mean, square, g in zip(*tensors, strict=True):
            new_mean, new_square = mean.lerp(g, 1 - DECAY), square.lerp(g * g, 1 - DECAY)
            scale = (new_square - new_mean.square() + self.eps).sqrt()
            new = (p - self.learning_rate * g / scale, new_mean, new_square)
            for own, value in zip((p, mean, square), new, strict=True):
                own.copy_(torch.where(all_finite, value, own))

    def fuse(self, weights: MasterWeights, max_norm: float) -> FusedStep | None:
        """There are no kernels for this optimizer."""
        return None

    def state(self) -> dict[str, Tensor]:
        """Everything for a checkpoint."""
        means = {f"mean.{i}": mean for i, mean in enumerate(self.means)}
        squares = {f"square.{i}": square for i, square in enumerate(self.squares)}
        return means | squares

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        for name, tensor in self.state().items():
            tensor.copy_(state[name])
