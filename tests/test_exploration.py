"""The epsilon ladders by hand, and epsilon-greedy by its frequencies."""

from __future__ import annotations

import pytest
import torch

from lookfurther.exploration import LADDERS, apex_ladder, epsilon_greedy, paper_ladder


def test_the_papers_ladder_spans_a_thousandth_to_a_tenth() -> None:
    """Sec. 3.4, m = 128: epsilon_1 = 0.1^3 and epsilon_128 = 0.1."""
    ladder = paper_ladder(128)
    assert ladder.shape == (128,)
    assert ladder[0].item() == pytest.approx(0.001, rel=1e-12)
    assert ladder[-1].item() == pytest.approx(0.1, rel=1e-12)
    assert (ladder.diff() > 0).all()


def test_apexs_ladder_spans_four_tenths_to_its_eighth_power() -> None:
    ladder = apex_ladder(360)
    assert ladder.shape == (360,)
    assert ladder[0].item() == pytest.approx(0.4, rel=1e-12)
    assert ladder[-1].item() == pytest.approx(0.00065536, rel=1e-12)
    assert (ladder.diff() < 0).all()


def test_four_lanes_by_hand() -> None:
    """Exponents 3, 7/3, 5/3, 1 of 0.1; and 1, 10/3, 17/3, 8 of 0.4."""
    paper = [0.001, 0.00464158883361278, 0.0215443469003188, 0.1]
    apex = [0.4, 0.047155603182597, 0.00555912727878637, 0.00065536]
    assert paper_ladder(4).tolist() == pytest.approx(paper, rel=1e-12)
    assert apex_ladder(4).tolist() == pytest.approx(apex, rel=1e-12)


@pytest.mark.parametrize(("name", "epsilon"), [("paper", 0.001), ("apex", 0.4)])
def test_a_single_lane_stands_on_the_first_rung(name: str, epsilon: float) -> None:
    assert LADDERS[name](1).tolist() == pytest.approx([epsilon], rel=1e-12)


@pytest.mark.parametrize("epsilon", [0.001, 0.3, 1.0])
def test_frequencies(epsilon: float) -> None:
    """Every action has epsilon / A, the best 1 - epsilon more: chi-square, 4 degrees, 0.999."""
    n, actions, best = 50_000, 5, 3
    q = torch.zeros(n, actions)
    q[:, best] = 1
    lanes = torch.full((n,), epsilon, dtype=torch.float64)
    a = epsilon_greedy(q, lanes, torch.Generator().manual_seed(0))
    expected = torch.full((actions,), epsilon / actions)
    expected[best] += 1 - epsilon
    counts = torch.bincount(a, minlength=actions)
    statistic = ((counts - n * expected).square() / (n * expected)).sum()
    assert statistic < 18.47


def test_epsilon_zero_is_always_greedy() -> None:
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(5000, 7, generator=generator)
    a = epsilon_greedy(q, torch.zeros(5000), generator)
    assert torch.equal(a, q.argmax(-1))
    assert a.dtype == torch.int64


def test_each_lane_has_its_own_epsilon() -> None:
    """Even lanes greedy, odd lanes uniform."""
    n = 10_000
    q = torch.tensor([0.0, 1.0]).repeat(n, 1)
    epsilon = torch.arange(n) % 2
    a = epsilon_greedy(q, epsilon.double(), torch.Generator().manual_seed(2))
    assert (a[::2] == 1).all()
    assert a[1::2].double().mean().item() == pytest.approx(0.5, abs=0.025)


def test_the_generator_decides() -> None:
    """Same seed, same actions; and the draws move on."""
    q, epsilon = torch.zeros(200, 6), torch.ones(200)
    first, second = (torch.Generator().manual_seed(3) for _ in range(2))
    a = epsilon_greedy(q, epsilon, first)
    assert torch.equal(a, epsilon_greedy(q, epsilon, second))
    assert not torch.equal(a, epsilon_greedy(q, epsilon, first))
