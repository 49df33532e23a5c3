"""First weights of a network other than PyTorch's."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from lookfurther.networks.dueling_streams import DuelingStreams
from lookfurther.networks.torsos import SpaceToDepth


@torch.no_grad()
def draw_glorot_weights(network: nn.Module) -> None:
    """Uniform weights within sqrt(6 / (fan_in + fan_out)), and zero biases (Glorot & Bengio)."""
    for parameter in network.parameters():
        parameter.zero_()
    for weight, fan_in, fan_out in weight_fans(network):
        bound = math.sqrt(6 / (fan_in + fan_out))
        weight.uniform_(-bound, bound)


def weight_fans(network: nn.Module) -> Iterator[tuple[Tensor, int, int]]:
    """Each weight with its fan_in and fan_out, those of the network without folds and joints.

    A fold by s divides the kernel's sides by s, and fan_out counts the whole kernel. The first
    layers of two dueling streams are one matrix, but each output belongs to one of them.
    """
    block_size, first_of_streams = 1, None
    for layer in network.modules():
        if isinstance(layer, SpaceToDepth):
            block_size = layer.block_size
        elif isinstance(layer, nn.Conv2d):
            kernel_area = math.prod(layer.kernel_size)
            fan_out = layer.out_channels * kernel_area * block_size**2
            yield layer.weight, layer.in_channels * kernel_area, fan_out
            block_size = 1
        elif isinstance(layer, DuelingStreams):
            first_of_streams = layer.first
            for weight in layer.weights:  # [2, inputs, outputs]
                yield weight, weight.shape[1], weight.shape[2]
        elif isinstance(layer, nn.Linear):
            streams = 2 if layer is first_of_streams else 1
            yield layer.weight, layer.in_features, layer.out_features // streams
