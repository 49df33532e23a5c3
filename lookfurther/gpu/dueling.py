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

from lookfurther.autograd import Passes
from lookfurther.gpu import conv
from lookfurther.gpu.dueling_head import head, head_slope
from lookfurther.gpu.streams import Aside
from lookfurther.networks import Dueling, beside


class Seen(NamedTuple):
    """What a forward pass leaves for the backward one."""

    images: Tensor
    maps: list[Tensor]  # the convolutions, rectified, channels last
    hidden: list[Tensor]  # the streams' layers [2, B, width], rectified

    @property
    def rows(self) -> Tensor:
        """The streams' inputs [B, features]."""
        return self.maps[-1].flatten(1)


def forward(network: Dueling, images: Tensor) -> tuple[Tensor, Seen]:
    """f [B, A] in float32 of images as they are, and what was seen on the way."""
    learned = [p for layer in conv.convolutions(network) for p in (layer.weight, layer.bias)]
    maps = conv.layers(images, network.scale, learned)
    seen = Seen(images, maps, network.streams.layers(maps[-1].flatten(1)))
    return head(seen.hidden[-1], list(network.head.parameters())).sum(0), seen


def values(network: Any, images: Tensor) -> Tensor:
    """f(x, a) [B, A] alone: `networks.values` of `networks.prepare`."""
    return forward(network, images)[0]


def slopes(network: Dueling, seen: Seen, slope: Tensor) -> tuple[Tensor, list[Tensor]]:
    """dL/d of the last convolution, and of the streams' layers from the first to the last.

    All before they were rectified.
    """
    assert network.streams.first is not None
    last = head_slope(slope, seen.hidden[-1], list(network.head.parameters()))
    found = [last.unflatten(-1, (2, -1)).transpose(0, 1)]
    for weight, h in zip(reversed(network.streams.weights), seen.hidden[-2::-1], strict=True):
        found.insert(0, rectified(torch.bmm(found[0], weight.transpose(1, 2)), h))
    below = rectified(beside(found[0]) @ network.streams.first.weight, seen.rows)
    return below.view(seen.maps[-1].shape), found


def rectified(slope: Tensor, y: Tensor) -> Tensor:
    """The slope before y was rectified: 0 where y is."""
    return torch.where(y > 0, slope, 0.0)


def tail_gradients(seen: Seen, found: list[Tensor], slope: Tensor) -> list[Tensor]:
    """Those of the streams and the head, of the slopes of their layers and of f."""
    first, *rest = found
    first = beside(first)
    return [
        *(first.t() @ seen.rows, first.sum(0)),
        *(torch.bmm(h.transpose(1, 2), g) for h, g in zip(seen.hidden, rest, strict=False)),
        *(g.sum(1, keepdim=True) for g in rest),
        *head_gradients(seen.hidden[-1], slope),
    ]


def head_gradients(h: Tensor, slope: Tensor) -> Iterator[Tensor]:
    """Those of the value's weight and bias, then the advantages', in float32 like these."""
    with torch.autocast(h.device.type, enabled=False):
        value, advantage = (slope.t() @ beside(h).float()).chunk(2, -1)
    bias = slope.sum(0)
    yield from (value.sum(0, keepdim=True), bias.sum(0, keepdim=True))
    yield from (advantage - advantage.mean(0), bias - bias.mean())


class DuelingPasses(Passes):
    """Both ways by the functions above, compiled."""

    whole = True

    def __init__(self, device: torch.device) -> None:
        self.aside, self.ask = Aside(device), values
        self.online = torch.compile(forward, dynamic=False)
        self.target = torch.compile(values, dynamic=False)
        self.slopes = torch.compile(slopes, dynamic=False)
        self.tail_gradients = torch.compile(
            tail_gradients, dynamic=False, options={"combo_kernels": True}
        )

    @torch.no_grad()
    def forward(self, network: Any, inputs: Tensor) -> tuple[Tensor, Seen]:
        return self.online(network, inputs)

    @torch.no_grad()
    def backward(self, network: Any, seen: Seen, slope: Tensor) -> list[Tensor]:
        last, found = self.slopes(network, seen, slope)
        with self.aside.branch():
            tail = self.tail_gradients(seen, found, slope)
        weights = [layer.weight for layer in conv.convolutions(network)]
        convolutions = conv.slopes(seen.images, network.scale, seen.maps, last, weights)
        self.aside.join()
        return convolutions + tail
