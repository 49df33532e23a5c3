"""What test_kernels has Triton's interpreter do, in a process of its own: a check by its name."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from triton.runtime.errors import InterpreterError

from benchmarks.gpu import apart, with_gradients
from lookfurther import array_api
from lookfurther.adam import Adam
from lookfurther.autograd import Passes
from lookfurther.config import Network
from lookfurther.config import Replay as Settings
from lookfurther.config import replace as change
from lookfurther.demos.episode import Episode
from lookfurther.gpu import conv, dueling, dueling_head
from lookfurther.gpu import sum_tree as gpu_sum_tree
from lookfurther.gpu.adam import Descent
from lookfurther.gpu.dueling import DuelingPasses
from lookfurther.learner import Learner
from lookfurther.losses import clip_by_global_norm
from lookfurther.master_weights import Weights
from lookfurther.networks import Dueling, Head, beside, builder
from lookfurther.presets import preset
from lookfurther.replay import prioritized, sum_tree
from lookfurther.replay.sum_tree import SumTree
from lookfurther.training.build import build_mixture
from lookfurther.training.updates import Updates
from lookfurther.types import Spec
from tests.bounds_checked_tensors import watched


def made(name: str, sides: tuple[int, int], count: int) -> tuple[Dueling, Tensor]:
    """A network with biases that matter, and images for it."""
    torch.manual_seed(0)
    network = builder(Network(name=name))(Spec("x", (1, *sides), 4, "uint8", 18, 255.0))  # type: ignore[arg-type]
    assert isinstance(network, Dueling)
    return network, torch.randint(0, 256, (count, 4, *sides), dtype=torch.uint8)


def made_by(compiler: Callable[..., Any]) -> DuelingPasses:
    """Passes whose functions `compiler` compiles, with its own options."""
    with patch.object(torch, "compile", lambda function, **options: compiler(function)):
        return DuelingPasses(torch.device("cpu"))


def eager(function: Callable[..., Any]) -> Callable[..., Any]:
    """Nothing is compiled."""
    return function


def same(name: str, sides: tuple[int, int]) -> None:
    network, x = made(name, sides, 2)
    true = with_gradients(Passes(), network, network.prepare(x))
    found = with_gradients(made_by(eager), network, x)
    assert apart(found, true) < 1e-5
    assert all(a.stride() == b.stride() for a, b in zip(found, true, strict=True))


def both_heads() -> None:
    """Of any width, for few and many actions, in both orders of memory."""
    for width, actions, rows in ((100, 3, 5), (64, 18, 16), (70, 40, 33)):
        torch.manual_seed(actions)
        head = Head(width, actions)
        learned = list(head.parameters())
        for h in (torch.randn(2, rows, width), torch.randn(rows, 2, width).transpose(0, 1)):
            h.relu_()
            x = beside(h).requires_grad_()
            slope = torch.randn(rows, actions)
            true = [head(x).detach(), *torch.autograd.grad(head(x), [x, *learned], slope)]
            true[1] = torch.where(x > 0, true[1], 0.0)
            with torch.no_grad():
                found = [
                    dueling_head.head(h, learned).sum(0),
                    dueling_head.head_slope(slope, h, learned),
                ]
                found += dueling.head_gradients(h, slope)
            assert apart(found, true) < 1e-5


def compiled() -> None:
    network, x = made("dueling", (36, 40), 1)
    true = with_gradients(made_by(eager), network, x)
    whole = partial(torch.compile, dynamic=False, fullgraph=True, backend="aot_eager")
    assert apart(with_gradients(made_by(whole), network, x), true) < 1e-6


def sums() -> None:
    for shares in (1, 8, 33, 256):
        parts = torch.randn(shares, 1000)
        conv.total(parts, row := torch.zeros(1000))
        assert torch.allclose(row, parts.sum(0), atol=1e-4)
    parts = torch.randn(3, 4 * 6 * 5 + 5)  # of weights in another order, and biases
    conv.total(parts, row := torch.zeros(125), 0.5, 4, 5)
    weights, biases = parts.sum(0).split([120, 5])
    turned = 0.5 * weights.view(4, 6, 5).permute(2, 1, 0).flatten()
    assert torch.allclose(row, torch.cat([turned, biases]), atol=1e-5)


def steps() -> None:
    """Of more tensors than a launch takes, in both orders of memory, against torch's own."""
    torch.manual_seed(0)
    shapes = [(4, 3, 2, 2), (700, 3), (5,), (), (2049,)] + 13 * [(3,)]
    network = nn.ParameterList(torch.randn(shape) for shape in shapes)
    network[0].data = network[0].data.contiguous(memory_format=torch.channels_last)
    other = copy.deepcopy(network)
    weights, theirs = Weights(network, torch.bfloat16), Weights(other, torch.bfloat16)
    adams = [Adam(list(n.parameters()), 0.01, 1e-3) for n in (network, other)]
    take, norms = Descent(adams[0], weights, 40.0), torch.zeros(())
    sound, sums = torch.tensor(True), 0.0
    for size in (1.0, 0.1, float("nan"), 3.0):
        gradients = [(torch.randn(shape) * size).bfloat16() for shape in shapes]
        norm = take(gradients, torch.tensor(0.5), norms, sound)
        clipped, true = clip_by_global_norm(gradients, 40.0)
        good = torch.isfinite(true)
        assert (true > 40.0) == (size >= 1.0)
        adams[1].step(clipped, good)
        theirs.refresh()
        assert torch.allclose(norm, true, equal_nan=True)
        assert sound == good
        sums += float(true)
        assert np.isclose(float(norms), sums, equal_nan=True)
        if not good:
            sound.fill_(True)
        for a, b in zip(adams[0].state().values(), adams[1].state().values(), strict=True):
            assert torch.allclose(a, b, rtol=1e-5, atol=1e-7)
        for a, b in zip(adams[0].parameters, adams[1].parameters, strict=True):
            assert torch.allclose(a, b, rtol=1e-5, atol=1e-6)
        for kept, used in zip(weights.kept, weights.used, strict=True):
            # The interpreter cuts numbers off where a GPU rounds them.
            assert torch.equal(used.view(torch.int16), (kept.view(torch.int32) >> 16).short())


def draw() -> None:
    """The items that the tree finds, with their probabilities, and never one of mass 0."""
    random = np.random.default_rng(0)
    for size, share in ((1, 1.0), (100, 0.5), (5_000, 0.02), (70_000, 0.9), (70_000, 1e-3)):
        mass = random.random(size) ** 8 * (random.random(size) < share) * 1e3
        mass[random.integers(size)] = 1.0
        tree = SumTree(size)
        tree.rebuild(torch.from_numpy(mass))
        places = np.concatenate([[0.0, 1 - 2**-53, 1.0], (np.arange(16) + random.random(16)) / 16])
        item, probability = gpu_sum_tree.draw(torch.from_numpy(places), tree.sums, tree.blocks)
        true, chance = tree.draw(places)
        assert (item.numpy() == true).all()
        assert np.allclose(probability.numpy(), chance, rtol=1e-12)
        assert (mass[item.numpy()] > 0).all()


@contextmanager
def tensors() -> Iterator[None]:
    """Replays on the host do their arithmetic as those on a GPU do."""
    with (
        patch.object(prioritized, "native", lambda x: x),
        patch.object(sum_tree, "native", lambda x: x),
    ):
        yield


def batches() -> None:
    """Whole batches as a GPU draws them, torch's functions all through and compiled."""
    spec, items = Spec("x", (4,), 2, "float32", 3, 1.0), Settings(horizons=(1, 3))
    found = []
    with tensors():
        for kernels in (False, True):
            own = prioritized.Replay(spec, 2, 400, items, 0.9, seed=3)
            own.tree.rebuild(torch.from_numpy(np.random.default_rng(0).random(own.tree.size)))
            own.actions.copy_(torch.arange(len(own.actions)) % 3)
            if kernels:
                own.tree.compile()
                own._draw = torch.compile(own._draw, backend="aot_eager", fullgraph=True)
            found.append([own.sample(16) for _ in range(3)])
    for true, ours in zip(*found, strict=True):
        assert all(torch.allclose(a, b) for a, b in zip(ours, true, strict=True))


def updates() -> None:
    """Whole updates, wired as they are on a GPU; nothing is compiled but by the interpreter."""
    spec = Spec("x", (1, 36, 40), 4, "uint8", 3, 255.0)
    config = preset("apex-dqfd", env="x", demos=("x",), learner__agent_items=1)
    config = change(config, learner__expert_items=1, replay__capacity=500)
    random = np.random.default_rng(0)
    planes = random.integers(0, 256, (31, 1, 36, 40)).astype(np.uint8)
    shown = Episode(planes, random.integers(0, 3, 30), random.normal(size=30), terminal=True)
    found = []
    for kernels in (False, True):
        with (
            tensors(),
            patch.object(array_api, "runs_kernels", lambda device: kernels),  # noqa: B023
            patch.object(conv, "fit", lambda network, precision: kernels),  # noqa: B023
            patch.object(torch, "compile", lambda function, **options: function),
        ):
            torch.manual_seed(0)
            network = builder(config.network)(spec)
            learner = Learner(network, config.learner, torch.device("cpu"), torch.float32, kernels)
            mixture = build_mixture(config, spec, [shown], torch.device("cpu"))
            assert mixture.expert is not None
            mixture.agent = mixture.expert
            if kernels:
                mixture.compile()
            work = Updates(mixture, learner)
            work.run(2)
        assert kernels == learner.objective.passes.whole == (learner.descent is not None)
        assert kernels == (learner.objective.passes.ask is dueling.values)
        weights = torch.cat([p.detach().flatten() for p in learner.parameters])
        found.append((weights, work.means(), mixture.expert.tree.mass))
    (true, true_means, true_mass), (ours, means, mass) = found
    assert float((ours - true).abs().max()) < 0.1 * config.learner.learning_rate
    assert torch.allclose(mass, true_mass, rtol=1e-4)
    assert all(np.isclose(means[name], true_means[name], rtol=1e-3, atol=1e-7) for name in means)


@triton.jit
def one_too_many(out, count):
    """Writes one number more than there is room for."""
    at = tl.arange(0, 16)
    tl.store(out + at, at, mask=at <= count)


def outside() -> None:
    """The watch would notice."""
    room = torch.zeros(16, dtype=torch.int32)
    one_too_many[(1,)](room[:8], 7)
    with pytest.raises(InterpreterError, match="one_too_many goes outside its tensors"):
        one_too_many[(1,)](room[:8], 8)


CHECKS: dict[str, Callable[[], None]] = {
    "standard": lambda: same("dueling", (40, 48)),  # with cells that the second layer never sees
    "deeper": lambda: same("dueling-deeper", (44, 36)),
    "heads": both_heads,
    "compiled": compiled,
    "sums": sums,
    "steps": steps,
    "draws": draw,
    "batches": batches,
    "updates": updates,
    "outside": outside,
}

if __name__ == "__main__":
    for blocks in conv.BLOCKS.values():  # a few programs, of which the last has too little to do
        blocks.update({name: b._replace(splits=3) for name, b in blocks.items() if b.splits})
    with watched():
        CHECKS[sys.argv[1]]()
