"""A convolution's own gradients are those of the library."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lookfurther.convolution import Convolution


def both(channels: int, width: int, kernel: int, dtype: torch.dtype) -> tuple[nn.Conv2d, nn.Conv2d]:
    """Our convolution and the library's with the same weights."""
    ours, theirs = (kind(channels, width, kernel, dtype=dtype) for kind in (Convolution, nn.Conv2d))
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def slopes(layer: nn.Conv2d, x: Tensor, outer: Tensor) -> tuple[Tensor, ...]:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(layer(x), [x, *layer.parameters()], outer)


@settings(max_examples=40, deadline=None)
@given(
    images=st.integers(1, 4),
    channels=st.integers(1, 5),
    width=st.integers(1, 5),
    kernel=st.integers(1, 3),
    rows=st.integers(3, 7),
    columns=st.integers(3, 7),
    last=st.booleans(),
)
def test_gradients_are_the_librarys(
    images: int, channels: int, width: int, kernel: int, rows: int, columns: int, last: bool
) -> None:
    """For any shape, and however images lie in memory."""
    layout = torch.channels_last if last else torch.contiguous_format
    x = torch.randn(images, channels, rows, columns, dtype=torch.float64)
    x = x.to(memory_format=layout)
    ours, theirs = both(channels, width, kernel, torch.float64)
    assert torch.equal(ours(x), theirs(x))
    outer = torch.randn_like(theirs(x))
    for found, true in zip(slopes(ours, x, outer), slopes(theirs, x, outer), strict=True):
        torch.testing.assert_close(found, true, rtol=1e-12, atol=1e-12)


def test_gradients_are_differences() -> None:
    """Of the values themselves, whatever the library says."""
    layer = Convolution(2, 3, 2, dtype=torch.float64)
    x = torch.randn(2, 2, 4, 5, dtype=torch.float64, requires_grad=True)
    inputs = (x, *layer.parameters())
    assert torch.autograd.gradcheck(lambda x, *_: layer(x), inputs)
    assert torch.autograd.gradgradcheck(lambda x, *_: layer(x).tanh(), inputs)


def test_half_precision_learns_whole_weights() -> None:
    """In bfloat16 weights and gradients stay float32, the same but for its rounding."""
    ours, theirs = both(4, 8, 3, torch.float32)
    x = torch.randn(16, 4, 9, 9).to(memory_format=torch.channels_last).bfloat16()
    found: list[tuple[Tensor, ...]] = []
    for layer in (ours, theirs):
        with torch.autocast("cpu", torch.bfloat16):
            y = layer(x)
        assert y.dtype == torch.bfloat16
        outer = torch.linspace(-1, 1, y.numel()).view_as(y).bfloat16()
        found.append(slopes_of(y, layer, outer))
    for mine, true in zip(*found, strict=True):
        assert mine.dtype == true.dtype == torch.float32
        torch.testing.assert_close(mine, true, rtol=2**-6, atol=float(true.abs().max()) * 2**-7)


def slopes_of(y: Tensor, layer: nn.Conv2d, outer: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(y, list(layer.parameters()), outer)


def test_acting_is_the_librarys() -> None:
    """Without gradients nothing is kept for them."""
    layer = Convolution(2, 3, 2)
    with torch.no_grad():
        assert layer(torch.randn(1, 2, 4, 4)).grad_fn is None
    assert type(layer(torch.randn(1, 2, 4, 4)).grad_fn).__name__ == "ConvolveBackward"
