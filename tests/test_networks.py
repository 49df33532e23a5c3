"""Networks: shapes, the dueling identity, sizes computed by hand, scaling, errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lookfurther.config import NetworkConfig
from lookfurther.errors import ConfigError
from lookfurther.networks.dueling import (
    DuelingNetwork,
    choose_network_name,
    count_parameters,
    make_network_builder,
)
from lookfurther.networks.dueling_streams import DuelingStreams
from lookfurther.networks.torsos import SpaceToDepth
from lookfurther.types import Spec

ATARI = Spec("ALE/Pong-v5", (1, 84, 84), 4, "uint8", 18, 255.0)
GRID = Spec("grid", (3, 7, 5), 1, "uint8", 6, 10.0)
VECTOR = Spec("vector", (4,), 2, "float32", 3, 1.0)


def build_network(spec: Spec, **settings: Any) -> DuelingNetwork:
    torch.manual_seed(0)
    network = make_network_builder(NetworkConfig(**settings))(spec)
    assert isinstance(network, DuelingNetwork)
    return network


def random_observations(spec: Spec, count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (count, *spec.observation_shape)
    if spec.dtype == "float32":
        return torch.randn(shape, generator=generator)
    return torch.randint(int(spec.high) + 1, shape, generator=generator).to(torch.uint8)


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (ATARI, "dueling"),
        (ATARI, "dueling-deeper"),
        (ATARI, "mlp"),
        (GRID, "small-conv"),
        (GRID, "mlp"),
        (VECTOR, "mlp"),
        (VECTOR._replace(actions=1), "mlp"),
    ],
)
@pytest.mark.parametrize("batch", [1, 3])
def test_network_gives_value_for_each_action(spec: Spec, name: str, batch: int) -> None:
    x = random_observations(spec, batch)
    q = build_network(spec, name=name)(x)
    assert q.shape == (batch, spec.actions)
    assert q.dtype == torch.float32
    assert torch.isfinite(q).all()
    if batch > 1 and spec.actions > 1:
        assert q.unique().numel() == batch * spec.actions  # no row or column equals another


@pytest.mark.parametrize("spec", [ATARI, GRID, VECTOR], ids=lambda spec: spec.env)
def test_rows_are_independent(spec: Spec) -> None:
    network, x = build_network(spec), random_observations(spec, 4)
    alone = torch.cat([network(row.unsqueeze(0)) for row in x])
    torch.testing.assert_close(network(x), alone, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("spec", [ATARI, GRID, VECTOR], ids=lambda spec: spec.env)
@settings(deadline=None, max_examples=10)
@given(shift=st.floats(-50, 50))
def test_constant_advantage_cancels(spec: Spec, shift: float) -> None:
    """f = V + A - mean A: a constant added to every advantage cancels, one added to V does not."""
    network, x = build_network(spec), random_observations(spec, 2)
    before = network(x).detach()
    advantage, value = network.head.advantage, network.head.value
    assert isinstance(advantage, nn.Linear)
    assert isinstance(value, nn.Linear)
    with torch.no_grad():
        advantage.bias.add_(shift)
        torch.testing.assert_close(network(x), before, rtol=1e-4, atol=1e-4)
        value.bias.add_(shift)
        torch.testing.assert_close(network(x), before + shift, rtol=1e-4, atol=1e-4)
    mean = network(x).mean(-1, keepdim=True)
    hidden, _ = network.streams(network.torso(network.prepare_inputs(x))).chunk(2, -1)
    torch.testing.assert_close(mean, value(hidden), rtol=1e-3, atol=1e-4)


def test_head_is_value_plus_centered_advantage() -> None:
    network = build_network(VECTOR)
    x = torch.randn(5, 2 * 256, dtype=torch.float64)
    head = network.head.double()
    for_value, for_advantage = x.chunk(2, -1)
    advantage = head.advantage(for_advantage)
    dueling = head.value(for_value) + advantage - advantage.mean(-1, keepdim=True)
    result = nn.functional.linear(x, *head.combined_weights())
    torch.testing.assert_close(result, dueling)


def test_dueling_network_size_matches_wang_et_al() -> None:
    convolutions = (4 * 32 * 64 + 32) + (32 * 64 * 16 + 64) + (64 * 64 * 9 + 64)
    side = 7  # 84 -> 20 -> 9 -> 7
    hidden = 2 * (64 * side * side * 512 + 512)
    heads = (512 * 1 + 1) + (512 * 18 + 18)
    assert convolutions + hidden + heads == 3_300_019
    assert count_parameters(build_network(ATARI, name="dueling")) == 3_300_019


def test_deeper_network_size() -> None:
    convolutions = (4 * 64 * 64 + 64) + (64 * 128 * 16 + 128) + (128 * 128 * 9 + 128)
    hidden = 2 * ((128 * 7 * 7 * 512 + 512) + (512 * 512 + 512))
    heads = (512 * 1 + 1) + (512 * 18 + 18)
    assert convolutions + hidden + heads == 7_253_843
    assert count_parameters(build_network(ATARI, name="dueling-deeper")) == 7_253_843


def test_small_network_sizes_by_hand() -> None:
    grid = (3 * 32 * 9 + 32) + (32 * 64 * 9 + 64) + 2 * (64 * 7 * 5 * 128 + 128)
    assert count_parameters(build_network(GRID)) == grid + (128 + 1) + (128 * 6 + 6)
    vector = 2 * ((8 * 256 + 256) + (256 * 256 + 256))
    assert count_parameters(build_network(VECTOR)) == vector + (256 + 1) + (256 * 3 + 3)


def test_network_widths_follow_settings() -> None:
    wide = build_network(GRID, name="small-conv", convolutions=(5, 6, 7), hidden=(8, 9))
    convolutions = (3 * 5 * 9 + 5) + (5 * 6 * 9 + 6) + (6 * 7 * 9 + 7)
    streams = 2 * ((7 * 35 * 8 + 8) + (8 * 9 + 9)) + (9 + 1) + (9 * 6 + 6)
    assert count_parameters(wide) == convolutions + streams


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((4,), "mlp"),
        ((1, 84, 84), "dueling"),
        ((3, 36, 36), "dueling"),
        ((3, 36, 35), "small-conv"),
        ((3, 1, 1), "small-conv"),
    ],
)
def test_auto_selects_network_by_observation(shape: tuple[int, ...], name: str) -> None:
    spec = Spec("any", shape, 1, "float32", 2, 1.0)
    assert choose_network_name(spec) == name
    assert [(n, p.shape) for n, p in build_network(spec).named_parameters()] == [
        (n, p.shape) for n, p in build_network(spec, name=name).named_parameters()
    ]


@pytest.mark.parametrize(
    ("spec", "settings", "message"),
    [
        (GRID, {"name": "dueling"}, r"dueling needs images of at least 36x36, but grid has \(3, 7"),
        (GRID, {"name": "dueling-deeper"}, "dueling-deeper needs images of at least 36x36"),
        (VECTOR, {"name": "dueling"}, r"vector has \(8,\): use --network.name auto"),
        (VECTOR, {"name": "small-conv"}, "small-conv needs images of at least 1x1, but vector"),
        (ATARI, {"convolutions": (1, 2)}, r"must name 3 widths for dueling, not \(1, 2\)"),
        (VECTOR, {"convolutions": (1,)}, "network.convolutions does not apply to mlp"),
    ],
)
def test_unsuitable_network_raises_config_error(spec: Spec, settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        build_network(spec, **settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("spec", [ATARI, GRID, VECTOR], ids=lambda spec: spec.env)
def test_inputs_are_divided_by_high(spec: Spec) -> None:
    """Bytes of 0 ... high give the same values as floats of 0 ... 1 with the same weights."""
    network, unscaled = build_network(spec), build_network(spec._replace(high=1.0))
    unscaled.load_state_dict(network.state_dict())
    x = random_observations(spec, 3)
    torch.testing.assert_close(network(x), unscaled(x.float() / spec.high))
    torch.testing.assert_close(network(x), network(x.float()))


@pytest.mark.parametrize(
    ("spec", "name"),
    [(ATARI, "dueling"), (ATARI, "dueling-deeper"), (GRID, "small-conv"), (VECTOR, "mlp")],
)
def test_gradients_reach_every_parameter(spec: Spec, name: str) -> None:
    network = build_network(spec, name=name)
    network(random_observations(spec, 8))[:, 0].sum().backward()
    for part, p in network.named_parameters():
        assert p.grad is not None, part
        assert torch.isfinite(p.grad).all(), part
        assert p.grad.abs().sum() > 0, part


@settings(deadline=None, max_examples=30)
@given(
    channels=st.integers(1, 4),
    out=st.integers(1, 5),
    ratio=st.integers(1, 3),
    stride=st.integers(1, 4),
    sides=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    channels_first=st.booleans(),
    dtype=st.sampled_from((torch.uint8, torch.float16, torch.float32, torch.float64)),
)
def test_folded_convolution_equals_strided_convolution(
    channels: int,
    out: int,
    ratio: int,
    stride: int,
    sides: tuple[int, int],
    channels_first: bool,
    dtype: torch.dtype,
) -> None:
    """For any image size, layout and type, including trailing rows that no kernel covers."""
    kernel = ratio * stride
    x = torch.randint(0, 256, (2, channels, kernel + sides[0], kernel + sides[1])).to(dtype)
    weight = torch.randn(out, channels, kernel, kernel, dtype=torch.float64)
    plain = nn.functional.conv2d(x.double(), weight, stride=stride)
    cells = weight.view(out, channels, ratio, stride, ratio, stride).permute(0, 1, 3, 5, 2, 4)
    order = cells if channels_first else cells.permute(0, 2, 3, 1, 4, 5)  # c dy dx, or dy dx c
    folded = SpaceToDepth(stride, channels_first)(x)
    assert folded.dtype == dtype
    assert folded.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(nn.functional.conv2d(folded.double(), order.flatten(1, 3)), plain)


@pytest.mark.parametrize("spec", [ATARI, GRID, VECTOR], ids=lambda spec: spec.env)
def test_prepare_inputs_does_not_change_observations(spec: Spec) -> None:
    """In float32 too, where no conversion copies them; `out` gets the same numbers."""
    network, x = build_network(spec), random_observations(spec, 3).float()
    before = x.clone()
    prepared = network.prepare_inputs(x)
    assert torch.equal(network.prepare_inputs(x, torch.full_like(prepared, 7.0)), prepared)
    assert torch.equal(x, before)
    scaled = (x / spec.high).flatten().sort().values  # folding moves pixels and drops none here
    torch.testing.assert_close(prepared.flatten().sort().values, scaled)


def test_parallel_streams_equal_separate_streams() -> None:
    """Each stream is relu(W2 relu(W1 x + b1) + b2) of its own weights."""
    network = build_network(VECTOR, hidden=(6, 5))
    x = torch.randn(4, 8)
    value_and_advantage = network.streams(x).chunk(2, -1)
    assert isinstance(network.streams, DuelingStreams)
    first = network.streams.first
    assert first is not None
    for i, result in enumerate(value_and_advantage):
        hidden = (x @ first.weight[6 * i : 6 * i + 6].T + first.bias[6 * i : 6 * i + 6]).relu()
        last = (hidden @ network.streams.weights[0][i] + network.streams.biases[0][i]).relu()
        torch.testing.assert_close(result, last)
