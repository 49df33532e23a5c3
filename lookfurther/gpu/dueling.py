"""The paper's two Atari networks forward and backward on a GPU, written out.

Backward, slopes first go down through the streams: the convolutions wait for nothing else. The
gradients of the streams' and head's own weights are many small kernels, which run beside those of
the convolutions; autograd has them one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lookfurther.autograd import AutogradPasses
from lookfurther.gpu import conv
from lookfurther.gpu.dueling_head import head_backward, head_forward
from lookfurther.gpu.streams import SideStream
from lookfurther.networks import DuelingNetwork, concat_streams


class SavedActivations(NamedTuple):
    """What a forward pass leaves for the backward one."""

    images: Tensor
    conv_outputs: list[Tensor]  # the convolutions, rectified, channels last
    hidden: list[Tensor]  # the streams' layers [2, B, width], rectified

    @property
    def flat_features(self) -> Tensor:
        """The streams' inputs [B, features]."""
        return self.conv_outputs[-1].flatten(1)


def dueling_forward(network: DuelingNetwork, images: Tensor) -> tuple[Tensor, SavedActivations]:
    """f [B, A] in float32 of images as they are, and what was seen on the way."""
    learned = [p for layer in conv.conv_layers(network) for p in (layer.weight, layer.bias)]
    maps = conv.conv_forward(images, network.scale, learned)
    seen = SavedActivations(images, maps, network.streams.hidden_layers(maps[-1].flatten(1)))
    return head_forward(seen.hidden[-1], list(network.head.parameters())).sum(0), seen


def dueling_values(network: Any, images: Tensor) -> Tensor:
    """f(x, a) [B, A] alone: `networks.values` of `networks.prepare`."""
    return dueling_forward(network, images)[0]


def activation_gradients(
    network: DuelingNetwork, saved: SavedActivations, grad_q: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """dL/d of the last convolution, and of the streams' layers from the first to the last.

    All before they were rectified.
    """
    assert network.streams.first is not None
    last = head_backward(grad_q, saved.hidden[-1], list(network.head.parameters()))
    found = [last.unflatten(-1, (2, -1)).transpose(0, 1)]
    for weight, h in zip(reversed(network.streams.weights), saved.hidden[-2::-1], strict=True):
        found.insert(0, relu_backward(torch.bmm(found[0], weight.transpose(1, 2)), h))
    below = relu_backward(
        concat_streams(found[0]) @ network.streams.first.weight, saved.flat_features
    )
    return below.view(saved.conv_outputs[-1].shape), found


def relu_backward(grad_output: Tensor, y: Tensor) -> Tensor:
    """The slope before y was rectified: 0 where y is."""
    return torch.where(y > 0, grad_output, 0.0)


def stream_and_head_gradients(
    saved: SavedActivations, grad_hidden: list[Tensor], grad_q: Tensor
) -> list[Tensor]:
    """Those of the streams and the head, of the slopes of their layers and of f."""
    first, *rest = grad_hidden
    first = concat_streams(first)
    return [
        *(first.t() @ saved.flat_features, first.sum(0)),
        *(torch.bmm(h.transpose(1, 2), g) for h, g in zip(saved.hidden, rest, strict=False)),
        *(g.sum(1, keepdim=True) for g in rest),
        *head_gradients(saved.hidden[-1], grad_q),
    ]


def head_gradients(h: Tensor, grad_q: Tensor) -> Iterator[Tensor]:
    """Those of the value's weight and bias, then the advantages', in float32 like these."""
    with torch.autocast(h.device.type, enabled=False):
        value, advantage = (grad_q.t() @ concat_streams(h).float()).chunk(2, -1)
    bias = grad_q.sum(0)
    yield from (value.sum(0, keepdim=True), bias.sum(0, keepdim=True))
    yield from (advantage - advantage.mean(0), bias - bias.mean())


class FusedDuelingPasses(AutogradPasses):
    """Both ways by the functions above, compiled."""

    takes_raw_observations = True

    def __init__(self, device: torch.device) -> None:
        self.side_stream, self.actor_q_function = SideStream(device), dueling_values
        self.online_forward = torch.compile(dueling_forward, dynamic=False)
        self.target_forward = torch.compile(dueling_values, dynamic=False)
        self.activation_gradients = torch.compile(activation_gradients, dynamic=False)
        self.stream_and_head_gradients = torch.compile(
            stream_and_head_gradients, dynamic=False, options={"combo_kernels": True}
        )

    @torch.no_grad()
    def forward(self, network: Any, inputs: Tensor) -> tuple[Tensor, SavedActivations]:
        return self.online_forward(network, inputs)

    @torch.no_grad()
    def backward(self, network: Any, saved: SavedActivations, grad_q: Tensor) -> list[Tensor]:
        last, found = self.activation_gradients(network, saved, grad_q)
        with self.side_stream.fork():
            tail = self.stream_and_head_gradients(saved, found, grad_q)
        weights = [layer.weight for layer in conv.conv_layers(network)]
        convolutions = conv.conv_backward(
            saved.images, network.scale, saved.conv_outputs, last, weights
        )
        self.side_stream.join()
        return convolutions + tail
