"""C51: projection against the published algorithm, loss, priority and expected values."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lookfurther.config import LearnerConfig, NetworkConfig
from lookfurther.learner import Learner
from lookfurther.networks.dueling import DuelingNetwork, make_network_builder
from lookfurther.objective_variants import CategoricalObjective
from lookfurther.types import Spec
from lookfurther.variants.categorical import (
    cross_entropy,
    entropy,
    expected_values,
    kl_divergence,
    logits_of_action,
    project_distribution,
)
from tests.test_learner import CPU, h, h_inv, huber, make_batch, run_update, to_float64

SPEC = Spec("toy", (3,), 1, "float32", 4, 1.0)
ATOMS = torch.linspace(-4, 4, 9)


def project_slowly(target_atoms: list[float], p: list[float], atoms: list[float]) -> list[float]:
    """Algorithm 1 of Bellemare et al., atom by atom."""
    m, low, high = [0.0] * len(atoms), atoms[0], atoms[-1]
    spacing = (high - low) / (len(atoms) - 1)
    for z, probability in zip(target_atoms, p, strict=True):
        b = (min(max(z, low), high) - low) / spacing
        lower, upper = math.floor(b), math.ceil(b)
        if lower == upper:
            m[lower] += probability
        else:
            m[lower] += probability * (upper - b)
            m[upper] += probability * (b - lower)
    return m


def random_distributions(size: int, seed: int) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(size, len(ATOMS), generator=g)).softmax(-1)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.floats(-12, 12, width=32), st.sampled_from([0.0, 0.5, 0.99, 1.0]))
def test_projection_matches_published_algorithm(seed: int, r: float, discount: float) -> None:
    p = random_distributions(3, seed)
    target_atoms = (r + discount * ATOMS).expand(3, -1)
    found = project_distribution(target_atoms, p, ATOMS)
    for row, (z, q) in enumerate(zip(target_atoms.tolist(), p.tolist(), strict=True)):
        assert found[row].tolist() == pytest.approx(project_slowly(z, q, ATOMS.tolist()), abs=1e-5)


def test_projection_keeps_mass_and_inner_mean() -> None:
    """Between the end atoms, splitting between neighbours preserves the mean."""
    p = random_distributions(50, 1)
    target_atoms = torch.linspace(-1, 1, 50).unsqueeze(-1) + 0.7 * ATOMS
    found = project_distribution(target_atoms, p, ATOMS)
    assert torch.allclose(found.sum(-1), torch.ones(50), atol=1e-5)
    assert torch.allclose((found * ATOMS).sum(-1), (p * target_atoms).sum(-1), atol=1e-4)


def test_projection_of_terminal_reward_by_hand() -> None:
    """A reward of 1.25 without bootstrapping: 3/4 on atom 1 and 1/4 on atom 2."""
    found = project_distribution(torch.full((1, 9), 1.25), random_distributions(1, 0), ATOMS)
    assert found[0].tolist() == pytest.approx([0, 0, 0, 0, 0, 0.75, 0.25, 0, 0], abs=1e-6)


def test_expected_values_by_hand() -> None:
    logits = torch.tensor([[[0.0, 0.0, 0.0], [0.0, -torch.inf, -torch.inf]]])
    assert expected_values(logits, torch.tensor([-1.0, 0.0, 4.0])).tolist() == [[1.0, -1.0]]


def test_cross_entropy_and_kl_by_hand() -> None:
    target, logits = torch.tensor([[0.5, 0.5, 0.0]]), torch.tensor([[0.25, 0.5, 0.25]]).log()
    assert float(cross_entropy(target, logits)) == pytest.approx(1.5 * math.log(2))
    assert float(entropy(target)) == pytest.approx(math.log(2))
    assert float(kl_divergence(target, logits)) == pytest.approx(0.5 * math.log(2))


def test_kl_is_zero_only_for_target_itself() -> None:
    p = random_distributions(20, 2)
    assert float(kl_divergence(p, p.log()).abs().max()) < 1e-5
    assert float(kl_divergence(p, random_distributions(20, 3).log()).min()) > 1e-2


def test_gradient_of_cross_entropy_is_difference_of_probabilities() -> None:
    p, logits = random_distributions(5, 4), torch.randn(5, 9, requires_grad=True)
    (gradient,) = torch.autograd.grad(cross_entropy(p, logits).sum(), logits)
    assert torch.allclose(gradient, logits.softmax(-1) - p, atol=1e-5)


def test_logits_of_action_selects_rows() -> None:
    logits = torch.arange(24.0).view(2, 3, 4)
    assert logits_of_action(logits, torch.tensor([2, 0])).tolist() == [
        [8.0, 9.0, 10.0, 11.0],
        [12.0, 13.0, 14.0, 15.0],
    ]


# The objective

NETWORK = NetworkConfig(hidden=(8,), head="categorical", atoms=9, v_min=-4.0, v_max=4.0)
CONFIG = LearnerConfig(agent_items=24, expert_items=8, priority_type="abs")


def make_categorical_network(seed: int = 0) -> DuelingNetwork:
    torch.manual_seed(seed)
    network = make_network_builder(NETWORK)(SPEC)
    assert isinstance(network, DuelingNetwork)
    return network


def make_learner(seed: int = 0) -> Learner:
    network = make_categorical_network(seed)
    learner = Learner(network, CONFIG, CPU, torch.float32, objective=CategoricalObjective)
    learner.target_weights.load_state_dict(make_categorical_network(seed + 1).state_dict())
    return learner


def test_network_acts_on_expected_values() -> None:
    network, x = make_categorical_network(), torch.randn(5, 3)
    logits = network.head_outputs(network.prepare_inputs(x))
    assert logits.shape == (5, 4, 9)
    assert torch.allclose(network(x), (logits.softmax(-1) * ATOMS).sum(-1), atol=1e-6)


def test_advantage_that_is_equal_for_all_actions_cancels() -> None:
    network, x = make_categorical_network(), torch.randn(5, 3)
    before = network(x)
    with torch.no_grad():
        network.head.advantage.bias.add_(torch.randn(9).repeat(4))
    assert torch.allclose(network(x), before, atol=1e-5)


def test_loss_terms_match_slow_reference() -> None:
    """Cross-entropy with h in the target, TC and IM of expected values, KL as the priority."""
    learner, b = make_learner(), make_batch(32, agent=24)
    online, target = make_categorical_network(), make_categorical_network(1)
    priority, metrics = run_update(learner, b)
    totals = dict.fromkeys(("loss_td", "loss_tc", "loss_im"), 0.0)
    for i in range(32):
        logits, logits_next, frozen = (
            network.head_outputs(network.prepare_inputs(x[None]))[0].detach()
            for network, x in ((online, b.x[i]), (online, b.x_next[i]), (target, b.x_next[i]))
        )
        q, q_next, q_frozen = (
            (row.softmax(-1) * ATOMS).sum(-1) for row in (logits, logits_next, frozen)
        )
        a, a_next = int(b.a[i]), int(q_next.argmax())
        moved = h(b.r[i] + b.discount[i] * h_inv(ATOMS))
        m = project_slowly(moved.tolist(), frozen[a_next].softmax(-1).tolist(), ATOMS.tolist())
        log_p = logits[a].log_softmax(-1).tolist()
        td = -sum(x * y for x, y in zip(m, log_p, strict=True))
        kl = td + sum(x * math.log(x) for x in m if x > 0)
        assert float(priority[i]) == pytest.approx(kl, abs=1e-4)
        tc = float(huber(q_next[a_next] - q_frozen[a_next])) * (float(b.discount[i]) > 0)
        rivals = [float(q[j]) + (CONFIG.margin if j != a else 0) for j in range(4)]
        im = float(b.e[i]) * (max(rivals) - float(q[a]))
        for name, term in zip(totals, (td, tc, im), strict=True):
            totals[name] += float(b.w[i]) * term / 32
    for name, total in totals.items():
        assert float(metrics[name]) == pytest.approx(total, rel=1e-3), name
    assert float(metrics["loss"]) == pytest.approx(sum(totals.values()), rel=1e-3)
    assert float(metrics["q_mean"]) == pytest.approx(online(b.x).mean().item(), abs=1e-5)


def test_gradient_of_logits_matches_finite_differences() -> None:
    learner, b = make_learner(), to_float64(make_batch(6, agent=4))
    learner.objective.head.atoms = ATOMS.double()  # type: ignore[attr-defined]
    g = torch.Generator().manual_seed(0)
    target = torch.randn(6, 4, 9, generator=g, dtype=torch.float64)
    logits = torch.randn(12, 4, 9, generator=g, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x: learner.objective.weighted_loss(x, target, b)[0], logits
    )


def test_learner_fits_projected_rewards() -> None:
    """One state per action and terminal rewards: the values become the mean rewards."""
    learner = Learner(
        make_categorical_network(),
        LearnerConfig(agent_items=32, expert_items=0, learning_rate=2e-2, tc_weight=0.0),
        CPU,
        torch.float32,
        objective=CategoricalObjective,
    )
    base = make_batch(32)
    x = torch.ones(2, 32, 3)
    for k in range(120):
        a = torch.arange(32) % 4
        r = torch.where(torch.arange(32) // 4 % 2 == 0, 2.0, 0.0) * (a == 1)
        batch = base._replace(x_both=x, a=a, r=r, discount=torch.zeros(32), w=torch.ones(32))
        run_update(learner, batch)
        del k
    values = learner.online_network(torch.ones(1, 3))[0].tolist()
    expected = float(h(torch.tensor(2.0))) / 2
    assert values == pytest.approx([0.0, expected, 0.0, 0.0], abs=0.15)
