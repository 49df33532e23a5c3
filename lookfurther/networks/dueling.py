"""Action-value networks: raw observations to values [B, A].

A user network is any `torch.nn.Module` with that signature, passed to `train` as a function of the
`Spec`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from lookfurther.config import LearnerConfig, NetworkConfig
from lookfurther.errors import CheckpointError, ConfigError
from lookfurther.networks.dueling_streams import DuelingStreams
from lookfurther.networks.heads import CategoricalHead, DuelingHead, PopArtHead, StreamHead
from lookfurther.networks.initialization import draw_glorot_weights
from lookfurther.networks.noisy import NoisyLinear, NoisyStreams
from lookfurther.networks.single_stream import (
    PlainCategoricalHead,
    PlainHead,
    ScaleGradient,
    SingleStream,
)
from lookfurther.networks.torsos import SpaceToDepth, atari_torso, count_features, small_torso
from lookfurther.transforms import ValueTransform, make_value_transform
from lookfurther.types import Spec

NetworkBuilder = Callable[[Spec], nn.Module]
QFunction = Callable[[nn.Module, Tensor], Tensor]  # (network, raw x) -> f(x, a) [B, A] float32
Streams = DuelingStreams | NoisyStreams | SingleStream


class DuelingNetwork(nn.Module):
    """f(x, a) = V(x) + A(x, a) - mean_b A(x, b) over a shared torso (Wang et al. 2016)."""

    def __init__(self, spec: Spec, torso: nn.Sequential, streams: Streams, head: DuelingHead):
        super().__init__()
        self.spec, self.scale = spec, 1 / spec.high
        has_fold = isinstance(torso[0], SpaceToDepth)
        self.inlet, self.torso = (torso[0], torso[1:]) if has_fold else (nn.Identity(), torso)
        self.streams, self.head = streams, head

    def forward(self, x: Tensor) -> Tensor:
        return self.head.values(self.head_outputs(self.prepare_inputs(x)))

    def prepare_inputs(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """x / high in the type and layout of the first layer; independent of the weights."""
        x = self.inlet(x)
        if out is not None:
            return out.copy_(x).mul_(self.scale)
        is_autocast = torch.is_autocast_enabled(x.device.type)
        dtype = torch.get_autocast_dtype(x.device.type) if is_autocast else torch.float32
        layout = torch.channels_last if x.ndim == 4 else torch.contiguous_format
        return x.to(dtype, memory_format=layout, copy=True).mul_(self.scale)

    def head_outputs(self, inputs: Tensor) -> Tensor:
        """What the loss takes, from prepared inputs: the outputs of the head."""
        return self.head(self.streams(self.torso(inputs)))


def prepare_inputs(network: nn.Module, x: Tensor, out: Tensor | None = None) -> Tensor:
    """The part of a network that is independent of its weights; written to `out` if given."""
    if isinstance(network, DuelingNetwork):
        return network.prepare_inputs(x, out)
    return x if out is None else out.copy_(x)


def head_outputs(network: nn.Module, inputs: Tensor) -> Tensor:
    """What the loss takes, in float32 from prepared inputs: f(x, a) [B, A], or logits [B, A, N]."""
    is_dueling = isinstance(network, DuelingNetwork)
    return (network.head_outputs(inputs) if is_dueling else network(inputs)).float()


def q_values(network: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """f(x, a) [B, A] in float32 from raw observations."""
    return network(x).float()


# name: (torso, channels of its convolutions, hidden widths of each stream, minimum image side)
NETWORKS: dict[str, tuple[Callable[[Spec, tuple[int, ...]], nn.Sequential], tuple, tuple, int]] = {
    "dueling": (atari_torso, (32, 64, 64), (512,), 36),
    "dueling-deeper": (atari_torso, (64, 128, 128), (512, 512), 36),
    "small-conv": (small_torso, (32, 64), (128,), 1),
    "mlp": (lambda spec, channels: nn.Sequential(nn.Flatten()), (), (256, 256), 0),
}


def choose_network_name(spec: Spec) -> str:
    """The network that "auto" selects."""
    if len(spec.observation_shape) == 1:
        return "mlp"
    return "dueling" if min(spec.observation_shape[1:]) >= 36 else "small-conv"


def make_network_builder(config: NetworkConfig) -> NetworkBuilder:
    """The configured network, as a function of the environment's spec."""

    def build(spec: Spec) -> nn.Module:
        name = choose_network_name(spec) if config.name == "auto" else config.name
        torso, channels, hidden, side = NETWORKS[name]
        channels = config.convolutions or channels
        if side and (len(spec.observation_shape) != 3 or min(spec.observation_shape[1:]) < side):
            raise ConfigError(
                f"network.name {name} needs images of at least {side}x{side}, but {spec.env} has"
                f" {spec.observation_shape}: use --network.name auto"
            )
        if not side and config.convolutions:
            raise ConfigError(f"network.convolutions does not apply to {name}: leave it out")
        if torso is atari_torso and len(channels) != 3:
            raise ConfigError(f"network.convolutions must name 3 widths for {name}, not {channels}")
        layers = torso(spec, channels)
        if config.torso_gradient_scale != 1:
            layers.append(ScaleGradient(config.torso_gradient_scale))
        features = count_features(layers, spec.observation_shape)
        streams = make_streams(config, features, config.hidden or hidden)
        head = make_head(config, streams.out_features, spec.actions)
        network = DuelingNetwork(spec, layers, streams, head)
        if config.initialization == "glorot":
            draw_glorot_weights(network)
        return network

    return build


def make_streams(config: NetworkConfig, features: int, hidden: tuple[int, ...]) -> Streams:
    """The configured streams: one or two, plain or noisy."""
    if not config.dueling:
        return SingleStream(features, hidden)
    if config.noisy_std:
        return NoisyStreams(features, hidden, config.noisy_std)
    return DuelingStreams(features, hidden)


def make_head(config: NetworkConfig, features: int, actions: int) -> DuelingHead:
    """The configured head: values, normalised values or distributions, of one or two streams."""
    linear = partial(NoisyLinear, initial_std=config.noisy_std) if config.noisy_std else nn.Linear
    if config.head == "categorical":
        atoms = torch.linspace(config.v_min, config.v_max, config.atoms)
        if not config.dueling:
            return PlainCategoricalHead(features, actions, atoms)
        return CategoricalHead(features, actions, linear, atoms)
    if not config.dueling:
        return PlainHead(features, actions)
    if config.head == "popart":
        return PopArtHead(features, actions)
    if config.noisy_std:
        return StreamHead(features, actions, linear)
    return DuelingHead(features, actions)


def network_value_transform(network: nn.Module, config: LearnerConfig) -> ValueTransform:
    """h of a network's values f = h(Q): PopArt's normalisation, or the configured transform."""
    head = getattr(network, "head", None)
    if isinstance(head, PopArtHead):
        return head.value_transform
    return make_value_transform(config.value_transform, config.value_transform_eps)


def load_network_weights(network: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load the weights of a checkpoint into a network."""
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        reason = str(error).splitlines()[1].strip(" \t.")  # the line before names the class
        raise CheckpointError(f"the weights do not fit this network: {reason}") from None


def count_parameters(network: nn.Module) -> int:
    """The number of learned values."""
    return sum(math.prod(p.shape) for p in network.parameters())
