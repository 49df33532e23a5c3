"""Value floors and advantage learning: what they preserve on random deterministic MDPs."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lookfurther.losses import (
    MAX_WIDENED_GAP,
    double_q_action,
    raise_to_floor,
    td_target,
    value_of_action,
    widen_action_gap,
)
from lookfurther.returns import discounted_returns
from lookfurther.transforms import ValueTransform, make_value_transform
from lookfurther.types import END, TERMINAL, TRUNCATED
from tests.test_operator import Mdp, optimal_q, random_mdp, random_q, steps_to_converge

TRANSFORM_H = make_value_transform("h", 1e-2)
seeds = st.integers(0, 2**32 - 1)


def apply_operator_with_floor(q: Tensor, mdp: Mdp, floor: Tensor, alpha: float = 0.0) -> Tensor:
    """One backup of every (x, a) with a lower bound [X] of V*, and advantage learning."""
    v = raise_to_floor(value_of_action(q, double_q_action(q)), floor, TRANSFORM_H)
    discount = mdp.gamma * (~mdp.terminal).double()
    sample = td_target(mdp.reward.unsqueeze(-1), discount, v, TRANSFORM_H)
    target = (mdp.transition * sample).sum(-1)
    actions = torch.arange(q.shape[1])
    columns = [widen_action_gap(target[:, a], q, a.expand(len(q)), alpha) for a in actions]
    return torch.stack(columns, -1)


def returns_of_random_policy(mdp: Mdp, seed: int) -> Tensor:
    """[X]: the return of one deterministic policy from every state, as in a demonstration."""
    rng, x = np.random.default_rng(seed), np.arange(len(mdp.reward))
    policy = rng.integers(mdp.reward.shape[1], size=len(x))
    reward = mdp.reward.numpy()[x, policy]
    follow = mdp.transition.numpy()[x, policy] * (mdp.gamma * ~mdp.terminal.numpy())
    result = torch.from_numpy(np.linalg.solve(np.eye(len(x)) - follow, reward))
    return torch.where(torch.from_numpy(rng.random(len(x)) < 0.7), result, -torch.inf)


@settings(deadline=None, max_examples=40)
@given(seeds, st.floats(0.1, 0.9))
def test_floor_keeps_fixed_point(seed: int, gamma: float) -> None:
    mdp = random_mdp(seed, gamma, deterministic=True)
    floor, q = returns_of_random_policy(mdp, seed), random_q(mdp, seed, 3.0)
    for _ in range(steps_to_converge(gamma)):
        q = apply_operator_with_floor(q, mdp, floor)
    torch.testing.assert_close(q, TRANSFORM_H.h(optimal_q(mdp)), rtol=1e-7, atol=1e-7)


@settings(deadline=None, max_examples=40)
@given(seeds, st.floats(0.1, 0.9))
def test_floor_keeps_values_below_optimal(seed: int, gamma: float) -> None:
    mdp = random_mdp(seed, gamma, deterministic=True)
    floor, best = returns_of_random_policy(mdp, seed), TRANSFORM_H.h(optimal_q(mdp))
    q = best - random_q(mdp, seed, 3.0).abs()
    for _ in range(30):
        q = apply_operator_with_floor(q, mdp, floor)
        assert (q <= best + 1e-9 * (1 + best.abs())).all()


@settings(deadline=None, max_examples=40)
@given(seeds, st.floats(0.1, 0.8), st.floats(0.1, 0.9))
def test_advantage_learning_keeps_best_values_and_widens_gaps(
    seed: int, gamma: float, alpha: float
) -> None:
    """V stays h(V*), and a gap g of h(Q*) becomes min(g / (1 - alpha), g + alpha)."""
    mdp = random_mdp(seed, gamma, deterministic=True)
    none, q = torch.full((len(mdp.reward),), -torch.inf), random_q(mdp, seed, 3.0)
    for _ in range(steps_to_converge(max(gamma, alpha)) * 2):
        q = apply_operator_with_floor(q, mdp, none, alpha)
    plain = TRANSFORM_H.h(optimal_q(mdp))
    best = plain.max(-1, keepdim=True).values
    gap = best - plain
    widened = torch.minimum(gap / (1 - alpha), gap + alpha * MAX_WIDENED_GAP)
    torch.testing.assert_close(q, best - widened, rtol=1e-5, atol=1e-5)


@given(
    st.lists(
        st.tuples(st.floats(-10, 10), st.sampled_from([0, 0, 0, TERMINAL, TRUNCATED])),
        min_size=1,
        max_size=20,
    ),
    st.floats(0, 1),
)
def test_discounted_returns_stop_at_episode_end(steps: list, gamma: float) -> None:
    reward = torch.tensor([r for r, _ in steps])
    mark = torch.tensor([m for _, m in steps], dtype=torch.uint8)
    result = discounted_returns(reward, mark, gamma)
    for t in range(len(steps)):
        ends = [i for i in range(t, len(steps)) if steps[i][1] & END]
        stop = ends[0] if ends else len(steps)
        expected = sum(gamma ** (i - t) * float(reward[i]) for i in range(t, stop))
        assert abs(float(result[t]) - expected) <= 1e-9 * (1 + abs(expected))


def test_missing_floor_changes_nothing() -> None:
    """-inf, for a state without a bound, under both transforms."""
    q, none = torch.randn(100), torch.full((100,), -torch.inf)
    identity: ValueTransform = make_value_transform("identity", 1e-2)
    for transform in (TRANSFORM_H, identity):
        assert torch.equal(raise_to_floor(q, none, transform), q)
