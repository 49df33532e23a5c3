"""Forward and backward pass of the paper's two Atari networks on a GPU, written out.

The backward pass first computes the gradients of the activations down through the streams: the
convolutions need nothing else. The gradients of the weights of streams and head are many small
kernels. They run at the same time as the convolutions; autograd would run them first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lookfurther.array_api import compile_static
from lookfurther.autograd import AutogradPasses
from lookfurther.gpu import conv
from lookfurther.gpu.dueling_head import head_backward, head_forward
from lookfurther.networks.dueling import DuelingNetwork
from lookfurther.networks.dueling_streams import DuelingStreams, concat_streams
from lookfurther.system.acceleration import make_side_stream


class SavedActivations(NamedTuple):
    """The results of the forward pass that the backward pass needs."""

    images: Tensor
    conv_outputs: list[Tensor]  # after ReLU, channels last
    hidden: list[Tensor]  # the streams' layers [2, B, width], after ReLU

    @property
    def flat_features(self) -> Tensor:
        """The input of the streams [B, features]."""
        return self.conv_outputs[-1].flatten(1)


def dueling_forward(network: DuelingNetwork, images: Tensor) -> tuple[Tensor, SavedActivations]:
    """Q-values [B, A] in float32 of uint8 images, and what the backward pass needs."""
    parameters = [p for layer in conv.conv_layers(network) for p in (layer.weight, layer.bias)]
    conv_outputs = conv.conv_forward(images, network.scale, parameters)
    hidden = parallel_streams(network).hidden_layers(conv_outputs[-1].flatten(1))
    saved = SavedActivations(images, conv_outputs, hidden)
    return head_forward(hidden[-1], list(network.head.parameters())).sum(0), saved


def parallel_streams(network: DuelingNetwork) -> DuelingStreams:
    """The streams of a network that `conv.is_supported` accepts."""
    assert isinstance(network.streams, DuelingStreams)
    return network.streams


def dueling_values(network: Any, images: Tensor) -> Tensor:
    """Q-values [B, A] alone; equals `networks.head_outputs` of `networks.prepare_inputs`."""
    return dueling_forward(network, images)[0]


def activation_gradients(
    network: DuelingNetwork, saved: SavedActivations, grad_q: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """Gradients of the last convolution, and of the streams' layers from first to last.

    All are gradients of the values before ReLU.
    """
    streams = parallel_streams(network)
    assert streams.first is not None
    grad_last = head_backward(grad_q, saved.hidden[-1], list(network.head.parameters()))
    grad_hidden = [grad_last.unflatten(-1, (2, -1)).transpose(0, 1)]
    for weight, h in zip(reversed(streams.weights), saved.hidden[-2::-1], strict=True):
        grad_hidden.insert(0, relu_backward(torch.bmm(grad_hidden[0], weight.transpose(1, 2)), h))
    grad_features = concat_streams(grad_hidden[0]) @ streams.first.weight
    grad_conv = relu_backward(grad_features, saved.flat_features)
    return grad_conv.view(saved.conv_outputs[-1].shape), grad_hidden


def relu_backward(grad_output: Tensor, y: Tensor) -> Tensor:
    """The gradient before ReLU gave y."""
    return torch.where(y > 0, grad_output, 0.0)


def stream_and_head_gradients(
    saved: SavedActivations, grad_hidden: list[Tensor], grad_q: Tensor
) -> list[Tensor]:
    """Gradients of the parameters of streams and head, in their order."""
    grad_first, *grad_rest = grad_hidden
    grad_first = concat_streams(grad_first)
    return [
        *(grad_first.t() @ saved.flat_features, grad_first.sum(0)),
        *(torch.bmm(h.transpose(1, 2), g) for h, g in zip(saved.hidden, grad_rest, strict=False)),
        *(g.sum(1, keepdim=True) for g in grad_rest),
        *head_gradients(saved.hidden[-1], grad_q),
    ]


def head_gradients(h: Tensor, grad_q: Tensor) -> Iterator[Tensor]:
    """Gradients of weight and bias of the value, then of the advantages, in float32."""
    with torch.autocast(h.device.type, enabled=False):
        value, advantage = (grad_q.t() @ concat_streams(h).float()).chunk(2, -1)
    bias = grad_q.sum(0)
    yield from (value.sum(0, keepdim=True), bias.sum(0, keepdim=True))
    yield from (advantage - advantage.mean(0), bias - bias.mean())


class FusedDuelingPasses(AutogradPasses):
    """Forward and backward pass by the functions above, compiled."""

    takes_raw_observations = True

    def __init__(self, device: torch.device) -> None:
        self.side_stream, self.actor_q_function = make_side_stream(device), dueling_values
        self.online_forward = compile_static(dueling_forward)
        self.target_forward = compile_static(dueling_values)
        self.activation_gradients = compile_static(activation_gradients)
        self.stream_and_head_gradients = compile_static(
            stream_and_head_gradients, combo_kernels=True
        )

    @torch.no_grad()
    def forward(self, network: Any, inputs: Tensor) -> tuple[Tensor, SavedActivations]:
        return self.online_forward(network, inputs)

    @torch.no_grad()
    def backward(self, network: Any, saved: SavedActivations, grad_q: Tensor) -> list[Tensor]:
        grad_conv, grad_hidden = self.activation_gradients(network, saved, grad_q)
        with self.side_stream.fork():
            other_gradients = self.stream_and_head_gradients(saved, grad_hidden, grad_q)
        weights = [layer.weight for layer in conv.conv_layers(network)]
        conv_gradients = conv.conv_backward(
            saved.images, network.scale, saved.conv_outputs, grad_conv, weights
        )
        self.side_stream.join()
        return conv_gradients + other_gradients
