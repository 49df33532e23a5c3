"""RMSProp, L2, squared TD errors and DQN's next action, against independent arithmetic."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lookfurther.config import LearnerConfig
from lookfurther.learner import Learner
from lookfurther.losses import NEXT_ACTIONS, TD_LOSSES, add_l2_gradients
from lookfurther.optimizers.adam import Adam
from lookfurther.optimizers.rmsprop import RMSProp
from tests.test_learner import CPU, make_batch, make_network, run_update, without_floor

TRUE = torch.tensor(True)


def test_rmsprop_matches_a_plain_loop() -> None:
    """Element by element in float64, with the regularizer inside the root."""
    rng = np.random.default_rng(0)
    start, gradients = rng.normal(size=(3, 4)), rng.normal(size=(6, 3, 4))
    theta = torch.tensor(start)
    optimizer = RMSProp([theta], learning_rate=0.1, eps=1e-3)
    expected, mean, square = start.copy(), np.zeros((3, 4)), np.zeros((3, 4))
    for g in gradients:
        optimizer.step([torch.tensor(g)], TRUE)
        mean = 0.95 * mean + 0.05 * g
        square = 0.95 * square + 0.05 * g**2
        expected -= 0.1 * g / np.sqrt(square - mean**2 + 1e-3)
    assert theta.numpy() == pytest.approx(expected, rel=1e-12)


def test_rmsprop_skips_gradients_that_are_not_finite() -> None:
    theta = torch.ones(2)
    optimizer = RMSProp([theta], learning_rate=0.1, eps=1e-3)
    optimizer.step([torch.full((2,), 3.0)], TRUE)
    before = copy.deepcopy((theta, optimizer.state()))
    optimizer.step([torch.tensor([1.0, torch.nan])], ~TRUE)
    assert torch.equal(theta, before[0])
    assert all(torch.equal(t, before[1][name]) for name, t in optimizer.state().items())


def test_rmsprop_continues_from_its_state() -> None:
    gradients = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    theta, resumed = torch.zeros(3), torch.zeros(3)
    optimizer = RMSProp([theta], 0.1, 1e-3)
    for g in gradients[:2]:
        optimizer.step([g], TRUE)
    other = RMSProp([resumed.copy_(theta)], 0.1, 1e-3)
    other.load_state({name: t.clone() for name, t in optimizer.state().items()})
    for g in gradients[2:]:
        optimizer.step([g], TRUE)
        other.step([g], TRUE)
    assert torch.equal(theta, resumed)


@pytest.mark.parametrize("optimizer_type", [Adam, RMSProp])
def test_step_is_proportional_to_the_learning_rate_of_its_time(
    optimizer_type: type[Adam] | type[RMSProp],
) -> None:
    """Moments do not depend on the rate, so a rate of a quarter gives a quarter of the step."""
    gradients = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    thetas = torch.zeros(5, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)
    optimizers = [optimizer_type([theta], 0.1, 1e-3) for theta in thetas]
    steps = []
    for g in gradients:
        before = [theta.clone() for theta in thetas]
        for optimizer in optimizers:
            optimizer.step([g.double()], TRUE)
        steps.append([theta - old for theta, old in zip(thetas, before, strict=True)])
        optimizers[1].learning_rate.fill_(0.025)
    assert torch.equal(steps[0][0], steps[0][1])
    for constant, quarter in steps[1:]:
        assert torch.allclose(quarter, constant / 4, rtol=1e-9)
    optimizers[1].learning_rate.fill_(0.0)
    before_zero = thetas[1].clone()
    optimizers[1].step([gradients[0].double()], TRUE)
    assert torch.equal(thetas[1], before_zero)


def test_l2_gradient_is_that_of_the_penalty() -> None:
    """Against finite differences of weight |theta|^2 in float64."""
    theta = torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    (gradient,) = add_l2_gradients([torch.zeros(5)], [theta], weight=0.3)
    for i in range(5):
        step = torch.zeros(5, dtype=torch.float64)
        step[i] = 1e-6
        penalty = [0.3 * (theta + sign * step).square().sum() for sign in (1, -1)]
        assert float(gradient[i]) == pytest.approx(float(penalty[0] - penalty[1]) / 2e-6, rel=1e-6)


@pytest.mark.parametrize(("name", "values"), [("huber", [0.02, 2.5]), ("squared", [0.02, 4.5])])
def test_td_losses_by_hand(name: str, values: list[float]) -> None:
    for sign in (1.0, -1.0):
        errors = sign * torch.tensor([0.2, 3.0], dtype=torch.float64)
        assert TD_LOSSES[name](errors).tolist() == pytest.approx(values, rel=1e-12)


def test_next_action_is_chosen_by_the_configured_network() -> None:
    online, target = torch.tensor([[1.0, 3.0, 2.0]]), torch.tensor([[5.0, 4.0, 6.0]])
    assert NEXT_ACTIONS[True](online, target).tolist() == [1]
    assert NEXT_ACTIONS[False](online, target).tolist() == [2]


def dqn_loss(network: nn.Module, target: nn.Module, seed: int, l2_weight: float) -> Tensor:
    """w (r + gamma max_b Q^-(x', b) - Q(x, a))^2 / 2 item by item, plus the L2 penalty."""
    b, total = without_floor(make_batch(16, seed)), torch.zeros((), dtype=torch.float64)
    for i in range(16):
        with torch.no_grad():
            bootstrap = target(b.x_next[i].double()).max()
        error = network(b.x[i].double())[b.a[i]] - b.r[i] - b.discount[i] * bootstrap
        total = total + b.w[i] * error**2 / 2
    penalty = sum((p**2).sum() for p in network.parameters())
    return total / 16 + l2_weight * penalty


def test_update_is_rmsprop_step_on_squared_dqn_loss_with_l2() -> None:
    """The learner with all four settings, against autograd of the sum and a plain RMSProp."""
    config = LearnerConfig(
        agent_items=16,
        expert_items=0,
        learning_rate=1e-2,
        optimizer="rmsprop",
        rmsprop_eps=1e-2,
        td_loss="squared",
        double_q=False,
        l2_weight=0.05,
        value_transform="identity",
        tc_weight=0.0,
    )
    learner = Learner(make_network(), config, CPU, torch.float32)
    learner.target_weights.load_state_dict(make_network(1).state_dict())
    online, target = make_network().double(), make_network(1).double()
    plain = RMSProp(list(online.parameters()), 1e-2, 1e-2)
    for seed in range(4):
        run_update(learner, without_floor(make_batch(16, seed)))
        loss = dqn_loss(online, target, seed, l2_weight=0.05)
        plain.step(list(torch.autograd.grad(loss, list(online.parameters()))), TRUE)
    for ours, theirs in zip(learner.online_network.parameters(), online.parameters(), strict=True):
        assert torch.allclose(ours.double(), theirs, rtol=1e-3, atol=1e-5)
