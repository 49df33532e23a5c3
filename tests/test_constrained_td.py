"""Constrained TD: the gradient is orthogonal to that of the next states' values."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from lookfurther.config import LearnerConfig
from lookfurther.learner import Learner
from lookfurther.objective import Objective
from lookfurther.objective_variants import ConstrainedTDObjective
from lookfurther.types import Batch
from lookfurther.variants.constrained_td import mean_value_gradient, project_orthogonal
from tests.test_learner import (
    CPU,
    make_batch,
    make_network,
    printed_loss,
    run_update,
    to_float64,
    without_floor,
)

CONFIG = LearnerConfig(
    agent_items=24, expert_items=8, learning_rate=1e-2, tc_weight=0.0, constrained_td=True
)


def make_learner(seed: int = 0) -> Learner:
    return Learner(make_network(seed), CONFIG, CPU, torch.float32, objective=ConstrainedTDObjective)


def random_tensors(seed: int) -> list[Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=g) for shape in ((7, 3), (7,), (2, 7))]


def inner_product(left: list[Tensor], right: list[Tensor]) -> float:
    return sum(float((x.double() * y.double()).sum()) for x, y in zip(left, right, strict=True))


def test_projection_is_orthogonal_and_removes_one_component_only() -> None:
    for seed in range(10):
        g, d = random_tensors(seed), random_tensors(seed + 100)
        projected = project_orthogonal(g, d)
        assert inner_product(projected, d) == pytest.approx(0, abs=1e-4)
        share = inner_product(g, d) / inner_product(d, d)
        removed = [x - y for x, y in zip(g, projected, strict=True)]
        for part, direction in zip(removed, d, strict=True):
            assert torch.allclose(part, share * direction, atol=1e-5)


def test_projection_keeps_orthogonal_gradient_and_zero_direction() -> None:
    g = random_tensors(0)
    zero = [torch.zeros_like(x) for x in g]
    assert all(torch.equal(x, y) for x, y in zip(project_orthogonal(g, zero), g, strict=True))
    ours, theirs = [torch.tensor([3.0, 4.0])], [torch.tensor([0.0, 2.0])]
    assert project_orthogonal(ours, theirs)[0].tolist() == [3.0, 0.0]


def test_mean_value_gradient_by_hand() -> None:
    """The mean over 4 items of f(x', a'), the second item terminal."""
    q, a = torch.zeros(4, 3), torch.tensor([2, 0, 1, 1])
    grad = mean_value_gradient(q, a, torch.tensor([1.0, 0.0, 1.0, 1.0]))
    quarter = [[0, 0, 0.25], [0, 0, 0], [0, 0.25, 0], [0, 0.25, 0]]
    assert grad.tolist() == quarter


def mean_next_value(network: nn.Module, b: Batch, a_next: Tensor) -> Tensor:
    """The mean of f(x', a') over the batch, 0 for terminal x'."""
    q = network(b.x_next).gather(-1, a_next.unsqueeze(-1)).squeeze(-1)
    return torch.where(b.discount > 0, q, 0.0).mean()


def constrained_gradient(network: nn.Module, b: Batch) -> list[Tensor]:
    """The projected gradient by autograd in float64; the loss has the paper's form, without TC."""
    parameters = list(network.parameters())
    loss = printed_loss(network, copy.deepcopy(network), b, CONFIG.margin)  # TC: gradient 0
    g = torch.autograd.grad(loss, parameters)
    value = mean_next_value(network, b, network(b.x_next).argmax(-1))
    d = torch.autograd.grad(value, parameters)
    flat_g, flat_d = (torch.cat([t.flatten() for t in ts]) for ts in (g, d))
    unit = flat_d / flat_d.norm()
    flat = flat_g - (flat_g @ unit) * unit
    return [t.view_as(p) for t, p in zip(flat.split([p.numel() for p in g]), g, strict=True)]


def test_update_is_adam_step_on_projected_gradient() -> None:
    """The target network is another one: it must not matter."""
    learner = make_learner()
    learner.target_weights.load_state_dict(make_network(1).state_dict())
    online = make_network().double()
    adam = torch.optim.Adam(online.parameters(), lr=1e-2, eps=0.01 / 256)
    for k in range(5):
        b = without_floor(make_batch(32, seed=k, agent=24))
        run_update(learner, b)
        for p, gradient in zip(
            online.parameters(), constrained_gradient(online, to_float64(b)), strict=True
        ):
            p.grad = gradient
        adam.step()
    for ours, theirs in zip(learner.online_network.parameters(), online.parameters(), strict=True):
        assert torch.allclose(ours.double(), theirs, atol=2e-5)


def learner_gradient(b: Batch, objective: type[Objective]) -> list[Tensor]:
    """The gradient that one update of a learner applies."""
    learner = Learner(make_network(), CONFIG, CPU, torch.float32, objective=objective)
    applied: list[Tensor] = []

    def record(gradients: Sequence[Tensor], loss: Tensor) -> Tensor:
        applied.extend(g.double() for g in gradients)
        return loss

    learner.apply_gradients = record
    run_update(learner, b)
    return applied


@torch.no_grad()
def test_small_step_keeps_mean_next_value() -> None:
    """By finite differences along the learner's gradient, with and without the constraint."""
    b = without_floor(make_batch(32, agent=24))
    network, changes = make_network().double(), []
    a_next = network(b.x_next.double()).argmax(-1)
    for objective in (ConstrainedTDObjective, Objective):
        with torch.enable_grad():
            direction, values = learner_gradient(b, objective), []
        for size in (1e-5, -1e-5):
            moved = copy.deepcopy(network)
            for p, step in zip(moved.parameters(), direction, strict=True):
                p += size * step
            values.append(float(mean_next_value(moved, to_float64(b), a_next)))
        changes.append(abs(values[0] - values[1]) / 2e-5)
    assert changes[0] < 1e-5
    assert changes[1] > 1e-3


def test_priority_uses_online_network_only() -> None:
    b, learner = make_batch(32, agent=24), make_learner()
    before = learner.compute_priority(b)
    learner.target_weights.load_state_dict(make_network(1).state_dict())
    assert torch.equal(learner.compute_priority(b), before)
