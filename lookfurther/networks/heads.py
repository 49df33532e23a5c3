"""The last layer of a network, from the two streams to the outputs that the loss takes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lookfurther.transforms import ValueTransform
from lookfurther.variants import popart
from lookfurther.variants.categorical import expected_values

LinearBuilder = Callable[[int, int], nn.Linear]  # (inputs, outputs) to a linear layer


class DuelingHead(nn.Module):
    """V(x) + A(x, a) - mean_b A(x, b) from the two streams' concatenated last layers [B, 2 out].

    All of it is linear, so it is one matrix product. It is computed in float32 in any precision:
    near 200, adjacent bfloat16 values are 1 apart.
    """

    is_one_product = True

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


class PopArtHead(DuelingHead):
    """A head with normalised outputs (Q - mu) / sigma, and the moments of the targets."""

    mean: Tensor
    second_moment: Tensor

    def __init__(self, features: int, actions: int) -> None:
        super().__init__(features, actions)
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))
        self.register_buffer("second_moment", torch.ones((), dtype=torch.float64))

    @property
    def moments(self) -> popart.Moments:
        return popart.Moments(self.mean, self.second_moment)

    @property
    def value_transform(self) -> ValueTransform:
        """From Q to the outputs and back, by the moments at the time of the call."""
        return ValueTransform(
            lambda q: popart.normalise(q, self.moments),
            lambda f: popart.denormalise(f, self.moments),
        )

    @torch.no_grad()
    def update_moments(self, targets: Tensor, step: float) -> None:
        """Update the moments, and rescale the last layer: Q stays the same."""
        new = popart.update_moments(self.moments, targets, step)
        scale, shift = popart.rescaling(self.moments, new)
        for parameter in self.parameters():
            parameter.mul_(scale)
        self.value.bias.add_(shift)
        self.mean.copy_(new.mean)
        self.second_moment.copy_(new.second)


class StreamHead(DuelingHead):
    """V(x) + A(x, a) - mean_b A(x, b) from one linear layer per stream."""

    is_one_product = False

    def __init__(
        self, features: int, actions: int, linear: LinearBuilder, outputs: int = 1
    ) -> None:
        nn.Module.__init__(self)
        self.value, self.advantage = linear(features, outputs), linear(features, actions * outputs)
        self.outputs = outputs  # for each action

    def forward(self, x: Tensor) -> Tensor:
        return self.stream_outputs(x).squeeze(-1)

    def stream_outputs(self, x: Tensor) -> Tensor:
        """[B, A, outputs] of the two streams' concatenated last layers [B, 2 features]."""
        with torch.autocast(x.device.type, enabled=False):
            value_features, advantage_features = x.float().chunk(2, -1)
            value = self.value(value_features).unsqueeze(1)
            advantage = self.advantage(advantage_features).unflatten(-1, (-1, self.outputs))
            return value + advantage - advantage.mean(1, keepdim=True)


class CategoricalHead(StreamHead):
    """Logits [B, A, N] of value distributions on fixed atoms; Q is the expected value (C51)."""

    atoms: Tensor

    def __init__(self, features: int, actions: int, linear: LinearBuilder, atoms: Tensor) -> None:
        super().__init__(features, actions, linear, len(atoms))
        self.register_buffer("atoms", atoms, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.stream_outputs(x)

    def values(self, outputs: Tensor) -> Tensor:
        return expected_values(outputs, self.atoms)
