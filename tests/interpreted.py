"""What test_kernels has Triton's interpreter do, in a process of its own: a check by its name."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.gpu import apart, with_gradients
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


def same(name: str, sides: tuple[int, int]) -> None:
    network, x = made(name, sides, 2)
    true = with_gradients(network, values(network, prepare(network, x)))
    found = with_gradients(network, torso.values(network, x))
    assert apart(found, true) < 1e-5
    assert all(a.stride() == b.stride() for a, b in zip(found, true, strict=True))


def compiled() -> None:
    network, x = made("dueling", (36, 40), 1)
    true = with_gradients(network, torso.values(network, x))
    whole = torch.compile(torso.values, dynamic=False, fullgraph=True, backend="aot_eager")
    assert apart(with_gradients(network, whole(network, x)), true) < 1e-6


def sums() -> None:
    for shares in (1, 8, 33, 256):
        parts = torch.randn(shares, 1000)
        torso.total(parts, row := torch.zeros(1000))
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
