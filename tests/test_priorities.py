"""Prioritized replay: the mass of an item, and weights that correct the sampling bias."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lookfurther.priorities import (
    PRIORITY_FUNCTIONS,
    importance_weights,
    initial_td_error,
    priority_mass,
)
from lookfurther.transforms import IDENTITY, make_value_transform
from lookfurther.types import TERMINAL, TRUNCATED

masses = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=20)
unit = st.floats(0, 1)


def normalized(weights: list[float]) -> Tensor:
    p = torch.tensor(weights, dtype=torch.float64)
    return p / p.sum()


def test_mass_by_hand() -> None:
    """(p + offset)^alpha."""
    p = torch.tensor([0.0, 0.75, 8.75], dtype=torch.float64)
    assert priority_mass(p, 0.5, 0.25).tolist() == [0.5, 1.0, 3.0]
    assert priority_mass(p, 1.0, 0.25).tolist() == [0.25, 1.0, 9.0]
    assert priority_mass(p, 0.0, 0.25).tolist() == [1.0, 1.0, 1.0]


def test_mass_is_never_zero() -> None:
    """An item with an error of 0 has the offset's mass: 1e-6^0.6 = 10^-3.6."""
    result = priority_mass(torch.zeros(1, dtype=torch.float64), 0.6, 1e-6)
    assert result.item() == pytest.approx(2.51188643150958e-4, rel=1e-12)


@settings(deadline=None)
@given(masses, unit, st.floats(1, 1e7))
def test_importance_weights_match_formula(weights: list[float], beta: float, n: float) -> None:
    """(N P(i))^-beta divided by the largest, for any replay size N."""
    p = normalized(weights)
    full = (n * p) ** -beta
    result = importance_weights(p, beta)
    torch.testing.assert_close(result, full / full.max(), rtol=1e-6, atol=0)


@settings(deadline=None)
@given(masses, unit)
def test_largest_importance_weight_is_one(weights: list[float], beta: float) -> None:
    p = normalized(weights)
    w = importance_weights(p, beta)
    assert w[p.argmin()].item() == 1.0
    assert w.max().item() == 1.0
    assert w.min().item() > 0


@settings(deadline=None)
@given(masses)
def test_beta_zero_gives_equal_weights(weights: list[float]) -> None:
    w = importance_weights(normalized(weights), 0.0)
    assert torch.equal(w, torch.ones(len(weights)))


@settings(deadline=None)
@given(masses, st.integers(0, 2**32 - 1))
def test_beta_one_is_unbiased(weights: list[float], seed: int) -> None:
    """sum P(i) w_i f_i, the expectation over a draw, is min(P) sum f_i for every f."""
    p = normalized(weights)
    f = torch.randn(
        len(weights), dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    result = (p * importance_weights(p, 1.0) * f).sum()
    tolerance = 1e-6 * (p.min() * f.abs().sum()).item()
    assert result.item() == pytest.approx((p.min() * f.sum()).item(), rel=0, abs=tolerance)


def test_importance_weights_by_hand() -> None:
    """Probabilities 1/2, 1/8, 3/8 at beta 1/2 and 1."""
    p = torch.tensor([0.5, 0.125, 0.375], dtype=torch.float64)
    assert importance_weights(p, 1.0).tolist() == pytest.approx([0.25, 1, 1 / 3], rel=1e-7)
    assert importance_weights(p, 0.5).tolist() == pytest.approx([0.5, 1, 3**-0.5], rel=1e-7)


def test_priorities_of_td_errors() -> None:
    """Algorithm 1's |L_TD|, and the absolute error."""
    error = torch.tensor([-3.0, -0.5, 0.0, 1.0])
    assert PRIORITY_FUNCTIONS["huber"](error).tolist() == [2.5, 0.125, 0.0, 0.5]
    assert PRIORITY_FUNCTIONS["abs"](error).tolist() == [3.0, 0.5, 0.0, 1.0]


def test_initial_td_errors_by_hand() -> None:
    """Rewards 1, 4, 8 at gamma 1/2; the episode continues, terminates or is truncated."""
    q_a = torch.tensor([10.0, 10.0, 10.0])
    v = torch.tensor([99.0, 2.0, 4.0, 8.0]).repeat(3, 1)
    reward = torch.tensor([1.0, 4.0, 8.0]).repeat(3, 1)
    mark = torch.tensor([[0, 0, 0], [0, TERMINAL, 0], [0, TRUNCATED, 0]], dtype=torch.uint8)
    one = initial_td_error(q_a, v, reward, mark, 1, 0.5, IDENTITY)
    assert one.tolist() == [8.0, 8.0, 8.0]  # 10 - (1 + 2 / 2)
    three = initial_td_error(q_a, v, reward, mark, 3, 0.5, IDENTITY)
    assert three.tolist() == [4.0, 7.0, 6.0]  # targets 5 + 8 / 8, 3, 3 + 4 / 4


def test_initial_td_errors_use_value_transform() -> None:
    """h(3 + 24 / 2) = h(15) = 3.15, where 24 = h^-1(4.24)."""
    q_a, v = torch.tensor([4.15]), torch.tensor([[0.0, 4.24]])
    reward, mark = torch.tensor([[3.0]]), torch.zeros(1, 1, dtype=torch.uint8)
    result = initial_td_error(q_a, v, reward, mark, 1, 0.5, make_value_transform("h", 1e-2))
    assert result.item() == pytest.approx(1.0, rel=1e-5)
