"""A network with float32 master weights and a copy that computes in another precision."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from lookfurther.networks.dueling import QFunction, load_network_weights, q_values
from lookfurther.networks.heads import DuelingHead


class MasterWeights:
    """A network and, for precisions other than float32, a compute copy in that precision.

    Dueling heads always compute in float32: the copy uses the head of the network itself.
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
        pairs = zip(network.parameters(), self.compute_network.parameters(), strict=True)
        copied = [(p, copy_of_p) for p, copy_of_p in pairs if p.data_ptr() != copy_of_p.data_ptr()]
        self.master_tensors = [master for master, _ in copied]
        self.compute_tensors = [compute for _, compute in copied]
        for master, compute in copied:
            compute.data = master.data.to(precision)

    def autocast(self) -> torch.autocast:
        """The context in which to call `compute_network`."""
        enabled = self.precision != torch.float32
        return torch.autocast(self.device.type, self.precision, enabled=enabled)

    def q_values(self, x: Tensor) -> Tensor:
        """f(x, a) [B, A] in float32 from raw observations."""
        with self.autocast():
            return self.q_function(self.compute_network, x)

    @property
    def compute_parameters(self) -> list[nn.Parameter]:
        """The parameters with respect to which gradients are computed."""
        return list(self.compute_network.parameters())

    @torch.no_grad()
    def refresh_compute_network(self) -> None:
        """Copy the master weights to the compute network."""
        for master, compute in zip(self.master_tensors, self.compute_tensors, strict=True):
            compute.copy_(master)

    @torch.no_grad()
    def copy_(self, source: MasterWeights) -> None:
        """Copy the weights and buffers of `source`."""
        new = source.network.state_dict()
        for name, tensor in self.network.state_dict().items():
            tensor.copy_(new[name])
        self.refresh_compute_network()

    @torch.no_grad()
    def lerp_(self, source: MasterWeights, weight: float) -> None:
        """Move the weights towards those of `source` by this share; copy other tensors."""
        new = source.network.state_dict()
        for name, tensor in self.network.state_dict().items():
            if tensor.is_floating_point():
                tensor.lerp_(new[name], weight)
            else:
                tensor.copy_(new[name])
        self.refresh_compute_network()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Load the weights of a checkpoint."""
        load_network_weights(self.network, state)
        self.refresh_compute_network()


def _share_heads_and_buffers(master: nn.Module, compute: nn.Module) -> None:
    """Make the compute network use the master network's heads and buffers."""
    for source, target in list(zip(master.modules(), compute.modules(), strict=True)):
        target._buffers = source._buffers
        if isinstance(source, DuelingHead):
            target._modules = source._modules
