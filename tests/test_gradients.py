"""Gradients of the losses against central differences in float64.

Inputs are random and fixed. Within a step of a kink, the differences would not match.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from lookfurther.config import LearnerConfig
from lookfurther.learner import Learner
from lookfurther.networks.dueling import DuelingNetwork
from lookfurther.networks.heads import PopArtHead
from lookfurther.objective import Objective
from lookfurther.objective_variants import ConstrainedTDObjective, PopArtObjective
from lookfurther.transforms import IDENTITY
from lookfurther.types import Batch
from tests.test_constrained_td import mean_next_value
from tests.test_learner import CPU, make_batch, make_network, run_update, to_float64
from tests.test_popart import make_popart_network

ITEMS, ACTIONS = 8, 4
TERMS = ("td", "tc", "im")
WEIGHTS: dict[str, Any] = {"tc_weight": 0.7, "im_weight": 1.3}


def central_differences(f: Callable[[Tensor], Tensor], x: Tensor, step: float = 1e-6) -> Tensor:
    """df/dx of a scalar function, one element of x at a time."""
    result = torch.zeros_like(x)
    for i in range(x.numel()):
        shift = torch.zeros_like(x)
        shift.view(-1)[i] = step
        result.view(-1)[i] = (f(x + shift) - f(x - shift)).detach() / (2 * step)
    return result


def random_values(seed: int = 8) -> tuple[Tensor, Tensor, Batch]:
    """Values at x, then at x' [2B, A], values of the target network [B, A], and a batch."""
    g = torch.Generator().manual_seed(seed)
    q_both, q_target = (
        2 * torch.randn(rows, ACTIONS, generator=g, dtype=torch.float64)
        for rows in (2 * ITEMS, ITEMS)
    )
    return q_both, q_target, to_float64(make_batch(ITEMS, seed, agent=ITEMS // 2))


def make_objective(**settings: Any) -> Objective:
    return Objective(LearnerConfig(**settings), make_network(), make_network(1))


def assert_gradient(
    objective: Objective, q_both: Tensor, q_target: Tensor, b: Batch, expected: Tensor
) -> None:
    gradient = objective.compute_loss(q_both, q_target, b).grad_q
    torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("td_loss", ["huber", "squared"])
@pytest.mark.parametrize("term", TERMS)
def test_gradient_of_each_term(term: str, td_loss: str) -> None:
    q_both, q_target, b = random_values()
    objective = make_objective(td_loss=td_loss)

    def loss(q: Tensor) -> Tensor:
        return (b.w * objective.loss_terms(q, q_target, b)[TERMS.index(term)]).mean()

    q = q_both.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(q), q)
    torch.testing.assert_close(gradient, central_differences(loss, q_both), rtol=1e-6, atol=1e-8)
    assert (gradient[:ITEMS] != 0).any() == (term != "tc")
    assert (gradient[ITEMS:] != 0).any() == (term == "tc")


def test_random_values_are_on_both_sides_of_kinks() -> None:
    q_both, q_target, b = random_values()
    _, tc, im, error = make_objective().loss_terms(q_both, q_target, b)
    assert 0 < (error.abs() > 1).sum() < ITEMS
    assert 0 < (tc > 0.5).sum() < (b.discount > 0).sum() < ITEMS
    assert 0 < (im > 0).sum() < b.e.sum() < ITEMS


@pytest.mark.parametrize("double_q", [True, False])
@pytest.mark.parametrize("td_loss", ["huber", "squared"])
def test_gradient_of_weighted_loss(td_loss: str, double_q: bool) -> None:
    """The differences are those of the terms, weighted here."""
    q_both, q_target, b = random_values()
    objective = make_objective(td_loss=td_loss, double_q=double_q, **WEIGHTS)

    def loss(q: Tensor) -> Tensor:
        td, tc, im, _ = objective.loss_terms(q, q_target, b)
        return (b.w * (td + 0.7 * tc + 1.3 * im)).sum() / ITEMS

    assert_gradient(objective, q_both, q_target, b, central_differences(loss, q_both))


def make_head(seed: int, level: float) -> tuple[DuelingNetwork, Tensor, Tensor]:
    """A network, and the moments of its PopArt head, those of targets at a level."""
    network = make_popart_network(seed)
    assert isinstance(network.head, PopArtHead)
    network.head.update_moments(level + 3 * torch.randn(64), 0.5)
    return network, network.head.moments.mean, network.head.moments.std


def test_gradient_of_popart_with_fixed_moments() -> None:
    """The paper's loss, of normalised values and of rewards that give the normalised targets."""
    q_both, q_target, b = random_values()
    online, mean, std = make_head(0, 2.0)
    target, target_mean, target_std = make_head(1, -1.0)
    config = LearnerConfig(value_transform="identity", **WEIGHTS)
    objective, plain = PopArtObjective(config, online, target), Objective(config, online, target)
    plain.value_transform = IDENTITY
    normalised = b._replace(r=(b.r - (1 - b.discount) * mean) / std, floor=(b.floor - mean) / std)
    bootstrap = (target_std * q_target + target_mean - mean) / std

    def loss(q: Tensor) -> Tensor:
        return plain.weighted_loss(q, bootstrap, normalised)[0]

    assert_gradient(objective, q_both, q_target, b, central_differences(loss, q_both))


def test_gradient_of_constrained_td_with_fixed_bootstrap() -> None:
    """The bootstrap value is that of the online network, but a constant."""
    q_both, q_target, b = random_values()
    config = LearnerConfig(constrained_td=True, im_weight=1.3, tc_weight=0.0)
    objective = ConstrainedTDObjective(config, make_network(), make_network(1))
    plain, fixed = Objective(config, make_network(), make_network(1)), q_both[ITEMS:].clone()

    def loss(q: Tensor) -> Tensor:
        return plain.weighted_loss(q, fixed, b)[0]

    assert_gradient(objective, q_both, q_target, b, central_differences(loss, q_both))


def applied_gradient(objective: type[Objective], b: Batch, config: LearnerConfig) -> Tensor:
    """The gradient that one update of a learner applies, flat."""
    learner = Learner(make_network(), config, CPU, torch.float32, objective=objective)
    learner.target_weights.load_state_dict(make_network(1).state_dict())
    applied: list[Tensor] = []

    def record(gradients: Sequence[Tensor], loss: Tensor) -> Tensor:
        applied.extend(g.double().flatten() for g in gradients)
        return loss

    learner.apply_gradients = record
    run_update(learner, b)
    return torch.cat(applied)


def with_parameters(network: nn.Module, flat: Tensor) -> nn.Module:
    """A copy of a network with other parameters."""
    moved = copy.deepcopy(network)
    vector_to_parameters(flat, moved.parameters())
    return moved


@pytest.mark.parametrize("objective", [Objective, ConstrainedTDObjective])
def test_update_applies_gradient_of_every_parameter(objective: type[Objective]) -> None:
    """Through the network in float32; constrained TD without the part along that of f(x', a')."""
    is_constrained = objective is ConstrainedTDObjective
    b = make_batch(32, agent=24)
    config = LearnerConfig(
        agent_items=24, expert_items=8, tc_weight=0.0 if is_constrained else 0.7, im_weight=1.3
    )
    network, exact = make_network().double(), to_float64(b)
    bootstrap = (network if is_constrained else make_network(1).double())(exact.x_next).detach()
    plain, theta = Objective(config, network, network), parameters_to_vector(network.parameters())

    def loss(theta: Tensor) -> Tensor:
        q_both = with_parameters(network, theta)(exact.x_both.flatten(0, 1))
        return plain.weighted_loss(q_both, bootstrap, exact)[0]

    def next_value(theta: Tensor) -> Tensor:
        return mean_next_value(with_parameters(network, theta), exact, bootstrap.argmax(-1))

    expected = central_differences(loss, theta.detach())
    if is_constrained:
        d = central_differences(next_value, theta.detach())
        expected -= (expected @ d) / (d @ d) * d
    torch.testing.assert_close(
        applied_gradient(objective, b, config), expected, rtol=1e-4, atol=1e-6
    )
