"""What test_kernels has Triton's interpreter do, in a process of its own: a check by its name."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from torch import Tensor

from lookfurther import torso
from lookfurther.config import Network
from lookfurther.networks import Dueling, builder, prepare, values
from lookfurther.types import Spec


def made(name: str, sides: tuple[int, int], count: int) -> tuple[Dueling, Tensor]:
    """A network with biases that matter, and images for it."""
    torch.manual_seed(0)
    network = builder(Network(name=name))(Spec("x", (1, *sides), 4, "uint8", 18, 255.0))  # type: ignore[arg-type]
    assert isinstance(network, Dueling)
    return network, torch.randint(0, 256, (count, 4, *sides), dtype=torch.uint8)


def answers(network: Dueling, ask: Callable[[], Tensor]) -> list[Tensor]:
    """Values, and the gradients of all that is learned for slopes that differ everywhere."""
    q = ask()
    slope = torch.linspace(-1, 1, q.numel()).view(q.shape)
    return [q.detach(), *torch.autograd.grad(q, list(network.parameters()), slope)]


def apart(found: list[Tensor], true: list[Tensor]) -> float:
    """The largest difference, in units of the largest number of each."""
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, true, strict=True))


def same(name: str, sides: tuple[int, int]) -> None:
    network, x = made(name, sides, 2)
    true = answers(network, lambda: values(network, prepare(network, x)))
    found = answers(network, lambda: torso.values(network, x))
    assert apart(found, true) < 1e-5
    assert all(a.stride() == b.stride() for a, b in zip(found, true, strict=True))


def compiled() -> None:
    network, x = made("dueling", (36, 40), 1)
    true = answers(network, lambda: torso.values(network, x))
    whole = torch.compile(torso.values, dynamic=False, fullgraph=True, backend="aot_eager")
    assert apart(answers(network, lambda: whole(network, x)), true) < 1e-6


def sums() -> None:
    for shares in (1, 8, 33, 256):
        parts = torch.randn(shares, 1000)
        torso._total(parts, row := torch.zeros(1000))
        assert torch.allclose(row, parts.sum(0), atol=1e-4)


CHECKS: dict[str, Callable[[], None]] = {
    "standard": lambda: same("dueling", (40, 48)),  # with cells that the second layer never sees
    "deeper": lambda: same("dueling-deeper", (44, 36)),
    "compiled": compiled,
    "sums": sums,
}

if __name__ == "__main__":
    for blocks in torso.BLOCKS.values():  # a few programs, of which the last has too little to do
        blocks.update({name: b._replace(splits=3) for name, b in blocks.items() if b.splits})
    torso.TILE = 1 << 15
    CHECKS[sys.argv[1]]()
