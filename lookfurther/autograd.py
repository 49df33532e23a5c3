"""Forward and backward passes through a network, by autograd."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lookfurther.array_api import compile_static
from lookfurther.networks.dueling import QFunction, head_outputs, q_values


class AutogradPasses:
    """The learner's passes through its networks, compiled or eager."""

    takes_raw_observations = False  # instead of prepared inputs

    def __init__(self, compiled: bool = False) -> None:
        self.actor_q_function: QFunction = q_values
        self.online_forward = self.target_forward = head_outputs
        if compiled:
            # Noise is drawn by torch, as in eager code.
            self.online_forward = compile_static(
                head_outputs, combo_kernels=True, fallback_random=True
            )
            self.target_forward = compile_static(head_outputs, fallback_random=True)

    def forward(self, network: nn.Module, inputs: Tensor) -> tuple[Tensor, Any]:
        """f [B, A], and the saved state that `backward` needs."""
        q = self.online_forward(network, inputs)
        return q.detach(), q

    def q_values(self, network: nn.Module, inputs: Tensor) -> Tensor:
        """f [B, A] without the saved state."""
        return self.forward(network, inputs)[0]

    def backward(self, network: nn.Module, saved: Any, grad_q: Tensor) -> list[Tensor]:
        """dL/dtheta of every parameter, in the network's order, from grad_q = dL/df [B, A]."""
        return list(torch.autograd.grad(saved, list(network.parameters()), grad_q))
