"""Noisy layers: statistics of the noise, its redraw, and evaluation without it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from lookfurther.config import NetworkConfig
from lookfurther.networks.dueling import make_network_builder
from lookfurther.networks.noisy import NoisyLinear, scale_noise
from lookfurther.types import Spec

SPEC = Spec("toy", (3,), 1, "float32", 4, 1.0)


def test_scale_noise_by_hand() -> None:
    assert scale_noise(torch.tensor([-4.0, 0.0, 9.0])).tolist() == [-2.0, 0.0, 3.0]


@torch.no_grad()
def test_initial_values_are_published_ones() -> None:
    """Weights in +-1/sqrt(p), noise sigma_0 / sqrt(p) for p inputs."""
    torch.manual_seed(0)
    layer = NoisyLinear(16, 64, initial_std=0.5)
    for mean, std in ((layer.weight, layer.weight_std), (layer.bias, layer.bias_std)):
        assert float(mean.abs().max()) <= 0.25
        assert float(mean.std()) == pytest.approx(0.25 / math.sqrt(3), rel=0.2)
        assert torch.equal(std, torch.full_like(std, 0.125))


def perturbations(layer: NoisyLinear, x: torch.Tensor, draws: int) -> torch.Tensor:
    """y - (W x + b) [draws, out] for one input, a new draw for each item."""
    with torch.no_grad():
        return layer(x.expand(draws, -1)) - nn.functional.linear(x, layer.weight, layer.bias)


def test_noise_has_mean_and_covariance_of_factorised_gaussian() -> None:
    """E f(e)^2 = E|e| = sqrt(2 / pi), so Var y_j = c (sum_i c (S_ji x_i)^2 + s_j^2)."""
    torch.manual_seed(0)
    layer, x, c = NoisyLinear(6, 3, 0.5), torch.randn(6), math.sqrt(2 / math.pi)
    with torch.no_grad():
        layer.weight_std.uniform_(0.1, 1.0)
        layer.bias_std.uniform_(0.1, 1.0)
    noise = perturbations(layer, x, 200_000)
    variance = c * (c * (layer.weight_std * x).square().sum(-1) + layer.bias_std.square())
    assert torch.allclose(noise.mean(0), torch.zeros(3), atol=0.02)
    assert torch.allclose(noise.var(0), variance, rtol=0.05)
    correlations = torch.corrcoef(noise.t()) - torch.eye(3)
    assert float(correlations.abs().max()) < 0.02  # outputs have independent factors


def test_rows_of_noise_share_input_factors() -> None:
    """Factorised: the noise of all outputs is f(e_out) times the same p numbers."""
    torch.manual_seed(0)
    layer = NoisyLinear(6, 2, 0.5)
    with torch.no_grad():
        layer.weight_std[1] = layer.weight_std[0]
        layer.bias_std.zero_()
    square = perturbations(layer, torch.randn(6), 100_000).square()
    # Independent noise per weight would leave squares uncorrelated.
    assert float(torch.corrcoef(square.t())[0, 1]) > 0.05


def test_every_call_and_item_draws_new_noise() -> None:
    torch.manual_seed(0)
    layer, x = NoisyLinear(6, 3, 0.5), torch.randn(1, 6).expand(2, -1)
    first, second = layer(x), layer(x)
    assert not torch.equal(first, second)
    assert not torch.equal(first[0], first[1])
    torch.manual_seed(0)
    assert not torch.equal(layer(x), layer(x))


def test_evaluation_has_no_noise() -> None:
    layer, x = NoisyLinear(6, 3, 0.5).eval(), torch.randn(2, 6)
    assert torch.equal(layer(x), nn.functional.linear(x, layer.weight, layer.bias))


def test_gradient_matches_finite_differences() -> None:
    layer = NoisyLinear(3, 2, 0.5)
    x = torch.randn(4, 3)
    parameters = [p.detach().double().requires_grad_() for p in layer.parameters()]

    def output(weight, bias, weight_std, bias_std):
        torch.manual_seed(0)
        names = ("weight", "bias", "weight_std", "bias_std")
        given = (weight, bias, weight_std, bias_std)
        values: dict[str, torch.Tensor] = dict(zip(names, given, strict=True))
        return torch.func.functional_call(layer, values, (x.double(),))

    assert torch.autograd.gradcheck(output, parameters)


@pytest.mark.parametrize("head", ["values", "categorical"])
def test_noisy_network_is_noisy_in_training_only(head: str) -> None:
    torch.manual_seed(0)
    config = NetworkConfig(hidden=(8,), head=head, noisy_std=0.5)  # type: ignore[arg-type]
    network, x = make_network_builder(config)(SPEC), torch.randn(5, 3)
    assert network(x).shape == (5, 4)
    assert not torch.equal(network(x), network(x))
    network.eval()
    assert torch.equal(network(x), network(x))
    linear = [m for m in network.modules() if isinstance(m, nn.Linear)]
    assert len(linear) == 4  # one hidden layer and one output layer per stream
    assert all(isinstance(layer, NoisyLinear) for layer in linear)
