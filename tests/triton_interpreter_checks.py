"""Checks that test_gpu_kernels.py runs by name under Triton's interpreter, each in a process."""

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
from lookfurther.autograd import AutogradPasses
from lookfurther.config import NetworkConfig, ReplayConfig
from lookfurther.config import replace as replace_config
from lookfurther.demos.episode import Episode
from lookfurther.gpu import conv, dueling, dueling_head
from lookfurther.gpu import sum_tree as gpu_sum_tree
from lookfurther.gpu.adam import FusedAdam
from lookfurther.gpu.dueling import FusedDuelingPasses
from lookfurther.learner import Learner
from lookfurther.losses import clip_by_global_norm
from lookfurther.master_weights import MasterWeights
from lookfurther.networks.dueling import DuelingNetwork, make_network_builder
from lookfurther.networks.dueling_streams import concat_streams
from lookfurther.networks.heads import DuelingHead
from lookfurther.optimizers.adam import Adam
from lookfurther.presets import preset
from lookfurther.replay import prioritized, slots, sum_tree
from lookfurther.replay.sum_tree import SumTree
from lookfurther.system import acceleration
from lookfurther.training.build import build_mixture
from lookfurther.training.updates import UpdateRunner
from lookfurther.types import Spec
from tests.bounds_checked_tensors import bounds_checked


def make_network(name: Any, sides: tuple[int, int], count: int) -> tuple[DuelingNetwork, Tensor]:
    """A network with random biases, and images for it."""
    torch.manual_seed(0)
    network = make_network_builder(NetworkConfig(name=name))(
        Spec("x", (1, *sides), 4, "uint8", 18, 255.0)
    )  # type: ignore[arg-type]
    assert isinstance(network, DuelingNetwork)
    return network, torch.randint(0, 256, (count, 4, *sides), dtype=torch.uint8)


def make_fused_passes(compiler: Callable[..., Any]) -> FusedDuelingPasses:
    """Passes whose functions are compiled by `compiler`, without the options of the package."""
    with patch.object(torch, "compile", lambda function, **options: compiler(function)):
        return FusedDuelingPasses(torch.device("cpu"))


def no_compile(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def check_network(name: str, sides: tuple[int, int]) -> None:
    network, x = make_network(name, sides, 2)
    expected = values_and_gradients(AutogradPasses(), network, network.prepare_inputs(x))
    actual = values_and_gradients(make_fused_passes(no_compile), network, x)
    assert max_relative_difference(actual, expected) < 1e-5
    assert all(a.stride() == b.stride() for a, b in zip(actual, expected, strict=True))


def check_heads() -> None:
    """For any width, few and many actions, and both memory layouts of the streams."""
    for width, actions, rows in ((100, 3, 5), (64, 18, 16), (70, 40, 33)):
        torch.manual_seed(actions)
        head = DuelingHead(width, actions)
        parameters = list(head.parameters())
        for h in (torch.randn(2, rows, width), torch.randn(rows, 2, width).transpose(0, 1)):
            h.relu_()
            x = concat_streams(h).requires_grad_()
            grad_q = torch.randn(rows, actions)
            gradients = torch.autograd.grad(head(x), [x, *parameters], grad_q)
            expected = [head(x).detach(), *gradients]
            expected[1] = torch.where(x > 0, expected[1], 0.0)
            with torch.no_grad():
                actual = [
                    dueling_head.head_forward(h, parameters).sum(0),
                    dueling_head.head_backward(grad_q, h, parameters),
                ]
                actual += dueling.head_gradients(h, grad_q)
            assert max_relative_difference(actual, expected) < 1e-5


def check_compiled() -> None:
    network, x = make_network("dueling", (36, 40), 1)
    expected = values_and_gradients(make_fused_passes(no_compile), network, x)
    compiler = partial(torch.compile, dynamic=False, fullgraph=True, backend="aot_eager")
    actual = values_and_gradients(make_fused_passes(compiler), network, x)
    assert max_relative_difference(actual, expected) < 1e-6


def check_reduction() -> None:
    for num_splits in (1, 8, 33, 256):
        partials = torch.randn(num_splits, 1000)
        conv.launch_reduce_partials(partials, out := torch.zeros(1000))
        assert torch.allclose(out, partials.sum(0), atol=1e-4)
    partials = torch.randn(3, 4 * 6 * 5 + 5)  # weights that are transposed, then biases
    conv.launch_reduce_partials(partials, out := torch.zeros(125), 0.5, num_bytes=4, c_out=5)
    weights, biases = partials.sum(0).split([120, 5])
    transposed = 0.5 * weights.view(4, 6, 5).permute(2, 1, 0).flatten()
    assert torch.allclose(out, torch.cat([transposed, biases]), atol=1e-5)


def check_adam_steps() -> None:
    """More tensors than one launch takes, in both memory layouts, compared with `Adam`."""
    torch.manual_seed(0)
    shapes = [(4, 3, 2, 2), (700, 3), (5,), (), (2049,)] + 13 * [(3,)]
    network = nn.ParameterList(torch.randn(shape) for shape in shapes)
    network[0].data = network[0].data.contiguous(memory_format=torch.channels_last)
    copied = copy.deepcopy(network)
    weights = MasterWeights(network, torch.bfloat16)
    copied_weights = MasterWeights(copied, torch.bfloat16)
    adams = [Adam(list(n.parameters()), 0.01, 1e-3) for n in (network, copied)]
    fused_adam, norm_sum = FusedAdam(adams[0], weights, 40.0), torch.zeros(())
    all_finite, expected_sum = torch.tensor(True), 0.0
    for size in (1.0, 0.1, float("nan"), 3.0):
        gradients = [(torch.randn(shape) * size).bfloat16() for shape in shapes]
        norm = fused_adam(gradients, torch.tensor(0.5), norm_sum, all_finite)
        clipped, expected_norm = clip_by_global_norm(gradients, 40.0)
        is_finite = torch.isfinite(expected_norm)
        assert (expected_norm > 40.0) == (size >= 1.0)
        adams[1].step(clipped, is_finite)
        copied_weights.refresh_compute_network()
        assert torch.allclose(norm, expected_norm, equal_nan=True)
        assert all_finite == is_finite
        expected_sum += float(expected_norm)
        assert np.isclose(float(norm_sum), expected_sum, equal_nan=True)
        if not is_finite:
            all_finite.fill_(True)
        for a, b in zip(adams[0].state().values(), adams[1].state().values(), strict=True):
            assert torch.allclose(a, b, rtol=1e-5, atol=1e-7)
        for a, b in zip(adams[0].parameters, adams[1].parameters, strict=True):
            assert torch.allclose(a, b, rtol=1e-5, atol=1e-6)
        for master, compute in zip(weights.master_tensors, weights.compute_tensors, strict=True):
            # The interpreter truncates where a GPU rounds.
            assert torch.equal(compute.view(torch.int16), (master.view(torch.int32) >> 16).short())


def check_sampling() -> None:
    """The same items and probabilities as `SumTree`, and never an item of mass 0."""
    rng = np.random.default_rng(0)
    for size, density in ((1, 1.0), (100, 0.5), (5_000, 0.02), (70_000, 0.9), (70_000, 1e-3)):
        mass = rng.random(size) ** 8 * (rng.random(size) < density) * 1e3
        mass[rng.integers(size)] = 1.0
        tree = SumTree(size)
        tree.rebuild(torch.from_numpy(mass))
        fraction = np.concatenate([[0.0, 1 - 2**-53, 1.0], (np.arange(16) + rng.random(16)) / 16])
        item, probability = gpu_sum_tree.draw_items(
            torch.from_numpy(fraction), tree.block_sums, tree.block_masses
        )
        expected_item, expected_probability = tree.draw_items(fraction)
        assert (item.numpy() == expected_item).all()
        assert np.allclose(probability.numpy(), expected_probability, rtol=1e-12)
        assert (mass[item.numpy()] > 0).all()


@contextmanager
def torch_index_arithmetic() -> Iterator[None]:
    """Replays on the CPU use torch for index arithmetic, as on a GPU."""
    with (
        patch.object(prioritized, "to_native", lambda x: x),
        patch.object(slots, "to_native", lambda x: x),
        patch.object(sum_tree, "to_native", lambda x: x),
    ):
        yield


def check_batches() -> None:
    """Batches sampled by kernels inside a compiled function equal those of eager torch."""
    spec, settings = Spec("x", (4,), 2, "float32", 3, 1.0), ReplayConfig(horizons=(1, 3))
    found = []
    with torch_index_arithmetic():
        for has_kernels in (False, True):
            replay = prioritized.PrioritizedReplay(spec, 2, 400, settings, 0.9, seed=3)
            mass = np.random.default_rng(0).random(replay.tree.size)
            replay.tree.rebuild(torch.from_numpy(mass))
            replay.actions.copy_(torch.arange(len(replay.actions)) % 3)
            if has_kernels:
                with patch.object(acceleration, "supports_triton", lambda device: True):
                    replay.tree.compile()
                replay._draw_items = torch.compile(
                    replay._draw_items, backend="aot_eager", fullgraph=True
                )
            found.append([replay.sample(16) for _ in range(3)])
    for expected, actual in zip(*found, strict=True):
        assert all(torch.allclose(a, b) for a, b in zip(actual, expected, strict=True))


def check_updates() -> None:
    """Updates with all kernels equal updates without; torch.compile does nothing here."""
    spec = Spec("x", (1, 36, 40), 4, "uint8", 3, 255.0)
    config = preset("apex-dqfd", env="x", demos=("x",), learner__agent_items=1)
    config = replace_config(config, learner__expert_items=1, replay__capacity=500)
    rng = np.random.default_rng(0)
    planes = rng.integers(0, 256, (31, 1, 36, 40)).astype(np.uint8)
    episode = Episode(planes, rng.integers(0, 3, 30), rng.normal(size=30), terminal=True)
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
            mixture = build_mixture(config, spec, [episode], torch.device("cpu"), is_compiled=False)
            assert mixture.expert is not None
            mixture.agent = mixture.expert
            if kernels:
                mixture.compile()
            runner = UpdateRunner(mixture, learner)
            runner.run(1)
            learner.optimizer.learning_rate.mul_(0.5)
            runner.run(1)
        passes = learner.objective.passes
        assert kernels == passes.takes_raw_observations == (learner.fused_step is not None)
        assert kernels == (passes.actor_q_function is dueling.dueling_values)
        weights = torch.cat([p.detach().flatten() for p in learner.parameters])
        found.append((weights, runner.compute_mean_terms(), mixture.expert.tree.masses))
    (expected, expected_means, expected_mass), (actual, means, mass) = found
    assert float((actual - expected).abs().max()) < 0.1 * config.learner.learning_rate
    assert torch.allclose(mass, expected_mass, rtol=1e-4)
    for name, mean in means.items():
        assert np.isclose(mean, expected_means[name], rtol=1e-3, atol=1e-7)


@triton.jit
def write_past_end(out_ptr, count):
    """Writes count + 1 numbers."""
    offs = tl.arange(0, 16)
    tl.store(out_ptr + offs, offs, mask=offs <= count)


def check_bounds_checking() -> None:
    memory = torch.zeros(16, dtype=torch.int32)
    write_past_end[(1,)](memory[:8], 7)
    with pytest.raises(
        InterpreterError, match="write_past_end accesses memory outside its tensors"
    ):
        write_past_end[(1,)](memory[:8], 8)


CHECKS: dict[str, Callable[[], None]] = {
    # In this one the second layer does not cover the last cells.
    "standard_network": lambda: check_network("dueling", (40, 48)),
    "deeper_network": lambda: check_network("dueling-deeper", (44, 36)),
    "heads": check_heads,
    "compiled": check_compiled,
    "reduction": check_reduction,
    "adam_steps": check_adam_steps,
    "sampling": check_sampling,
    "batches": check_batches,
    "updates": check_updates,
    "bounds_checking": check_bounds_checking,
}

if __name__ == "__main__":
    for configs in conv.BLOCK_CONFIGS.values():  # few programs, the last with less to do
        split = {name: c._replace(num_splits=3) for name, c in configs.items() if c.num_splits}
        configs.update(split)
    with bounds_checked():
        CHECKS[sys.argv[1]]()
