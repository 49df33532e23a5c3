"""Forward and backward through a network, by autograd."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lookfurther.networks import QFunction, q_from_inputs, q_values


class AutogradPasses:
    """What a learner asks of its networks, in compiled kernels or as torch has it."""

    takes_raw_observations = (
        False  # whether forward passes take observations as they are, not prepared
    )

    def __init__(self, compiled: bool = False) -> None:
        self.actor_q_function: QFunction = q_values  # for actors
        self.online_forward, self.target_forward = (
            q_from_inputs,
            q_from_inputs,
        )  # f of the one that is learned, and of the other
        if compiled:
            self.online_forward = torch.compile(
                q_from_inputs, dynamic=False, options={"combo_kernels": True}
            )
            self.target_forward = torch.compile(q_from_inputs, dynamic=False)

    def forward(self, network: nn.Module, inputs: Tensor) -> tuple[Tensor, Any]:
        """f [B, A], and what `backward` needs."""
        q = self.online_forward(network, inputs)
        return q.detach(), q

    def q_values(self, network: nn.Module, inputs: Tensor) -> Tensor:
        """f [B, A] alone."""
        return self.forward(network, inputs)[0]

    def backward(self, network: nn.Module, saved: Any, grad_q: Tensor) -> list[Tensor]:
        """The gradients of all parameters, in their order, of dL/df [B, A]."""
        return list(torch.autograd.grad(saved, list(network.parameters()), grad_q))
