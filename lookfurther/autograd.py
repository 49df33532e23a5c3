"""Forward and backward through a network, by autograd."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lookfurther.networks import Ask, ask, values


class Passes:
    """What a learner asks of its networks, in compiled kernels or as torch has it."""

    whole = False  # whether forward passes take observations as they are, not prepared

    def __init__(self, compiled: bool = False) -> None:
        self.ask: Ask = ask  # for actors
        self.online, self.target = values, values  # f of the one that is learned, and of the other
        if compiled:
            self.online = torch.compile(values, dynamic=False, options={"combo_kernels": True})
            self.target = torch.compile(values, dynamic=False)

    def forward(self, network: nn.Module, inputs: Tensor) -> tuple[Tensor, Any]:
        """f [B, A], and what `backward` needs."""
        q = self.online(network, inputs)
        return q.detach(), q

    def values(self, network: nn.Module, inputs: Tensor) -> Tensor:
        """f [B, A] alone."""
        return self.forward(network, inputs)[0]

    def backward(self, network: nn.Module, seen: Any, slope: Tensor) -> list[Tensor]:
        """The gradients of all parameters, in their order, of dL/df [B, A]."""
        return list(torch.autograd.grad(seen, list(network.parameters()), slope))
