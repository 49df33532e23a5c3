"""AdamStep of Algorithm 1 (Kingma & Ba 2015) on all parameters at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.optim.adam import adam

from lookfurther.master_weights import MasterWeights
from lookfurther.optimizers.learning_rate import make_learning_rate
from lookfurther.system.acceleration import load_kernels

# Clips and applies gradients, given also the loss, the sum of norms and the finiteness flag.
FusedStep = Callable[[Sequence[Tensor], Tensor, Tensor, Tensor], Tensor]

BETA_1, BETA_2 = 0.9, 0.999


class Adam:
    """Adam's moments and its step by torch's fused kernel; `gpu/adam.py` has one for GPUs."""

    name = "adam"  # of its file in a checkpoint

    def __init__(self, parameters: Sequence[Tensor], learning_rate: float, eps: float) -> None:
        self.parameters, self.eps = list(parameters), eps
        self.learning_rate = make_learning_rate(learning_rate, self.parameters[0])
        self.first_moments = [torch.zeros_like(p) for p in self.parameters]
        self.second_moments = [torch.zeros_like(p) for p in self.parameters]
        self.steps = torch.zeros(len(self.parameters), device=self.parameters[0].device)

    @property
    def is_dense(self) -> bool:
        """Whether parameters have no gaps in memory, like the moments."""
        pairs = zip(self.parameters, self.first_moments, strict=True)
        return all(p.stride() == moment.stride() for p, moment in pairs)

    @torch.no_grad()
    def step(self, gradients: list[Tensor], all_finite: Tensor) -> None:
        """One step, skipped if the gradients are not all finite."""
        gradients = list(map(match_layout, gradients, self.parameters))
        adam(
            self.parameters,
            gradients,
            self.first_moments,
            self.second_moments,
            [],
            list(self.steps.unbind()),
            fused=True,
            capturable=self.steps.is_cuda,
            found_inf=(~all_finite).float(),
            amsgrad=False,
            beta1=BETA_1,
            beta2=BETA_2,
            lr=self.learning_rate,
            weight_decay=0.0,
            eps=self.eps,
            maximize=False,
        )

    def fuse(self, weights: MasterWeights, max_norm: float) -> FusedStep | None:
        """Clipping and step in GPU kernels; None where they cannot run."""
        kernels = load_kernels("adam", self.steps.device)
        return kernels.FusedAdam(self, weights, max_norm) if kernels and self.is_dense else None

    def state(self) -> dict[str, Tensor]:
        """Everything for a checkpoint."""
        means = {f"mean.{i}": mean for i, mean in enumerate(self.first_moments)}
        squares = {f"square.{i}": square for i, square in enumerate(self.second_moments)}
        return {"steps": self.steps, **means, **squares}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        for name, tensor in self.state().items():
            tensor.copy_(state[name])


def match_layout(gradient: Tensor, parameter: Tensor) -> Tensor:
    """The gradient in the memory layout of its parameter, as kernels require."""
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter, dtype=gradient.dtype).copy_(gradient)
