"""The last layers of DQN and C51: one stream of fully connected layers, and a linear head."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from lookfurther.networks.heads import CategoricalHead, DuelingHead


class SingleStream(nn.Module):
    """Fully connected layers with ReLU."""

    def __init__(self, features: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        widths = (features, *hidden)
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(widths))
        self.out_features = widths[-1]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x


class PlainHead(DuelingHead):
    """f(x, a), a linear function of the stream's last layer, in float32 in any precision."""

    is_one_product = False

    def __init__(self, features: int, actions: int) -> None:
        nn.Module.__init__(self)
        self.linear = nn.Linear(features, actions)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return self.linear(x.float())


class PlainCategoricalHead(CategoricalHead):
    """Logits [B, A, N], a linear function of the stream's last layer, in float32 (C51)."""

    def __init__(self, features: int, actions: int, atoms: Tensor) -> None:
        nn.Module.__init__(self)
        self.outputs = len(atoms)
        self.linear = nn.Linear(features, actions * self.outputs)
        self.register_buffer("atoms", atoms, persistent=False)

    def stream_outputs(self, x: Tensor) -> Tensor:
        """[B, A, outputs] of the stream's last layer [B, features]."""
        with torch.autocast(x.device.type, enabled=False):
            return self.linear(x.float()).unflatten(-1, (-1, self.outputs))


class ScaleGradient(nn.Module):
    """The identity, whose gradient is multiplied by a factor (Wang et al. 2016, Sec. 4.2)."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x.detach() + self.factor * (x - x.detach())
