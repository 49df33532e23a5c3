"""Proposition A.2 and its lemmas for the rationalised forms, and their accuracy in float32."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from lookfurther.transforms import IDENTITY, REWARD_TRANSFORMS, make_value_transform

EPS = (1e-3, 1e-2, 0.1, 1.0)
eps_of = st.sampled_from(EPS)
reals = st.floats(-1e6, 1e6)


def float64_tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def printed_h(z: Tensor, eps: float) -> Tensor:
    """h as Sec. 3.2 prints it."""
    return z.sign() * (torch.sqrt(z.abs() + 1) - 1) + eps * z


def printed_h_inv(x: Tensor, eps: float) -> Tensor:
    """h^-1 as Prop. A.2 (iii) prints it."""
    root = torch.sqrt(1 + 4 * eps * (x.abs() + 1 + eps))
    return x.sign() * (((root - 1) / (2 * eps)).square() - 1)


def exact_h(z: Decimal, eps: Decimal) -> Decimal:
    """The printed h, for z > 0, in the precision of the decimal context."""
    return (z + 1).sqrt() - 1 + eps * z


def exact_h_inv(x: Decimal, eps: Decimal) -> Decimal:
    """The printed h^-1, for x > 0, in the precision of the decimal context."""
    return (((1 + 4 * eps * (x + 1 + eps)).sqrt() - 1) / (2 * eps)) ** 2 - 1


def gradient_of_h(z: Tensor, eps: float) -> Tensor:
    """Lemma A.1."""
    return 1 / (2 * torch.sqrt(z.abs() + 1)) + eps


def gradient_of_h_inv(x: Tensor, eps: float) -> Tensor:
    """Lemma A.2."""
    return (1 - 1 / torch.sqrt(1 + 4 * eps * (x.abs() + 1 + eps))) / eps


def autograd_gradient(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    at = at.clone().requires_grad_()
    return torch.autograd.grad(function(at).sum(), at)[0]


def magnitudes(dtype: torch.dtype = torch.float64) -> Tensor:
    """1e-6 ... 1e6, fifty per order of magnitude."""
    return torch.logspace(-6, 6, 601, dtype=torch.float64).to(dtype)


def relative_error(
    ours: Callable[[Tensor], Tensor], exact: Callable[[Decimal, Decimal], Decimal], eps: float
) -> float:
    """The largest relative error of `ours` in float32 over twelve orders of magnitude."""
    at = magnitudes(torch.float32)
    with localcontext() as context:
        context.prec = 60
        truth = [exact(Decimal(x), Decimal(eps)) for x in at.tolist()]
        result = zip(ours(at).tolist(), ours(-at).tolist(), truth, strict=True)
        return max(float(max(abs(Decimal(p) - t), abs(Decimal(m) + t)) / t) for p, m, t in result)


@settings(deadline=None)
@given(eps_of, reals, reals)
def test_h_and_inverse_strictly_increase(eps: float, x: float, y: float) -> None:
    """Prop. A.2 (i) and (iv)."""
    x, y = min(x, y), max(x, y)
    assume(y - x > 1e-9 * max(1.0, abs(x), abs(y)))
    for function in make_value_transform("h", eps):
        low, high = function(float64_tensor(x, y)).tolist()
        assert low < high


@settings(deadline=None)
@given(eps_of, reals)
def test_h_and_inverse_cancel(eps: float, z: float) -> None:
    """Prop. A.2 (iii)."""
    h, h_inv = make_value_transform("h", eps)
    at = float64_tensor(z)
    torch.testing.assert_close(h_inv(h(at)), at, rtol=1e-12, atol=1e-300)
    torch.testing.assert_close(h(h_inv(at)), at, rtol=1e-12, atol=1e-300)


@settings(deadline=None)
@given(eps_of, reals, reals)
def test_lipschitz_bounds(eps: float, x: float, y: float) -> None:
    """Prop. A.2 (ii) and (v): L_h = 1/2 + eps and L_h^-1 = 1/eps."""
    at, distance = float64_tensor(x, y), abs(x - y)
    rounding = 1e-9 * max(abs(x), abs(y))
    for function, constant in zip(
        make_value_transform("h", eps), (0.5 + eps, 1 / eps), strict=True
    ):
        images = function(at)
        assert (images[0] - images[1]).abs() <= constant * (distance + rounding)


@pytest.mark.parametrize("eps", EPS)
def test_lipschitz_constants_are_tight(eps: float) -> None:
    """h has the gradient L_h at 0; that of h^-1 approaches L_h^-1 far from 0."""
    h, h_inv = make_value_transform("h", eps)
    assert h(float64_tensor(1e-9)).item() / 1e-9 == pytest.approx(0.5 + eps, rel=1e-8)
    far = float64_tensor(1e6 / eps, 1.001e6 / eps)
    assert (h_inv(far).diff() / far.diff()).item() == pytest.approx(1 / eps, rel=1e-3)
    assert h_inv(float64_tensor(1e-9)).item() / 1e-9 == pytest.approx(1 / (0.5 + eps), rel=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("eps", EPS)
def test_gradients_match_lemmas(eps: float, dtype: torch.dtype) -> None:
    """Lemmas A.1 and A.2 through autograd, including at 0."""
    grid = magnitudes()
    at = torch.cat([-grid.flip(0), float64_tensor(0.0), grid])
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    for function, gradient in zip(
        make_value_transform("h", eps), (gradient_of_h, gradient_of_h_inv), strict=True
    ):
        result = autograd_gradient(function, at.to(dtype)).double()
        torch.testing.assert_close(result, gradient(at, eps), rtol=tolerance, atol=0)


def test_gradients_at_zero_by_hand() -> None:
    h, h_inv = make_value_transform("h", 1e-2)
    assert autograd_gradient(h, float64_tensor(0.0)).item() == pytest.approx(0.51, rel=1e-15)
    assert autograd_gradient(h_inv, float64_tensor(0.0)).item() == pytest.approx(
        1 / 0.51, rel=1e-14
    )


def test_autograd_of_printed_forms_is_wrong_at_zero() -> None:
    """Why the forms are rationalised: sign(0) = 0 drops the square root's part of the gradient."""
    assert autograd_gradient(
        lambda z: printed_h(z, 1e-2), float64_tensor(0.0)
    ).item() == pytest.approx(1e-2)
    assert autograd_gradient(lambda x: printed_h_inv(x, 1e-2), float64_tensor(0.0)).item() == 0.0


@settings(deadline=None)
@given(eps_of, reals)
def test_h_is_exactly_odd(eps: float, z: float) -> None:
    for function in make_value_transform("h", eps):
        plus, minus = function(float64_tensor(z, -z)).tolist()
        assert plus == -minus


@pytest.mark.parametrize("eps", EPS)
def test_h_matches_printed_forms(eps: float) -> None:
    """In float64 and away from 0, where the printed forms do not cancel."""
    at = torch.logspace(-1, 6, 200, dtype=torch.float64)
    h, h_inv = make_value_transform("h", eps)
    for z in (at, -at):
        torch.testing.assert_close(h(z), printed_h(z, eps), rtol=1e-12, atol=0)
        torch.testing.assert_close(h_inv(z), printed_h_inv(z, eps), rtol=1e-9, atol=0)


@pytest.mark.parametrize(
    ("z", "image"), [(0, 0), (3, 1.03), (8, 2.08), (-8, -2.08), (24, 4.24), (9999, 198.99)]
)
def test_h_by_hand(z: float, image: float) -> None:
    """sqrt(z + 1) - 1 + z / 100 at perfect squares."""
    h, h_inv = make_value_transform("h", 1e-2)
    assert h(float64_tensor(z)).item() == pytest.approx(image, rel=1e-14)
    assert h_inv(float64_tensor(image)).item() == pytest.approx(z, rel=1e-13)


@pytest.mark.parametrize("eps", EPS)
def test_float32_is_accurate_over_twelve_magnitudes(eps: float) -> None:
    """Against the printed forms in 60 decimal digits, for both signs."""
    h, h_inv = make_value_transform("h", eps)
    assert relative_error(h, exact_h, eps) <= 1e-6
    assert relative_error(h_inv, exact_h_inv, eps) <= 1e-6


@pytest.mark.parametrize("eps", [1e-3, 1e-2])
def test_printed_forms_lose_digits_in_float32(eps: float) -> None:
    """Why the forms are rationalised: near 0 the printed ones subtract nearly equal numbers."""
    assert relative_error(lambda z: printed_h(z, eps), exact_h, eps) > 1e-2
    assert relative_error(lambda x: printed_h_inv(x, eps), exact_h_inv, eps) > 1e-2


def test_round_trip_in_float32() -> None:
    """As the learner does with a value in every target, over the same range."""
    at = magnitudes(torch.float32)
    for eps in EPS:
        h, h_inv = make_value_transform("h", eps)
        torch.testing.assert_close(h_inv(h(at)), at, rtol=1e-6, atol=0)


def test_identity_is_standard_operator() -> None:
    assert make_value_transform("identity", 1e-2) is IDENTITY
    at = float64_tensor(-3.0, 0.0, 5.0)
    assert torch.equal(IDENTITY.h(at), at)
    assert torch.equal(IDENTITY.h_inv(at), at)


def test_reward_transforms_by_hand() -> None:
    """Raw in this paper, clipped to [-1, 1] in DQN, sign(r) log(1 + |r|) in DQfD."""
    r = float64_tensor(-400.0, -0.5, 0.0, 1.0, 99.0)
    assert torch.equal(REWARD_TRANSFORMS["raw"](r), r)
    assert REWARD_TRANSFORMS["clip"](r).tolist() == [-1.0, -0.5, 0.0, 1.0, 1.0]
    by_hand = [-math.log(401), -math.log(1.5), 0.0, math.log(2), math.log(100)]
    assert REWARD_TRANSFORMS["signed-log"](r).tolist() == pytest.approx(by_hand, rel=1e-14)
