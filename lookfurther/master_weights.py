"""A network whose weights are kept in float32 and computed with in another precision."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from lookfurther.networks import Ask, Head, ask, fill


class Weights:
    """A network and, for other precisions than float32, its twin that does the computing.

    Heads give values in float32 in any case: the twin has the network's own.
    """

    def __init__(self, network: nn.Module, precision: torch.dtype, ask: Ask = ask) -> None:
        self.network, self.precision, self.ask = network, precision, ask
        self.device = next(network.parameters()).device
        self.computing = network
        if precision != torch.float32:
            self.computing = copy.deepcopy(network)
            _share(network, self.computing)
        mine, theirs = network.parameters(), self.computing.parameters()
        pairs = [(p, q) for p, q in zip(mine, theirs, strict=True) if p.data_ptr() != q.data_ptr()]
        for kept, used in pairs:
            used.data = kept.data.to(precision)
        self.kept, self.used = [kept for kept, _ in pairs], [used for _, used in pairs]

    def autocast(self) -> torch.autocast:
        """The context in which `computing` is to be called."""
        enabled = self.precision != torch.float32
        return torch.autocast(self.device.type, self.precision, enabled=enabled)

    def values(self, x: Tensor) -> Tensor:
        """f(x, a) [B, A] in float32 of observations as they are."""
        with self.autocast():
            return self.ask(self.computing, x)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """What gradients are taken of."""
        return list(self.computing.parameters())

    @torch.no_grad()
    def refresh(self) -> None:
        """Bring the twin up to the network."""
        for kept, used in zip(self.kept, self.used, strict=True):
            used.copy_(kept)

    @torch.no_grad()
    def copy_(self, other: Weights) -> None:
        """Take the weights and buffers of another."""
        own, new = self.network.state_dict(), other.network.state_dict()
        for name, tensor in own.items():
            tensor.copy_(new[name])
        self.refresh()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take the weights of a checkpoint."""
        fill(self.network, state)
        self.refresh()


def _share(owner: nn.Module, twin: nn.Module) -> None:
    """Let the twin use the owner's heads and buffers: they exist once."""
    for mine, its in list(zip(owner.modules(), twin.modules(), strict=True)):
        its._buffers = mine._buffers
        if isinstance(mine, Head):
            its._modules = mine._modules
