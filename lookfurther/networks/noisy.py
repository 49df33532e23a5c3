"""Noisy layers with factorised Gaussian noise (Fortunato et al. 2018)."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn


def scale_noise(noise: Tensor) -> Tensor:
    """f(x) = sgn(x) sqrt(|x|)."""
    return noise.sign() * noise.abs().sqrt()


class NoisyLinear(nn.Linear):
    """y = (W + S o f(e_out) f(e_in)^T) x + b + s o f(e_out), with new noise for every item.

    Noise is drawn from torch's generator of the device in every call: a CUDA graph draws it again
    at each replay, and checkpoints save the generator's state. In evaluation there is no noise.
    """

    def __init__(self, in_features: int, out_features: int, initial_std: float) -> None:
        super().__init__(in_features, out_features)
        std = initial_std * in_features**-0.5
        self.weight_std = nn.Parameter(torch.full_like(self.weight, std))
        self.bias_std = nn.Parameter(torch.full_like(self.bias, std))

    def forward(self, input: Tensor) -> Tensor:
        y = super().forward(input)
        if not self.training:
            return y
        noise_in = scale_noise(torch.randn(input.shape, device=input.device))
        noise_out = scale_noise(torch.randn(y.shape, device=y.device))
        # (S o f(e_out) f(e_in)^T) x = f(e_out) o S (f(e_in) o x): no matrix of noise per item.
        perturbation = nn.functional.linear(input * noise_in, self.weight_std, self.bias_std)
        return y + noise_out * perturbation


class NoisyStreams(nn.Module):
    """The fully connected layers of the value and the advantage stream, noisy."""

    def __init__(self, features: int, hidden: tuple[int, ...], initial_std: float) -> None:
        super().__init__()
        self.value, self.advantage = (
            _noisy_layers((features, *hidden), initial_std) for _ in ("value", "advantage")
        )
        self.out_features = (features, *hidden)[-1]

    def forward(self, x: Tensor) -> Tensor:
        """[B, features] to the last hidden layers of the value and the advantage stream."""
        return torch.cat([self.value(x), self.advantage(x)], -1)


def _noisy_layers(widths: tuple[int, ...], initial_std: float) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [NoisyLinear(before, after, initial_std), nn.ReLU()]
    return nn.Sequential(*layers)
