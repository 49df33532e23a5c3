"""Networks that users give to `train` and `Agent.load`, checked before they are used."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lookfurther.errors import ConfigError
from lookfurther.networks.dueling import DuelingNetwork, NetworkBuilder
from lookfurther.types import Spec


def build_network(builder: NetworkBuilder, spec: Spec) -> nn.Module:
    """The network of a builder; a user's is checked with a batch of zeros."""
    if isinstance(builder, nn.Module) or not callable(builder):
        raise ConfigError(
            f"network must be a function from the Spec to a module, not {type(builder).__name__}:"
            " give a function such as lambda spec: MyNetwork(spec.actions)"
        )
    network = builder(spec)
    if not isinstance(network, nn.Module):
        raise ConfigError(f"network must return a torch.nn.Module, not {type(network).__name__}")
    if not isinstance(network, DuelingNetwork):
        _check_outputs(network, spec)
    return network


def _check_outputs(network: nn.Module, spec: Spec) -> None:
    """Raise if a network does not map observations to one value per action."""
    shape, is_training = (2, *spec.observation_shape), network.training
    observations = torch.zeros(shape, dtype=getattr(torch, spec.dtype))
    name, given = type(network).__name__, f"observations {shape} of type {spec.dtype}"
    if not any(True for _ in network.parameters()):
        raise ConfigError(f"the network {name} has no parameters to learn")
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=()):
            q = network.eval()(observations)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"the network {name} fails for {given}: {reason}") from error
    network.train(is_training)
    found = tuple(q.shape) if isinstance(q, Tensor) else type(q).__name__
    if found != (2, spec.actions):
        raise ConfigError(
            f"the network {name} must return one value per action, {(2, spec.actions)} for {given},"
            f" not {found}"
        )
