"""Value floors and advantage learning: what they preserve on random deterministic MDPs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lookfurther import preset
from lookfurther.demos.episode import Episode
from lookfurther.losses import (
    MAX_WIDENED_GAP,
    double_q_action,
    raise_to_floor,
    td_target,
    value_of_action,
    widen_action_gap,
)
from lookfurther.returns import discounted_returns
from lookfurther.training.expert_replay import build_expert_replay
from lookfurther.transforms import ValueTransform, make_value_transform
from lookfurther.types import END, TERMINAL, TRUNCATED, Spec
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
    result = discounted_returns(reward, mark, gamma, truncated_return=3.0)
    for t in range(len(steps)):
        ends = [i for i in range(t, len(steps)) if steps[i][1] & END]
        stop = ends[0] if ends else len(steps)
        expected = sum(gamma ** (i - t) * float(reward[i]) for i in range(t, stop))
        if ends and steps[stop][1] == TRUNCATED:
            expected += gamma ** (stop - t) * 3.0
        assert abs(float(result[t]) - expected) <= 1e-9 * (1 + abs(expected))


def test_missing_floor_changes_nothing() -> None:
    """-inf, for a state without a bound, under both transforms."""
    q, none = torch.randn(100), torch.full((100,), -torch.inf)
    identity: ValueTransform = make_value_transform("identity", 1e-2)
    for transform in (TRANSFORM_H, identity):
        assert torch.equal(raise_to_floor(q, none, transform), q)


def make_game(rewards: list[float], terminal: bool, begin: int) -> Episode:
    """A game whose plane at step t shows begin + t and whose action is t mod 3."""
    steps = len(rewards)
    planes = np.arange(begin, begin + steps + 1, dtype=np.uint8).reshape(-1, 1, 1, 1)
    actions = np.arange(steps) % 3
    return Episode(planes, actions, np.array(rewards, np.float32), terminal)


def next_states(
    games: list[Episode], **overrides: Any
) -> Iterator[tuple[Episode, int, float, int]]:
    """(game, step of x', floor, recorded action at x') of every item of an expert replay."""
    overrides = {"replay__horizons": (1, 3), "learner__gamma": 0.9} | overrides
    config = preset("apex-dqfd", **overrides)
    spec = Spec("x", (1, 1, 1), 1, "uint8", 3, 255.0)
    replay = build_expert_replay(config, spec, games, torch.device("cpu"), 0)
    states = {plane.item(): (game, t) for game in games for t, plane in enumerate(game.planes)}
    for batch in replay.iter_items(2):
        for i in range(len(batch.a)):
            game, step = states[int(batch.x_next[i])]
            yield game, step, float(batch.floor[i]), int(batch.a_next[i])


@pytest.mark.parametrize("last_reward", [2.0, -2.0])
def test_expert_items_have_the_return_from_their_next_state(last_reward: float) -> None:
    """Computed by hand from the game's rewards; a truncated game may go on with negative ones."""
    whole = make_game([0, 1, 0, 5, last_reward], terminal=True, begin=0)
    cut = make_game([1, 0, 3], terminal=False, begin=10)
    seen = 0
    for game, t, floor, a_next in next_states([whole, cut], learner__value_floor="return"):
        expected = sum(0.9**k * float(r) for k, r in enumerate(game.rewards[t:]))
        if game is cut and last_reward < 0:
            expected = -np.inf
        assert floor == pytest.approx(expected)
        if t < len(game):
            assert a_next == game.actions[t]
        seen += 1
    assert seen == 2 * (len(whole) + len(cut))


def test_expert_items_have_no_floor_by_default() -> None:
    rows = list(next_states([make_game([1, 2, 3], terminal=True, begin=0)]))
    assert len(rows) == 6
    assert all(floor == -np.inf for _, _, floor, _ in rows)
