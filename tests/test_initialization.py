"""First weights: bounds computed by hand from the layers as papers describe them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from lookfurther.config import NetworkConfig
from lookfurther.networks.dueling import make_network_builder
from lookfurther.networks.dueling_streams import DuelingStreams
from lookfurther.networks.heads import DuelingHead
from lookfurther.networks.torsos import atari_torso
from lookfurther.types import Spec

ATARI = Spec("ALE/Pong-v5", (1, 84, 84), 4, "uint8", 18, 255.0)
GRID = Spec("grid", (3, 7, 5), 1, "uint8", 6, 10.0)
VECTOR = Spec("vector", (4,), 2, "float32", 3, 1.0)

# (fan_in, fan_out) of a convolution: kernel area times input channels and times output channels.
NATURE_TORSO = [(64 * 4, 64 * 32), (16 * 32, 16 * 64), (9 * 64, 9 * 64)]
DEEPER_TORSO = [(64 * 4, 64 * 64), (16 * 64, 16 * 128), (9 * 128, 9 * 128)]
FANS: dict[str, tuple[Spec, dict[str, Any], list[tuple[int, int]]]] = {
    "dqn": (ATARI, {"dueling": False}, [*NATURE_TORSO, (7 * 7 * 64, 512), (512, 18)]),
    "dueling": (ATARI, {}, [*NATURE_TORSO, (7 * 7 * 64, 512), (512, 1), (512, 18)]),
    "deeper": (
        ATARI,
        {"name": "dueling-deeper"},
        [*DEEPER_TORSO, (7 * 7 * 128, 512), (512, 512), (512, 1), (512, 18)],
    ),
    "categorical": (
        ATARI,
        {"head": "categorical"},
        [*NATURE_TORSO, (7 * 7 * 64, 512), (512, 51), (512, 18 * 51)],
    ),
    "C51": (
        ATARI,
        {"head": "categorical", "dueling": False},
        [*NATURE_TORSO, (7 * 7 * 64, 512), (512, 18 * 51)],
    ),
    "popart": (VECTOR, {"head": "popart"}, [(8, 256), (256, 256), (256, 1), (256, 3)]),
    "mlp": (VECTOR, {}, [(8, 256), (256, 256), (256, 1), (256, 3)]),
    "mlp, one stream": (VECTOR, {"dueling": False}, [(8, 256), (256, 256), (256, 3)]),
    "grid": (
        GRID,
        {},
        [(9 * 3, 9 * 32), (9 * 32, 9 * 64), (7 * 5 * 64, 128), (128, 1), (128, 6)],
    ),
}


def build_network(spec: Spec, **settings: Any) -> nn.Module:
    torch.manual_seed(0)
    return make_network_builder(NetworkConfig(**settings))(spec)


@pytest.mark.parametrize("name", FANS)
def test_glorot_weights_fill_their_interval_and_biases_are_zero(name: str) -> None:
    """Uniform on ±sqrt(6 / (fan_in + fan_out)): the extremes, and the variance of a third."""
    spec, settings, fans = FANS[name]
    network = build_network(spec, initialization="glorot", **settings)
    parameters = list(network.named_parameters())
    weights = [p.detach() for key, p in parameters if "bias" not in key]
    biases = [p for key, p in parameters if "bias" in key]
    for weight, (fan_in, fan_out) in zip(weights, fans, strict=True):
        count, bound = weight.numel(), math.sqrt(6 / (fan_in + fan_out))
        least = bound * 1e-12 ** (1 / count)  # all draws are below it with probability 1e-12
        for extreme in (weight.max(), -weight.min()):
            assert least - 1e-7 <= extreme.item() <= bound + 1e-7
        variance = weight.double().square().mean().item() / bound**2
        assert variance == pytest.approx(1 / 3, abs=7 * math.sqrt(4 / 45 / count))
    assert len(biases) == len(weights)
    assert not any(bias.any() for bias in biases)


@pytest.mark.parametrize("name", FANS)
def test_network_with_glorot_weights_gives_value_for_each_action(name: str) -> None:
    spec, settings, _ = FANS[name]
    network = build_network(spec, initialization="glorot", **settings)
    x = torch.rand(3, *spec.observation_shape).mul(spec.high).to(getattr(torch, spec.dtype))
    q = network(x)
    assert q.shape == (3, spec.actions)
    assert torch.isfinite(q).all()
    assert q.unique().numel() == 3 * spec.actions


def test_default_weights_are_those_of_layers() -> None:
    """Nothing is drawn after the layers: the weights and the next random number are equal."""
    network = build_network(ATARI)
    following = torch.rand(1)
    torch.manual_seed(0)
    layers = nn.ModuleList(
        [atari_torso(ATARI, (32, 64, 64)), DuelingStreams(3136, (512,)), DuelingHead(512, 18)]
    )
    assert torch.equal(following, torch.rand(1))
    pairs = zip(network.parameters(), layers.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    bounds = [fan_in**-0.5 for fan_in in (256, 512, 576, 3136, 512, 512) for _ in range(2)]
    for parameter, bound in zip(network.parameters(), bounds, strict=True):
        assert parameter.abs().max().item() <= bound + 1e-7
        assert parameter.any()
