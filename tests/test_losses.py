"""The losses by hand, by their properties, and by which values their gradients reach."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from lookfurther.losses import (
    clip_by_global_norm,
    double_q_action,
    huber,
    im_loss,
    imitation_margin,
    tc_loss,
    td_loss,
    td_target,
    value_of_action,
)
from lookfurther.transforms import IDENTITY, make_value_transform

seeds = st.integers(0, 2**32 - 1)
quarters = st.integers(-40, 40).map(lambda k: k / 4)  # sums and differences are exact


def float64_tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def q_table(*rows: list[float]) -> Tensor:
    """A network as a table: row x holds f(x, .)."""
    return torch.tensor(rows, dtype=torch.float64, requires_grad=True)


def gradients(loss: Tensor, *tables: Tensor) -> list[list[list[float]]]:
    """Gradients of the summed loss for each table; zeros if it does not depend on the table."""
    grads = torch.autograd.grad(
        loss.sum(), tables, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    return [g.tolist() for g in grads]


def test_huber_by_hand() -> None:
    errors = float64_tensor(0, 0.5, -0.5, 1, -1, 2, -3)
    assert huber(errors).tolist() == [0, 0.125, 0.125, 0.5, 0.5, 1.5, 2.5]


@settings(deadline=None)
@given(st.floats(-1e6, 1e6))
def test_huber_gradient_is_clipped_error(x: float) -> None:
    at = float64_tensor(x).requires_grad_()
    (grad,) = torch.autograd.grad(huber(at).sum(), at)
    assert grad.item() == max(-1.0, min(1.0, x))


def test_td_target_by_hand() -> None:
    """h(6.5 + 3 / 2) = h(8), h(-9.5 + 3 / 2) = h(-8), a terminal 8; without h 1 + 0.9 2."""
    r, discount, q_next = (
        float64_tensor(6.5, -9.5, 8.0),
        float64_tensor(0.5, 0.5, 0.0),
        float64_tensor(1.03, 1.03, 77.0),
    )
    result = td_target(r, discount, q_next, make_value_transform("h", 1e-2))
    assert result.tolist() == pytest.approx([2.08, -2.08, 2.08], rel=1e-13)
    plain = td_target(float64_tensor(1.0), float64_tensor(0.9), float64_tensor(2.0), IDENTITY)
    assert plain.item() == pytest.approx(2.8, rel=1e-15)


def test_td_loss_by_hand() -> None:
    q_a, target = float64_tensor(3.65, 3.03, -1.0), float64_tensor(3.15, 1.03, 2.0)
    assert td_loss(q_a, target).tolist() == pytest.approx([0.125, 1.5, 2.5], rel=1e-13)


def test_td_gradient_reaches_taken_action_only() -> None:
    """x = 0, a = 1, x' = 1: no gradient flows through the target of either network."""
    online, target_net = q_table([1, 2], [5, 3]), q_table([0, 0], [4, 6])
    a, a_next = torch.tensor([1]), double_q_action(online[[1]])
    target = td_target(
        float64_tensor(-1.0),
        float64_tensor(0.5),
        value_of_action(target_net[[1]], a_next),
        IDENTITY,
    )
    assert target.item() == 1.0  # -1 + 4 / 2: the online net chooses action 0
    loss = td_loss(value_of_action(online[[0]], a), target)
    assert loss.item() == 0.5
    assert gradients(loss, online, target_net) == [[[0, 1], [0, 0]], [[0, 0], [0, 0]]]


def test_online_network_selects_target_network_evaluates() -> None:
    """Double DQN: neither the target network's best action nor the online network's value."""
    online, target_net = float64_tensor(1, 2, 0).view(1, 3), float64_tensor(5, -3, 9).view(1, 3)
    a_next = double_q_action(online)
    assert a_next.tolist() == [1]
    assert value_of_action(target_net, a_next).tolist() == [-3]


def test_value_of_action_selects_one_per_row() -> None:
    q = torch.arange(6.0).view(3, 2)
    assert value_of_action(q, torch.tensor([1, 0, 1])).tolist() == [1, 2, 5]


def test_tc_loss_by_hand() -> None:
    """Huber of the difference, and 0 if x' is terminal."""
    q, target = float64_tensor(3, 3, 0.5, 9), float64_tensor(1, 2.5, 0.5, 1)
    assert tc_loss(q, target, float64_tensor(1, 1, 1, 0)).tolist() == [1.5, 0.125, 0, 0]


def test_tc_gradient_reaches_online_next_value_only() -> None:
    """x' = 1 and a' = 0; the target network is a constant, even if it requires a gradient."""
    online, target_net = q_table([1, 2], [5, 3]), q_table([0, 0], [4.5, 6])
    a_next = double_q_action(online[[1]])
    values = value_of_action(online[[1]], a_next), value_of_action(target_net[[1]], a_next)
    alive = tc_loss(*values, alive=float64_tensor(1))
    assert gradients(alive, online, target_net) == [[[0, 0], [0.5, 0]], [[0, 0], [0, 0]]]
    terminal = tc_loss(*values, alive=float64_tensor(0))
    assert terminal.item() == 0
    assert gradients(terminal, online) == [[[0, 0], [0, 0]]]


@pytest.mark.parametrize(
    ("q", "a", "loss"),
    [
        ([1, 2, 3], 0, 2.5),  # 3 + 1/2 - 1
        ([1, 2, 3], 2, 0),  # leads by 1
        ([1, 2.75, 3], 2, 0.25),  # leads, but by less than the margin
        ([1, 2.5, 3], 2, 0),  # leads by exactly the margin
        ([0, 0, 0], 1, 0.5),
    ],
)
def test_im_loss_by_hand(q: list[float], a: int, loss: float) -> None:
    """Margin 1/2."""
    assert im_loss(
        float64_tensor(*q).view(1, 3), torch.tensor([a]), float64_tensor(1), 0.5
    ).tolist() == [loss]


@settings(deadline=None)
@given(st.lists(quarters, min_size=2, max_size=6), st.data(), st.sampled_from([0.25, 1.0, 3.5]))
def test_im_loss_is_zero_iff_expert_leads_by_margin(
    q: list[float], data: st.DataObject, margin: float
) -> None:
    a = data.draw(st.integers(0, len(q) - 1))
    lead = min(q[a] - value for b, value in enumerate(q) if b != a)
    loss = im_loss(
        float64_tensor(*q).view(1, -1), torch.tensor([a]), float64_tensor(1), margin
    ).item()
    assert loss == max(0.0, margin - lead)


def test_imitation_margin_by_hand() -> None:
    """lambda 1/2, scale 1/4: |f| of 8, -8 and 1 give 2, 2 and 1/2."""
    q, a = q_table([8, 0], [-8, 0], [1, 100]), torch.tensor([0, 0, 0])
    assert imitation_margin(q, a, 0.5, 0.25).tolist() == [[2.0], [2.0], [0.5]]
    assert imitation_margin(q, a, 0.5, 0.0).tolist() == [[0.5]] * 3
    loss = im_loss(q, a, float64_tensor(1, 1, 1), imitation_margin(q, a, 0.5, 0.25))
    assert loss.tolist() == [0, 10, 99.5]
    assert gradients(loss, q) == [[[0, 0], [-1, 1], [-1, 1]]]  # the margin is a constant


@settings(deadline=None, max_examples=30)
@given(seeds, st.sampled_from([0.25, 0.9995, 3.5]))
def test_margin_scale_zero_is_the_paper_bit_for_bit(seed: int, margin: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    q = (100 * torch.randn(8, 5, generator=generator)).requires_grad_()
    a, e = torch.randint(5, (8,), generator=generator), torch.ones(8)
    paper = im_loss(q, a, e, margin)
    scaled = im_loss(q, a, e, imitation_margin(q, a, margin, 0.0))
    assert torch.equal(paper, scaled)
    assert torch.equal(*(torch.autograd.grad(loss.sum(), q)[0] for loss in (paper, scaled)))


def test_im_gradient_raises_expert_and_lowers_violator() -> None:
    """Action 2 violates row 0, row 1 is satisfied, row 2 is not part of the best episode."""
    q = q_table([1, 2, 3], [9, 2, 3], [1, 2, 3])
    loss = im_loss(q, torch.tensor([0, 0, 0]), float64_tensor(1, 1, 0), 0.5)
    assert loss.tolist() == [2.5, 0, 0]
    assert gradients(loss, q) == [[[-1, 0, 1], [0, 0, 0], [0, 0, 0]]]


@settings(deadline=None, max_examples=30)
@given(seeds)
def test_im_loss_is_zero_outside_best_episode(seed: int) -> None:
    """e = 0: no loss and no gradient, bit for bit."""
    generator = torch.Generator().manual_seed(seed)
    q = (100 * torch.randn(8, 5, generator=generator)).requires_grad_()
    a = torch.randint(5, (8,), generator=generator)
    loss = im_loss(q, a, torch.zeros(8), 0.9995)
    assert torch.equal(loss, torch.zeros(8))
    (result,) = torch.autograd.grad(loss.sum(), q)
    assert torch.equal(result, torch.zeros(8, 5))


def random_gradients(seed: int, scale: float) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(3, 4), (5,), (2, 1, 3), (), (0, 4)]
    return [scale * torch.randn(shape, generator=generator) for shape in shapes]


def global_norm(tensors: list[Tensor]) -> float:
    return sum(float(t.double().square().sum()) for t in tensors) ** 0.5


def test_clip_by_hand() -> None:
    """|(3, 4)| = 5 over two tensors: halved by a limit of 2.5."""
    gradients = [float64_tensor(3.0), float64_tensor(4.0)]
    clipped, norm = clip_by_global_norm(gradients, 2.5)
    assert norm.item() == 5.0
    assert [g.item() for g in clipped] == [1.5, 2.0]


@settings(deadline=None)
@given(seeds, st.floats(1e-3, 1e3), st.floats(0.1, 100))
@example(seed=0, scale=1.0, limit=20.5)  # 20.5 (1 / 20.5) is not 1 in float32
def test_clip_matches_tensorflow(seed: int, scale: float, limit: float) -> None:
    """g limit / max(|g|, limit): the same bits below the limit, norm `limit` above it."""
    before = random_gradients(seed, scale)
    clipped, norm = clip_by_global_norm(before, limit)
    size = global_norm(before)
    assert norm.item() == pytest.approx(size, rel=1e-6)
    if size <= limit * (1 - 1e-6):
        assert all(torch.equal(c, b) for c, b in zip(clipped, before, strict=True))
    elif size > limit:
        assert global_norm(clipped) == pytest.approx(limit, rel=1e-6)
        factor = limit / max(size, limit)
        for c, b in zip(clipped, before, strict=True):
            torch.testing.assert_close(c, b * factor, rtol=1e-6, atol=0)


@settings(deadline=None, max_examples=50)
@given(seeds, st.floats(0.1, 1e3), st.floats(1, 100))
def test_clip_matches_torch(seed: int, scale: float, limit: float) -> None:
    """torch divides by |g| + 1e-6 instead; there is no other difference."""
    before = random_gradients(seed, scale)
    parameters = [torch.zeros_like(g, requires_grad=True) for g in before]
    for p, g in zip(parameters, before, strict=True):
        p.grad = g.clone()
    reference = torch.nn.utils.clip_grad_norm_(parameters, limit)
    clipped, norm = clip_by_global_norm(before, limit)
    torch.testing.assert_close(norm, reference, rtol=1e-6, atol=0)
    for c, p in zip(clipped, parameters, strict=True):
        assert p.grad is not None
        torch.testing.assert_close(c, p.grad, rtol=1e-5, atol=0)
