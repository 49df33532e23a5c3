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

from benchmarks.gpu import max_relative_difference, values_and_gradients
from lookfurther import acceleration
from lookfurther.adam import Adam
from lookfurther.autograd import AutogradPasses
from lookfurther.config import NetworkConfig
from lookfurther.config import ReplayConfig as Settings
from lookfurther.config import replace as change
from lookfurther.demos.episode import Episode
from lookfurther.gpu import conv, dueling, dueling_head
from lookfurther.gpu import sum_tree as gpu_sum_tree
from lookfurther.gpu.adam import FusedAdam
from lookfurther.gpu.dueling import FusedDuelingPasses
from lookfurther.learner import Learner
from lookfurther.losses import clip_by_global_norm
from lookfurther.master_weights import MasterWeights
from lookfurther.networks import DuelingHead, DuelingNetwork, concat_streams, make_network_builder
from lookfurther.presets import preset
from lookfurther.replay import prioritized, sum_tree
from lookfurther.replay.sum_tree import SumTree
from lookfurther.training.build import build_mixture
from lookfurther.training.updates import UpdateRunner
from lookfurther.types import Spec
from tests.bounds_checked_tensors import bounds_checked


def make_network(name: str, sides: tuple[int, int], count: int) -> tuple[DuelingNetwork, Tensor]:
    """A network with biases that matter, and images for it."""
    torch.manual_seed(0)
    network = make_network_builder(NetworkConfig(name=name))(
        Spec("x", (1, *sides), 4, "uint8", 18, 255.0)
    )  # type: ignore[arg-type]
    assert isinstance(network, DuelingNetwork)
    return network, torch.randint(0, 256, (count, 4, *sides), dtype=torch.uint8)


def make_fused_passes(compiler: Callable[..., Any]) -> FusedDuelingPasses:
    """Passes whose functions `compiler` compiles, with its own options."""
    with patch.object(torch, "compile", lambda function, **options: compiler(function)):
        return FusedDuelingPasses(torch.device("cpu"))


def no_compile(function: Callable[..., Any]) -> Callable[..., Any]:
    """Nothing is compiled."""
    return function


def check_network(name: str, sides: tuple[int, int]) -> None:
    network, x = make_network(name, sides, 2)
    true = values_and_gradients(AutogradPasses(), network, network.prepare_inputs(x))
    found = values_and_gradients(make_fused_passes(no_compile), network, x)
    assert max_relative_difference(found, true) < 1e-5
    assert all(a.stride() == b.stride() for a, b in zip(found, true, strict=True))


def check_heads() -> None:
    """Of any width, for few and many actions, in both orders of memory."""
    for width, actions, rows in ((100, 3, 5), (64, 18, 16), (70, 40, 33)):
        torch.manual_seed(actions)
        head = DuelingHead(width, actions)
        learned = list(head.parameters())
        for h in (torch.randn(2, rows, width), torch.randn(rows, 2, width).transpose(0, 1)):
            h.relu_()
            x = concat_streams(h).requires_grad_()
            slope = torch.randn(rows, actions)
            true = [head(x).detach(), *torch.autograd.grad(head(x), [x, *learned], slope)]
            true[1] = torch.where(x > 0, true[1], 0.0)
            with torch.no_grad():
                found = [
                    dueling_head.head_forward(h, learned).sum(0),
                    dueling_head.head_backward(slope, h, learned),
                ]
                found += dueling.head_gradients(h, slope)
            assert max_relative_difference(found, true) < 1e-5


def check_compiled() -> None:
    network, x = make_network("dueling", (36, 40), 1)
    true = values_and_gradients(make_fused_passes(no_compile), network, x)
    whole = partial(torch.compile, dynamic=False, fullgraph=True, backend="aot_eager")
    assert (
        max_relative_difference(values_and_gradients(make_fused_passes(whole), network, x), true)
        < 1e-6
    )


def check_reduction() -> None:
    for shares in (1, 8, 33, 256):
        parts = torch.randn(shares, 1000)
        conv.launch_reduce_partials(parts, row := torch.zeros(1000))
        assert torch.allclose(row, parts.sum(0), atol=1e-4)
    parts = torch.randn(3, 4 * 6 * 5 + 5)  # of weights in another order, and biases
    conv.launch_reduce_partials(parts, row := torch.zeros(125), 0.5, 4, 5)
    weights, biases = parts.sum(0).split([120, 5])
    turned = 0.5 * weights.view(4, 6, 5).permute(2, 1, 0).flatten()
    assert torch.allclose(row, torch.cat([turned, biases]), atol=1e-5)


def check_adam_steps() -> None:
    """Of more tensors than a launch takes, in both orders of memory, against torch's own."""
    torch.manual_seed(0)
    shapes = [(4, 3, 2, 2), (700, 3), (5,), (), (2049,)] + 13 * [(3,)]
    network = nn.ParameterList(torch.randn(shape) for shape in shapes)
    network[0].data = network[0].data.contiguous(memory_format=torch.channels_last)
    other = copy.deepcopy(network)
    weights, theirs = MasterWeights(network, torch.bfloat16), MasterWeights(other, torch.bfloat16)
    adams = [Adam(list(n.parameters()), 0.01, 1e-3) for n in (network, other)]
    take, norms = FusedAdam(adams[0], weights, 40.0), torch.zeros(())
    sound, sums = torch.tensor(True), 0.0
    for size in (1.0, 0.1, float("nan"), 3.0):
        gradients = [(torch.randn(shape) * size).bfloat16() for shape in shapes]
        norm = take(gradients, torch.tensor(0.5), norms, sound)
        clipped, true = clip_by_global_norm(gradients, 40.0)
        good = torch.isfinite(true)
        assert (true > 40.0) == (size >= 1.0)
        adams[1].step(clipped, good)
        theirs.refresh_compute_network()
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
        for kept, used in zip(weights.master_tensors, weights.compute_tensors, strict=True):
            # The interpreter cuts numbers off where a GPU rounds them.
            assert torch.equal(used.view(torch.int16), (kept.view(torch.int32) >> 16).short())


def check_sampling() -> None:
    """The items that the tree finds, with their probabilities, and never one of mass 0."""
    random = np.random.default_rng(0)
    for size, share in ((1, 1.0), (100, 0.5), (5_000, 0.02), (70_000, 0.9), (70_000, 1e-3)):
        mass = random.random(size) ** 8 * (random.random(size) < share) * 1e3
        mass[random.integers(size)] = 1.0
        tree = SumTree(size)
        tree.rebuild(torch.from_numpy(mass))
        places = np.concatenate([[0.0, 1 - 2**-53, 1.0], (np.arange(16) + random.random(16)) / 16])
        item, probability = gpu_sum_tree.draw_items(
            torch.from_numpy(places), tree.block_sums, tree.block_masses
        )
        true, chance = tree.draw_items(places)
        assert (item.numpy() == true).all()
        assert np.allclose(probability.numpy(), chance, rtol=1e-12)
        assert (mass[item.numpy()] > 0).all()


@contextmanager
def torch_index_arithmetic() -> Iterator[None]:
    """Replays on the host do their arithmetic as those on a GPU do."""
    with (
        patch.object(prioritized, "to_native", lambda x: x),
        patch.object(sum_tree, "to_native", lambda x: x),
    ):
        yield


def check_batches() -> None:
    """Whole batches as a GPU draws them, torch's functions all through and compiled."""
    spec, items = Spec("x", (4,), 2, "float32", 3, 1.0), Settings(horizons=(1, 3))
    found = []
    with torch_index_arithmetic():
        for kernels in (False, True):
            own = prioritized.PrioritizedReplay(spec, 2, 400, items, 0.9, seed=3)
            own.tree.rebuild(torch.from_numpy(np.random.default_rng(0).random(own.tree.size)))
            own.actions.copy_(torch.arange(len(own.actions)) % 3)
            if kernels:
                own.tree.compile()
                own._draw_items = torch.compile(
                    own._draw_items, backend="aot_eager", fullgraph=True
                )
            found.append([own.sample(16) for _ in range(3)])
    for true, ours in zip(*found, strict=True):
        assert all(torch.allclose(a, b) for a, b in zip(ours, true, strict=True))


def check_updates() -> None:
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
            torch_index_arithmetic(),
            patch.object(acceleration, "supports_triton", lambda device: kernels),  # noqa: B023
            patch.object(conv, "is_supported", lambda network, precision: kernels),  # noqa: B023
            patch.object(torch, "compile", lambda function, **options: function),
        ):
            torch.manual_seed(0)
            network = make_network_builder(config.network)(spec)
            learner = Learner(network, config.learner, torch.device("cpu"), torch.float32, kernels)
            mixture = build_mixture(config, spec, [shown], torch.device("cpu"))
            assert mixture.expert is not None
            mixture.agent = mixture.expert
            if kernels:
                mixture.compile()
            work = UpdateRunner(mixture, learner)
            work.run(2)
        assert (
            kernels
            == learner.objective.passes.takes_raw_observations
            == (learner.fused_adam is not None)
        )
        assert kernels == (learner.objective.passes.actor_q_function is dueling.dueling_values)
        weights = torch.cat([p.detach().flatten() for p in learner.parameters])
        found.append((weights, work.compute_mean_terms(), mixture.expert.tree.masses))
    (true, true_means, true_mass), (ours, means, mass) = found
    assert float((ours - true).abs().max()) < 0.1 * config.learner.learning_rate
    assert torch.allclose(mass, true_mass, rtol=1e-4)
    assert all(np.isclose(means[name], true_means[name], rtol=1e-3, atol=1e-7) for name in means)


@triton.jit
def write_past_end(out, count):
    """Writes one number more than there is room for."""
    at = tl.arange(0, 16)
    tl.store(out + at, at, mask=at <= count)


def check_bounds_checking() -> None:
    """The watch would notice."""
    room = torch.zeros(16, dtype=torch.int32)
    write_past_end[(1,)](room[:8], 7)
    with pytest.raises(InterpreterError, match="write_past_end goes outside its tensors"):
        write_past_end[(1,)](room[:8], 8)


CHECKS: dict[str, Callable[[], None]] = {
    "standard": lambda: check_network(
        "dueling", (40, 48)
    ),  # with cells that the second layer never sees
    "deeper": lambda: check_network("dueling-deeper", (44, 36)),
    "heads": check_heads,
    "compiled": check_compiled,
    "sums": check_reduction,
    "steps": check_adam_steps,
    "draws": check_sampling,
    "batches": check_batches,
    "updates": check_updates,
    "outside": check_bounds_checking,
}

if __name__ == "__main__":
    for (
        blocks
    ) in conv.BLOCK_CONFIGS.values():  # a few programs, of which the last has too little to do
        blocks.update(
            {name: b._replace(num_splits=3) for name, b in blocks.items() if b.num_splits}
        )
    with bounds_checked():
        CHECKS[sys.argv[1]]()
