"""The epsilon schedules by hand, and epsilon-greedy by its frequencies."""

from __future__ import annotations

import pytest
import torch

from lookfurther.exploration import (
    EpsilonGreedy,
    EpsilonZGreedy,
    apex_epsilons,
    duration_cdf,
    epsilon_greedy,
    initial_epsilons,
    paper_epsilons,
)

CPU = torch.device("cpu")


def test_paper_epsilons_span_0_001_to_0_1() -> None:
    """Sec. 3.4, m = 128: epsilon_1 = 0.1^3 and epsilon_128 = 0.1."""
    epsilons = paper_epsilons(128)
    assert epsilons.shape == (128,)
    assert epsilons[0].item() == pytest.approx(0.001, rel=1e-12)
    assert epsilons[-1].item() == pytest.approx(0.1, rel=1e-12)
    assert (epsilons.diff() > 0).all()


def test_apex_epsilons_span_0_4_to_its_eighth_power() -> None:
    epsilons = apex_epsilons(360)
    assert epsilons.shape == (360,)
    assert epsilons[0].item() == pytest.approx(0.4, rel=1e-12)
    assert epsilons[-1].item() == pytest.approx(0.00065536, rel=1e-12)
    assert (epsilons.diff() < 0).all()


def test_epsilons_of_four_lanes_by_hand() -> None:
    """Exponents 3, 7/3, 5/3, 1 of 0.1; and 1, 10/3, 17/3, 8 of 0.4."""
    paper = [0.001, 0.00464158883361278, 0.0215443469003188, 0.1]
    apex = [0.4, 0.047155603182597, 0.00555912727878637, 0.00065536]
    assert paper_epsilons(4).tolist() == pytest.approx(paper, rel=1e-12)
    assert apex_epsilons(4).tolist() == pytest.approx(apex, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "epsilon"), [("paper", 0.001), ("apex", 0.4), ("constant", 0.02), ("linear", 1.0)]
)
def test_single_lane_has_first_epsilon(name: str, epsilon: float) -> None:
    assert initial_epsilons(name, 1, 0.02).tolist() == pytest.approx([epsilon], rel=1e-12)


@pytest.mark.parametrize("epsilon", [0.001, 0.3, 1.0])
def test_epsilon_greedy_frequencies(epsilon: float) -> None:
    """P = epsilon / A, plus 1 - epsilon for the best action: chi-square, 4 degrees, 0.999."""
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


def test_generator_determines_actions() -> None:
    """The same seed gives the same actions, and every call advances the generator."""
    q, epsilon = torch.zeros(200, 6), torch.ones(200)
    first, second = (torch.Generator().manual_seed(3) for _ in range(2))
    a = epsilon_greedy(q, epsilon, first)
    assert torch.equal(a, epsilon_greedy(q, epsilon, second))
    assert not torch.equal(a, epsilon_greedy(q, epsilon, first))


def test_uniform_exploration_is_epsilon_greedy() -> None:
    q, epsilon, none = torch.randn(50, 4), torch.full((50,), 0.5), torch.zeros(50, dtype=torch.bool)
    ours, theirs = (torch.Generator().manual_seed(4) for _ in range(2))
    for _ in range(5):
        a = EpsilonGreedy(50, CPU).select_actions(q, epsilon, none, ours)
        assert torch.equal(a, epsilon_greedy(q, epsilon, theirs))


def test_durations_follow_inverse_square_law() -> None:
    """By hand for at most 3 steps: 36/49, 9/49, 4/49."""
    steps = duration_cdf(3).diff(prepend=torch.zeros(1, dtype=torch.float64))
    assert steps.tolist() == pytest.approx([36 / 49, 9 / 49, 4 / 49])


def test_epsilon_z_greedy_repeats_action_for_duration() -> None:
    """A random action is repeated for its duration, then the greedy action follows."""
    lanes = 300
    q = torch.zeros(lanes, 6)
    q[:, 2] = 1
    explore, generator = EpsilonZGreedy(lanes, CPU), torch.Generator().manual_seed(6)
    none, always, never = (
        torch.zeros(lanes, dtype=torch.bool),
        torch.ones(lanes),
        torch.zeros(lanes),
    )
    held_action = explore.select_actions(q, always, none, generator)
    remaining = explore.remaining.clone()
    assert len(held_action.unique()) == 6
    assert (remaining > 0).any()
    for t in range(1, 20):
        a = explore.select_actions(q, never, none, generator)
        assert torch.equal(a, torch.where(t <= remaining, held_action, 2))


def test_epsilon_z_greedy_starts_at_rate_epsilon() -> None:
    lanes = 20_000
    explore, generator = EpsilonZGreedy(lanes, CPU), torch.Generator().manual_seed(7)
    none = torch.zeros(lanes, dtype=torch.bool)
    q = torch.tensor([1.0, 0.0, 0.0]).repeat(lanes, 1)
    a = explore.select_actions(q, torch.full((lanes,), 0.3), none, generator)
    assert (a != 0).double().mean().item() == pytest.approx(0.3 * 2 / 3, abs=0.015)
    longer = (explore.remaining > 0).double().mean().item()
    first = float(duration_cdf(10_000)[0])
    assert longer == pytest.approx(0.3 * (1 - first), abs=0.015)


def test_episode_start_stops_epsilon_z_greedy() -> None:
    explore, generator = EpsilonZGreedy(64, CPU), torch.Generator().manual_seed(8)
    q = torch.tensor([0.0, 1.0]).repeat(64, 1)
    explore.remaining.fill_(50)
    a = explore.select_actions(q, torch.zeros(64), torch.ones(64, dtype=torch.bool), generator)
    assert (a == 1).all()
    assert (explore.remaining == 0).all()
