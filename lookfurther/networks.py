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
        self.value = stream(features, hidden, 1)
        self.advantage = stream(features, hidden, spec.actions)

    def forward(self, x: Tensor) -> Tensor:
        features = self.torso(self._scaled(x))
        advantage = self.advantage(features)
        return self.value(features) + advantage - advantage.mean(-1, keepdim=True)

    def _scaled(self, x: Tensor) -> Tensor:
        """x / high, straight to the type and layout that the first layer computes in."""
        half = torch.is_autocast_enabled(x.device.type)
        dtype = torch.get_autocast_dtype(x.device.type) if half else torch.float32
        layout = torch.channels_last if x.ndim == 4 else torch.contiguous_format
        return x.to(dtype, memory_format=layout) * self.scale


def stream(features: int, hidden: tuple[int, ...], out: int) -> nn.Sequential:
    """Fully connected layers with rectifiers between them."""
    widths = (features, *hidden)
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], out))


def atari_torso(spec: Spec, channels: tuple[int, ...]) -> nn.Sequential:
    """Mnih et al.'s three convolutions: 8x8 by 4, 4x4 by 2, 3x3 by 1."""
    c1, c2, c3 = channels
    return nn.Sequential(
        nn.Conv2d(spec.observation[0], c1, 8, 4),
        nn.ReLU(),
        nn.Conv2d(c1, c2, 4, 2),
        nn.ReLU(),
        nn.Conv2d(c2, c3, 3, 1),
        nn.ReLU(),
        nn.Flatten(),
    ).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def small_torso(spec: Spec, channels: tuple[int, ...]) -> nn.Sequential:
    """3x3 convolutions that keep the size, for images of a few cells."""
    layers: list[nn.Module] = []
    for before, after in zip((spec.observation[0], *channels), channels, strict=False):
        layers += [nn.Conv2d(before, after, 3, 1, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten()).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


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
