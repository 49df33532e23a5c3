"""Action-value networks: observations as the environment shows them in, [B, A] values out.

A network built by the user is any `torch.nn.Module` with that signature, given to `train` as a
function of the `Spec`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from lookfurther import config
from lookfurther.errors import ConfigError
from lookfurther.types import Spec

Builder = Callable[[Spec], nn.Module]


class Dueling(nn.Module):
    """f(x, a) = V(x) + A(x, a) - mean_b A(x, b) over a shared torso (Wang et al. 2016)."""

    def __init__(self, spec: Spec, torso: nn.Sequential, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.scale = 1 / spec.high
        self.torso = torso
        with torch.no_grad():
            features = torso(torch.zeros(1, *spec.observation)).shape[1]
        self.streams = Streams(features, hidden)
        self.value = Head(self.streams.out, 1)
        self.advantage = Head(self.streams.out, spec.actions)

    def forward(self, x: Tensor) -> Tensor:
        for_value, for_advantage = self.streams(self.torso(self._scaled(x)))
        advantage = self.advantage(for_advantage)
        return self.value(for_value) + advantage - advantage.mean(-1, keepdim=True)

    def _scaled(self, x: Tensor) -> Tensor:
        """x / high, straight to the type and layout that the first layer computes in."""
        half = torch.is_autocast_enabled(x.device.type)
        dtype = torch.get_autocast_dtype(x.device.type) if half else torch.float32
        layout = torch.channels_last if x.ndim == 4 else torch.contiguous_format
        return x.to(dtype, memory_format=layout) * self.scale


class Streams(nn.Module):
    """The fully connected layers of the value and the advantage stream, side by side.

    Two streams of 512 are one product of 1,024 columns, then one batched product a layer: on a
    GPU that takes half the time of the streams one after the other.
    """

    def __init__(self, features: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.first = nn.Linear(features, 2 * hidden[0]) if hidden else None
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        for before, after in pairwise(hidden):
            bound = before**-0.5  # nn.Linear's own
            self.weights.append(torch.empty(2, before, after).uniform_(-bound, bound))
            self.biases.append(torch.empty(2, 1, after).uniform_(-bound, bound))
        self.out = hidden[-1] if hidden else features

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[B, features] to the last hidden layers [B, out] of both streams."""
        if self.first is None:
            return x, x
        y = self.first(x).relu().unflatten(-1, (2, -1)).transpose(0, 1)
        for weight, bias in zip(self.weights, self.biases, strict=True):
            y = torch.baddbmm(bias, y, weight).relu()
        value, advantage = y
        return value, advantage


class Head(nn.Linear):
    """A last layer in float32, whatever the rest computes in: bfloat16 knows 200 only to the 1."""

    def forward(self, input: Tensor) -> Tensor:
        with torch.autocast(input.device.type, enabled=False):
            return super().forward(input.float())


class FoldedConv(nn.Conv2d):
    """A convolution whose kernel k is a multiple of its stride s.

    It equals a k/s convolution of stride 1 on the image whose s x s cells are folded into
    channels. On tensor cores that is up to nine times as fast; elsewhere it is a plain one.
    """

    def forward(self, input: Tensor) -> Tensor:
        return self.folded(input) if input.is_cuda else super().forward(input)

    def folded(self, x: Tensor) -> Tensor:
        """The same values by way of the folded image."""
        s, k = self.stride[0], self.kernel_size[0]
        weight = self.weight.unflatten(2, (k // s, s)).unflatten(4, (k // s, s))
        weight = weight.permute(0, 1, 3, 5, 2, 4).flatten(1, 3)  # [out, (c, dy, dx), k/s, k/s]
        rows, columns = x.shape[2] // s, x.shape[3] // s  # what is left over no kernel reaches
        x = x[:, :, : rows * s, : columns * s].unflatten(2, (rows, s)).unflatten(4, (columns, s))
        x = x.permute(0, 1, 3, 5, 2, 4).flatten(1, 3)
        layout = torch.channels_last
        return nn.functional.conv2d(
            x.contiguous(memory_format=layout), weight.contiguous(memory_format=layout), self.bias
        )


class Rows(nn.Module):
    """Images to rows of features in the order in which channels-last memory holds them."""

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1).flatten(1)


def atari_torso(spec: Spec, channels: tuple[int, ...]) -> nn.Sequential:
    """Mnih et al.'s three convolutions: 8x8 by 4, 4x4 by 2, 3x3 by 1."""
    c1, c2, c3 = channels
    return nn.Sequential(
        FoldedConv(spec.observation[0], c1, 8, 4),
        nn.ReLU(),
        FoldedConv(c1, c2, 4, 2),
        nn.ReLU(),
        nn.Conv2d(c2, c3, 3, 1),
        nn.ReLU(),
        Rows(),
    ).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def small_torso(spec: Spec, channels: tuple[int, ...]) -> nn.Sequential:
    """3x3 convolutions that keep the size, for images of a few cells."""
    layers: list[nn.Module] = []
    for before, after in zip((spec.observation[0], *channels), channels, strict=False):
        layers += [nn.Conv2d(before, after, 3, 1, 1), nn.ReLU()]
    return nn.Sequential(*layers, Rows()).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


# name: (torso, its convolutions, hidden widths of each stream, smallest image side)
NETWORKS: dict[str, tuple[Callable[[Spec, tuple[int, ...]], nn.Sequential], tuple, tuple, int]] = {
    "dueling": (atari_torso, (32, 64, 64), (512,), 36),
    "dueling-deeper": (atari_torso, (64, 128, 128), (512, 512), 36),
    "small-conv": (small_torso, (32, 64), (128,), 1),
    "mlp": (lambda spec, channels: nn.Sequential(nn.Flatten()), (), (256, 256), 0),
}


def choose(spec: Spec) -> str:
    """The network that "auto" stands for."""
    if len(spec.observation) == 1:
        return "mlp"
    return "dueling" if min(spec.observation[1:]) >= 36 else "small-conv"


def builder(settings: config.Network) -> Builder:
    """The network a configuration names, as a function of the environment's spec."""

    def build(spec: Spec) -> nn.Module:
        name = choose(spec) if settings.name == "auto" else settings.name
        torso, channels, hidden, side = NETWORKS[name]
        channels = settings.convolutions or channels
        if side and (len(spec.observation) != 3 or min(spec.observation[1:]) < side):
            raise ConfigError(
                f"network.name {name} needs images of at least {side}x{side}, {spec.env} shows"
                f" {spec.observation}: use --network.name auto"
            )
        if not side and settings.convolutions:
            raise ConfigError(f"network.convolutions has no part in {name}: leave it out")
        if torso is atari_torso and len(channels) != 3:
            raise ConfigError(f"network.convolutions must name 3 widths for {name}, not {channels}")
        return Dueling(spec, torso(spec, channels), settings.hidden or hidden)

    return build


def parameters(network: nn.Module) -> int:
    """How many numbers are learned."""
    return sum(math.prod(p.shape) for p in network.parameters())
