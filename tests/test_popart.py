"""PopArt: outputs are preserved, targets are bounded, and updates equal independent arithmetic."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lookfurther.config import LearnerConfig, NetworkConfig
from lookfurther.errors import ConfigError
from lookfurther.learner import Learner
from lookfurther.networks.dueling import (
    DuelingNetwork,
    make_network_builder,
    network_value_transform,
)
from lookfurther.networks.heads import PopArtHead
from lookfurther.objective_variants import PopArtObjective
from lookfurther.types import Batch, Spec
from lookfurther.variants.popart import Moments, denormalise, normalise, update_moments
from tests.test_learner import CPU, huber, make_batch, make_network, run_update, to_float64

SPEC = Spec("toy", (3,), 1, "float32", 4, 1.0)
CONFIG = LearnerConfig(
    agent_items=24,
    expert_items=8,
    learning_rate=1e-2,
    value_transform="identity",
    popart_step=0.05,
    target_period=3,
)


def make_popart_network(seed: int = 0) -> DuelingNetwork:
    torch.manual_seed(seed)
    network = make_network_builder(NetworkConfig(hidden=(8,), head="popart"))(SPEC)
    assert isinstance(network, DuelingNetwork)
    return network


def make_learner(seed: int = 0, config: LearnerConfig = CONFIG, compiled: bool = False) -> Learner:
    network = make_popart_network(seed)
    return Learner(network, config, CPU, torch.float32, compiled, PopArtObjective)


def scalars(mean: float, second: float) -> Moments:
    return Moments(torch.tensor(mean).double(), torch.tensor(second).double())


def test_moments_by_hand() -> None:
    """mu = 0.9 * 2 + 0.1 * 4, nu = 0.9 * 5 + 0.1 * 20 for targets 2 and 6."""
    new = update_moments(scalars(2.0, 5.0), torch.tensor([2.0, 6.0]), 0.1)
    assert float(new.mean) == pytest.approx(2.2)
    assert float(new.second) == pytest.approx(6.5)
    assert float(new.std) == pytest.approx(math.sqrt(6.5 - 2.2**2))


@pytest.mark.parametrize(("second", "std"), [(0.0, 1e-4), (1e20, 1e6)])
def test_standard_deviation_is_limited(second: float, std: float) -> None:
    assert float(scalars(0.0, second).std) == pytest.approx(std)


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_targets_that_are_not_finite_change_nothing(poison: float) -> None:
    old = scalars(2.0, 5.0)
    assert update_moments(old, torch.tensor([1.0, poison]), 0.1) == old


targets = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=8)


@settings(max_examples=100, deadline=None)
@given(targets, st.floats(-100, 100), st.floats(1e-2, 100), st.floats(1e-4, 0.5))
def test_normalised_targets_are_bounded(y: list[float], mean: float, std: float, step: float):
    """|(y - mu') / sigma'| <= sqrt((B - beta) / beta); the paper's bound for batches of one."""
    new = update_moments(scalars(mean, std**2 + mean**2), torch.tensor(y), step)
    bound = math.sqrt((len(y) - step) / step)
    assert float(normalise(torch.tensor(y), new).abs().max()) <= bound * (1 + 1e-3)


def test_bound_of_normalised_targets_is_tight() -> None:
    new = update_moments(scalars(0.0, 1e-8), torch.tensor([1e4]), 0.01)
    assert float(normalise(torch.tensor(1e4), new)) == pytest.approx(math.sqrt(99), rel=1e-4)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_change_of_moments_preserves_values(scale: float) -> None:
    network, x = make_popart_network(), torch.randn(16, 3)
    assert isinstance(network.head, PopArtHead)
    transform = network_value_transform(network, CONFIG)
    for k in range(5):
        before = transform.h_inv(network(x))
        outputs = network(x)
        network.head.update_moments(scale * (torch.randn(64) + k), 0.1)
        rounding = 1e-5 * float(network.head.moments.std)
        assert torch.allclose(transform.h_inv(network(x)), before, rtol=1e-4, atol=rounding)
        assert not torch.allclose(network(x), outputs, rtol=1e-2)


def test_moments_approach_those_of_targets() -> None:
    head, g = PopArtHead(2, 3), torch.Generator().manual_seed(0)
    for _ in range(300):
        head.update_moments(50 + 7 * torch.randn(256, generator=g), 0.05)
    assert float(head.moments.mean) == pytest.approx(50, rel=0.01)
    assert float(head.moments.std) == pytest.approx(7, rel=0.05)


class Oracle:
    """PopArt on a dueling network of one hidden layer, item by item in float64."""

    def __init__(self, network: DuelingNetwork) -> None:
        state = {k: v.double().clone() for k, v in network.state_dict().items()}
        self.moments = Moments(state.pop("head.mean"), state.pop("head.second_moment"))
        self.weights = {k: v.requires_grad_() for k, v in state.items()}

    def outputs(self, x: Tensor) -> Tensor:
        w = self.weights
        hidden = torch.relu(w["streams.first.weight"] @ x + w["streams.first.bias"])
        v = w["head.value.weight"] @ hidden[:8] + w["head.value.bias"]
        a = w["head.advantage.weight"] @ hidden[8:] + w["head.advantage.bias"]
        return v + a - a.mean()

    def rescale(self, targets: Tensor, step: float) -> None:
        """Equations of the paper, with W and b of each stream written out."""
        old = self.moments
        mean = (1 - step) * old.mean + step * targets.mean()
        second = (1 - step) * old.second + step * (targets**2).mean()
        self.moments = Moments(mean, second)
        ratio = (old.second - old.mean**2).sqrt() / (second - mean**2).sqrt()
        shift = (old.mean - mean) / (second - mean**2).sqrt()
        with torch.no_grad():
            for name in ("value.weight", "value.bias", "advantage.weight", "advantage.bias"):
                self.weights[f"head.{name}"] *= ratio
            self.weights["head.value.bias"] += shift

    def loss(self, target: Oracle, b: Batch) -> Tensor:
        a_next = [int(self.outputs(x).argmax()) for x in b.x_next]
        with torch.no_grad():
            pairs = zip(b.x_next, a_next, strict=True)
            q_next = [denormalise(target.outputs(x)[a], target.moments) for x, a in pairs]
            bootstrap = torch.maximum(torch.stack(q_next), b.floor)
            y = b.r + b.discount * bootstrap
        self.rescale(y, CONFIG.popart_step)
        std = (self.moments.second - self.moments.mean**2).sqrt()
        total = torch.zeros((), dtype=torch.float64)
        for i, a in enumerate(b.a.tolist()):
            q, q_after = self.outputs(b.x[i]), self.outputs(b.x_next[i])
            td = huber(q[a] - (y[i] - self.moments.mean) / std)
            is_recorded = a_next[i] == int(b.a_next[i])
            anchor = bootstrap[i] if is_recorded else q_next[i]
            tc = huber(q_after[a_next[i]] - (anchor - self.moments.mean) / std)
            rivals = torch.stack([q[j] + (CONFIG.margin if j != a else 0.0) for j in range(4)])
            im = b.e[i] * (rivals.max() - q[a])
            total = total + b.w[i] * (td + tc * (b.discount[i] > 0) + im)
        return total / len(b.a)


def test_update_is_rescaling_and_adam_step_on_normalised_loss() -> None:
    learner = make_learner()
    online, target = Oracle(make_popart_network()), Oracle(make_popart_network())
    adam = torch.optim.Adam(online.weights.values(), lr=1e-2, eps=0.01 / 256)
    for k in range(7):
        b = make_batch(32, seed=k, agent=24)
        update = run_update(learner, b)
        adam.zero_grad()
        loss = online.loss(target, to_float64(b))
        loss.backward()
        adam.step()
        assert float(update.metrics["loss"]) == pytest.approx(loss.item(), rel=1e-3)
        if k % 3 == 2:
            target = copy.deepcopy(online)
    for name, weight in learner.online_network.named_parameters():
        assert torch.allclose(weight.double(), online.weights[name], atol=1e-4), name
    assert isinstance(learner.online_network, DuelingNetwork)
    head = learner.online_network.head
    assert isinstance(head, PopArtHead)
    assert torch.allclose(torch.stack(head.moments), torch.stack(online.moments), rtol=1e-4)


def test_compute_network_has_moments_of_master_weights() -> None:
    """In bfloat16, target and actors get the moments together with the weights they belong to."""
    network = make_popart_network()
    learner = Learner(network, CONFIG, CPU, torch.bfloat16, objective=PopArtObjective)
    for k in range(3):
        run_update(learner, make_batch(32, seed=k, agent=24))
    online, target = learner.online_weights, learner.target_weights
    networks = online.compute_network, online.network, target.compute_network, target.network
    means = {float(network.state_dict()["head.mean"]) for network in networks}
    assert len(means) == 1
    assert means != {0.0}


def test_restored_learner_repeats_updates() -> None:
    one, two = make_learner(), make_learner(5)
    for k in range(4):
        run_update(one, make_batch(32, seed=k, agent=24))
    saved = {f: {k: v.clone() for k, v in s.items()} for f, s in one.state().items()}
    two.load_state(saved, one.updates)
    for k in range(4, 8):
        run_update(one, make_batch(32, seed=k, agent=24))
        run_update(two, make_batch(32, seed=k, agent=24))
    for ours, theirs in zip(one.state().values(), two.state().values(), strict=True):
        assert all(torch.equal(v, theirs[k]) for k, v in ours.items())


def test_custom_network_without_popart_head_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"network\.head applies to the networks of this package"):
        Learner(make_network(), CONFIG, CPU, torch.float32, objective=PopArtObjective)
