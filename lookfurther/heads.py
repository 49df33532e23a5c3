"""The last layer of a network, from the two streams to the outputs that the loss takes."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class DuelingHead(nn.Module):
    """V(x) + A(x, a) - mean_b A(x, b) from the two streams' concatenated last layers [B, 2 out].

    All of it is linear, so it is one matrix product. It is computed in float32 in any precision:
    near 200, adjacent bfloat16 values are 1 apart.
    """

    def __init__(self, features: int, actions: int) -> None:
        super().__init__()
        self.value = nn.Linear(features, 1)
        self.advantage = nn.Linear(features, actions)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return nn.functional.linear(x.float(), *self.combined_weights())

    def combined_weights(self) -> tuple[Tensor, Tensor]:
        """The weight [actions, 2 out] and the bias [actions] of the one matrix product."""
        v, a = self.value, self.advantage
        weight = torch.cat([v.weight.expand_as(a.weight), a.weight - a.weight.mean(0)], -1)
        return weight, v.bias + a.bias - a.bias.mean()

    def values(self, outputs: Tensor) -> Tensor:
        """f(x, a) [B, A] of the outputs."""
        return outputs
