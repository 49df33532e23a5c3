"""Propositions 3.1 and A.1: value iteration with T_h, by td_target itself."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lookfurther.losses import double_q_action, td_target, value_of_action
from lookfurther.transforms import ValueTransform, make_value_transform

EPS = (1e-3, 1e-2, 0.1, 1.0)
seeds = st.integers(0, 2**32 - 1)


class Mdp(NamedTuple):
    """A finite MDP; P [X, A, X] sums to 1, terminal states have the value 0."""

    reward: Tensor  # [X, A]
    transition: Tensor  # [X, A, X]
    terminal: Tensor  # [X] bool
    gamma: float


def random_mdp(seed: int, gamma: float, deterministic: bool, scale: float = 10.0) -> Mdp:
    """2 to 6 states, 1 to 4 actions, rewards of the given scale, sometimes terminal states."""
    rng = np.random.default_rng(seed)
    states, actions = int(rng.integers(2, 7)), int(rng.integers(1, 5))
    if deterministic:
        transition = np.eye(states)[rng.integers(states, size=(states, actions))]
    else:
        transition = rng.dirichlet(np.ones(states), size=(states, actions))
    reward = scale * rng.normal(size=(states, actions))
    tensors = map(torch.from_numpy, (reward, transition, rng.random(states) < 0.2))
    return Mdp(*tensors, gamma=gamma)


def random_q(mdp: Mdp, seed: int, scale: float) -> Tensor:
    rng = np.random.default_rng(seed + 1)
    return torch.from_numpy(scale * rng.normal(size=tuple(mdp.reward.shape)))


def apply_operator(q: Tensor, mdp: Mdp, transform: ValueTransform) -> Tensor:
    """(T_h Q)(x, a): the mean over x' of one sample's target."""
    v = value_of_action(q, double_q_action(q))
    discount = mdp.gamma * (~mdp.terminal).double()
    sample = td_target(mdp.reward.unsqueeze(-1), discount, v, transform)  # [X, A, X]
    return (mdp.transition * sample).sum(-1)


def apply_operator_repeatedly(q: Tensor, mdp: Mdp, transform: ValueTransform, times: int) -> Tensor:
    for _ in range(times):
        q = apply_operator(q, mdp, transform)
    return q


def optimal_q(mdp: Mdp) -> Tensor:
    """Q* by policy iteration, with an exact linear solve for each policy and no transform."""
    reward, transition = mdp.reward.numpy(), mdp.transition.numpy()
    discount = mdp.gamma * ~mdp.terminal.numpy()
    x = np.arange(len(reward))
    policy = np.zeros(len(reward), dtype=int)
    while True:
        v = np.linalg.solve(np.eye(len(x)) - transition[x, policy] * discount, reward[x, policy])
        q = reward + transition @ (discount * v)
        if (q.max(-1) - q[x, policy]).max() < 1e-9 * (1 + abs(q).max()):
            return torch.from_numpy(q)
        policy = q.argmax(-1)


def steps_to_converge(gamma: float) -> int:
    """The number of backups k with gamma^k below 1e-12."""
    return math.ceil(math.log(1e-12) / math.log(gamma))


@settings(deadline=None, max_examples=25)
@given(seeds, st.floats(0.1, 0.9), st.floats(1e-3, 1e3), st.booleans())
def test_linear_h_scales_optimal_values(
    seed: int, gamma: float, alpha: float, deterministic: bool
) -> None:
    """Prop. 3.1 (i): T_h^k Q -> alpha Q* for h(z) = alpha z, in any MDP."""
    mdp = random_mdp(seed, gamma, deterministic)
    transform = ValueTransform(lambda z: alpha * z, lambda x: x / alpha)
    result = apply_operator_repeatedly(
        random_q(mdp, seed, alpha * 10), mdp, transform, steps_to_converge(gamma)
    )
    torch.testing.assert_close(result, alpha * optimal_q(mdp), rtol=1e-8, atol=1e-8 * alpha)


VALUE_TRANSFORMS = {
    **{f"h, eps {eps}": make_value_transform("h", eps) for eps in EPS},
    "identity": make_value_transform("identity", 1e-2),
    "another": ValueTransform(torch.asinh, torch.sinh),
}


@pytest.mark.parametrize("name", VALUE_TRANSFORMS)
@settings(deadline=None, max_examples=10)
@given(seeds, st.floats(0.1, 0.9))
def test_deterministic_values_converge_to_h_of_optimal(name: str, seed: int, gamma: float) -> None:
    """Prop. 3.1 (ii): T_h^k Q -> h(Q*) for strictly increasing h and any gamma < 1."""
    mdp, transform = random_mdp(seed, gamma, deterministic=True), VALUE_TRANSFORMS[name]
    result = apply_operator_repeatedly(
        random_q(mdp, seed, 3.0), mdp, transform, steps_to_converge(gamma)
    )
    torch.testing.assert_close(result, transform.h(optimal_q(mdp)), rtol=1e-7, atol=1e-7)


def test_paper_discount_converges_to_optimal_policy() -> None:
    """gamma = 0.999 far exceeds 1 / (L_h L_h^-1), yet h^-1 of the iterates approaches Q*."""
    h, h_inv = transform = make_value_transform("h", 1e-2)
    mdp, k = random_mdp(3, 0.999, deterministic=True, scale=1000.0), 2000
    q_star = optimal_q(mdp)
    result = apply_operator_repeatedly(h(torch.zeros_like(q_star)), mdp, transform, k)
    assert (h_inv(result) - q_star).abs().max() <= 0.999**k * q_star.abs().max() * (1 + 1e-6)
    torch.testing.assert_close(
        apply_operator(h(q_star), mdp, transform), h(q_star), rtol=1e-12, atol=1e-12
    )
    assert torch.equal(double_q_action(result), double_q_action(q_star))


@settings(deadline=None, max_examples=150)
@given(seeds, st.sampled_from(EPS), st.floats(0.01, 0.999), st.sampled_from([0.1, 10.0, 1e4]))
def test_operator_contracts_in_stochastic_mdps(
    seed: int, eps: float, share: float, scale: float
) -> None:
    """Prop. A.1: |T_h Q - T_h U| <= gamma L_h L_h^-1 |Q - U| for gamma < 1 / (L_h L_h^-1)."""
    lipschitz = (0.5 + eps) / eps
    mdp = random_mdp(seed, share / lipschitz, deterministic=False)
    transform = make_value_transform("h", eps)
    q, u = random_q(mdp, seed, scale), random_q(mdp, seed + 1, scale)
    before = (q - u).abs().max()
    after = (apply_operator(q, mdp, transform) - apply_operator(u, mdp, transform)).abs().max()
    assert after <= share * before * (1 + 1e-9)


@settings(deadline=None, max_examples=5)
@given(seeds, st.sampled_from([0.1, 1.0]), st.floats(0.1, 0.8))
def test_contraction_has_one_fixed_point(seed: int, eps: float, share: float) -> None:
    """A consequence of Prop. A.1: iterates converge to one point from any start."""
    mdp = random_mdp(seed, share * eps / (0.5 + eps), deterministic=False)
    transform = make_value_transform("h", eps)
    ends = [
        apply_operator_repeatedly(random_q(mdp, s, 1e3), mdp, transform, 200)
        for s in (seed, seed + 7)
    ]
    torch.testing.assert_close(*ends, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(
        apply_operator(ends[0], mdp, transform), ends[0], rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("eps", EPS)
def test_contraction_factor_is_tight(eps: float) -> None:
    """Far from 0, h^-1 has the gradient 1/eps; a reward that cancels it meets h's 1/2 + eps."""
    transform = make_value_transform("h", eps)
    gamma = 0.9 * eps / (0.5 + eps)
    q, step = torch.tensor([[1e6 / eps]], dtype=torch.float64), 1e-3
    certain = torch.ones(1, 1, 1, dtype=torch.float64)
    mdp = Mdp(-gamma * transform.h_inv(q), certain, torch.tensor([False]), gamma)
    moved = (apply_operator(q + step, mdp, transform) - apply_operator(q, mdp, transform)).item()
    assert moved / step == pytest.approx(0.9, rel=1e-2)


def test_stochastic_fixed_point_is_not_h_of_optimal() -> None:
    """The remark of App. A by hand: a fair coin between values 0 and 24 of x', at gamma = 1.

    The operator averages h(0) = 0 and h(24) = 4.24 to 2.12, below h(12).
    """
    reward = torch.tensor([[0.0], [0.0], [24.0], [0.0]], dtype=torch.float64)
    transition = torch.zeros(4, 1, 4, dtype=torch.float64)
    transition[0, 0, 1] = transition[0, 0, 2] = 0.5
    transition[1:, 0, 3] = 1.0
    terminal = torch.tensor([False, False, False, True])
    mdp, transform = Mdp(reward, transition, terminal, 1.0), make_value_transform("h", 1e-2)
    result = apply_operator_repeatedly(torch.zeros(4, 1, dtype=torch.float64), mdp, transform, 3)
    assert result[:3, 0].tolist() == pytest.approx([2.12, 0.0, 4.24], rel=1e-14)
    assert optimal_q(mdp)[0].item() == pytest.approx(12.0)
    assert result[0] < transform.h(optimal_q(mdp)[0])
