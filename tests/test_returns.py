"""n-step returns: against a plain loop, and by hand across terminations and truncations."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lookfurther.losses import td_target
from lookfurther.returns import NStepReturn, n_step_return
from lookfurther.transforms import IDENTITY, make_value_transform
from lookfurther.types import BEST, END, FIRST, TERMINAL, TRUNCATED

marks = st.sampled_from([0, FIRST, BEST, TERMINAL, TRUNCATED, END, BEST | TERMINAL, BEST | END])
step_of = st.tuples(st.floats(-1e3, 1e3, width=32), marks)


def oracle(reward: list[float], mark: list[int], n: int, gamma: float) -> tuple[float, float, int]:
    """The return, the bootstrap's discount and the steps taken, one step at a time."""
    total, steps = 0.0, 0
    for r, m in zip(reward[:n], mark[:n], strict=True):
        total += gamma**steps * r
        steps += 1
        if m & TERMINAL:
            return total, 0.0, steps
        if m & TRUNCATED:
            break
    return total, gamma**steps, steps


def single_return(reward: list[float], mark: list[int], n: int, gamma: float) -> NStepReturn:
    """n_step_return of a single row."""
    return n_step_return(
        torch.tensor(reward), torch.tensor(mark, dtype=torch.uint8), torch.tensor(n), gamma
    )


@settings(deadline=None, max_examples=100)
@given(st.lists(step_of, min_size=1, max_size=12), st.data(), st.floats(0, 1))
def test_n_step_return_matches_loop(
    steps: list[tuple[float, int]], data: st.DataObject, gamma: float
) -> None:
    reward, mark = [r for r, _ in steps], [m for _, m in steps]
    n = data.draw(st.integers(1, len(steps)))
    result, (r, discount, count) = (
        single_return(reward, mark, n, gamma),
        oracle(reward, mark, n, gamma),
    )
    size = sum(abs(x) for x in reward)
    # Float32 has no numbers between 0 and 2^-149.
    assert result.r.item() == pytest.approx(r, rel=1e-6, abs=1e-6 * size + 2**-149)
    assert result.discount.item() == pytest.approx(discount, rel=1e-6, abs=1e-37)
    assert result.steps.item() == count


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1), st.floats(0, 1))
def test_rows_are_independent(seed: int, gamma: float) -> None:
    """A batch of mixed horizons and any leading shape equals its rows one by one."""
    generator = torch.Generator().manual_seed(seed)
    reward = torch.randn(3, 5, 10, generator=generator)
    ended = torch.rand(3, 5, 10, generator=generator) < 0.15
    mark = torch.where(ended, torch.randint(1, 8, (3, 5, 10), generator=generator), 0).byte()
    n = torch.randint(1, 11, (3, 5), generator=generator)
    whole = n_step_return(reward, mark, n, gamma)
    for i in range(3):
        for j in range(5):
            row = n_step_return(reward[i, j], mark[i, j], n[i, j], gamma)
            assert all(torch.equal(w[i, j], f) for w, f in zip(whole, row, strict=True))


@pytest.mark.parametrize(
    ("mark", "n", "expected"),
    [
        ([0, 0, 0], 1, (1.0, 0.5, 1)),
        ([0, 0, 0], 2, (3.0, 0.25, 2)),
        ([0, 0, 0], 3, (5.0, 0.125, 3)),
        ([0, TERMINAL, 0], 1, (1.0, 0.5, 1)),
        ([0, TERMINAL, 0], 3, (3.0, 0.0, 2)),
        ([0, TRUNCATED, 0], 3, (3.0, 0.25, 2)),
        ([TERMINAL, FIRST, 0], 3, (1.0, 0.0, 1)),
        ([TRUNCATED, FIRST, 0], 3, (1.0, 0.5, 1)),
        ([0, 0, TERMINAL], 3, (5.0, 0.0, 3)),
        ([0, 0, TRUNCATED], 3, (5.0, 0.125, 3)),
        ([0, END, 0], 3, (3.0, 0.0, 2)),
        ([TRUNCATED, TERMINAL, 0], 3, (1.0, 0.5, 1)),
    ],
)
def test_n_step_return_by_hand(mark: list[int], n: int, expected: tuple[float, float, int]) -> None:
    """Rewards 1, 4, 8 at gamma 1/2: partial sums 1, 3, 5."""
    assert tuple(x.item() for x in single_return([1.0, 4.0, 8.0], mark, n, 0.5)) == expected


@pytest.mark.parametrize(
    ("mark", "target"), [(0, 3.15), (TRUNCATED, 3.15), (TERMINAL, 1.03), (END, 1.03)]
)
def test_truncation_bootstraps_and_termination_does_not(mark: int, target: float) -> None:
    """One step: h(3 + 24 / 2) = h(15) = 3.15 if the episode continues, else h(3) = 1.03."""
    r, discount, _ = single_return([3.0], [mark], 1, 0.5)
    q_next = torch.tensor(4.24, dtype=torch.float64)  # h(24)
    result = td_target(r.double(), discount.double(), q_next, make_value_transform("h", 1e-2))
    assert result.item() == pytest.approx(target, rel=1e-13)


@pytest.mark.parametrize(("mark", "target"), [(TRUNCATED, 3.15), (TERMINAL, 1.03)])
def test_end_inside_horizon(mark: int, target: float) -> None:
    """Ten steps, ended after two: 1 + 4 / 2 = 3, plus 48 / 4 (h(48) = 6.48) if truncated."""
    marks = [0, mark, FIRST, *[0] * 7]
    r, discount, steps = single_return([1.0, 4.0, *[100.0] * 8], marks, 10, 0.5)
    assert steps == 2
    q_next = torch.tensor(6.48, dtype=torch.float64)
    result = td_target(r.double(), discount.double(), q_next, make_value_transform("h", 1e-2))
    assert result.item() == pytest.approx(target, rel=1e-13)


def test_rewards_after_end_are_ignored() -> None:
    """Not even a NaN in the reward of another episode."""
    r, discount, _ = single_return([2.0, math.nan], [TRUNCATED, 0], 2, 0.5)
    assert td_target(r, discount, torch.tensor(6.0), IDENTITY).item() == 5.0


def test_large_rewards_keep_small_ones() -> None:
    """Sums are computed in float64: in float32, 1e8 + 1 - 1e8 is 0."""
    assert single_return([1e8, 1.0, -1e8], [0, 0, 0], 3, 1.0).r.item() == 1.0


def test_ten_steps_at_paper_discount() -> None:
    """sum of 0.999^j for j < 10, and 0.999^10, rounded once to float32."""
    result = single_return([1.0] * 10, [0] * 10, 10, 0.999)
    assert result.r.item() == pytest.approx(9.955119790251771, rel=6e-8)
    assert result.discount.item() == pytest.approx(0.990044880209748, rel=6e-8)
    assert [field.dtype for field in result] == [torch.float32, torch.float32, torch.int64]
