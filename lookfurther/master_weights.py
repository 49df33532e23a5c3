"""A network whose weights are kept in float32 and computed with in another precision."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from lookfurther.networks import DuelingHead, QFunction, load_network_weights, q_values


class MasterWeights:
    """A network and, for other precisions than float32, its twin that does the computing.

    Heads give values in float32 in any case: the twin has the network's own.
    """

    def __init__(
        self, network: nn.Module, precision: torch.dtype, q_function: QFunction = q_values
    ) -> None:
        self.network, self.precision, self.q_function = network, precision, q_function
        self.device = next(network.parameters()).device
        self.compute_network = network
        if precision != torch.float32:
            self.compute_network = copy.deepcopy(network)
            _share_heads_and_buffers(network, self.compute_network)
        mine, theirs = network.parameters(), self.compute_network.parameters()
        pairs = [(p, q) for p, q in zip(mine, theirs, strict=True) if p.data_ptr() != q.data_ptr()]
        for kept, used in pairs:
            used.data = kept.data.to(precision)
        self.master_tensors, self.compute_tensors = (
            [kept for kept, _ in pairs],
            [used for _, used in pairs],
        )

    def autocast(self) -> torch.autocast:
        """The context in which `computing` is to be called."""
        enabled = self.precision != torch.float32
        return torch.autocast(self.device.type, self.precision, enabled=enabled)

    def q_values(self, x: Tensor) -> Tensor:
        """f(x, a) [B, A] in float32 of observations as they are."""
        with self.autocast():
            return self.q_function(self.compute_network, x)

    @property
    def compute_parameters(self) -> list[nn.Parameter]:
        """What gradients are taken of."""
        return list(self.compute_network.parameters())

    @torch.no_grad()
    def refresh_compute_network(self) -> None:
        """Bring the twin up to the network."""
        for kept, used in zip(self.master_tensors, self.compute_tensors, strict=True):
            used.copy_(kept)

    @torch.no_grad()
    def copy_(self, source: MasterWeights) -> None:
        """Take the weights and buffers of another."""
        own, new = self.network.state_dict(), source.network.state_dict()
        for name, tensor in own.items():
            tensor.copy_(new[name])
        self.refresh_compute_network()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take the weights of a checkpoint."""
        load_network_weights(self.network, state)
        self.refresh_compute_network()


def _share_heads_and_buffers(master: nn.Module, compute: nn.Module) -> None:
    """Let the twin use the owner's heads and buffers: they exist once."""
    for mine, its in list(zip(master.modules(), compute.modules(), strict=True)):
        its._buffers = mine._buffers
        if isinstance(mine, DuelingHead):
            its._modules = mine._modules
