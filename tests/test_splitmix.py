"""SplitMix64 in NumPy and torch against its definition in Python integers."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from lookfurther.replay.splitmix import init_rng_state, mix_bits, next_uniform

WORD = 2**64


def oracle(state: int, count: int) -> list[int]:
    """The first outputs of SplitMix64, as its authors define it."""
    result = []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) % WORD
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % WORD
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % WORD
        result.append(z ^ (z >> 31))
    return result


def test_oracle_matches_published_numbers() -> None:
    assert oracle(1234567, 3) == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(state=st.integers(-(2**63), 2**63 - 1), counts=st.lists(st.integers(1, 9), max_size=4))
def test_numpy_and_torch_continue_the_sequence(state: int, counts: list[int]) -> None:
    expected = oracle(state, sum(counts))
    host, tensor = init_rng_state(state).numpy(), init_rng_state(state)
    result = []
    for count in counts:
        ours = next_uniform(host, 1 + np.arange(count))
        assert np.array_equal(ours, next_uniform(tensor, 1 + torch.arange(count)).numpy())
        assert int(host[0]) == int(tensor[0])
        result += ours.tolist()
    assert result == [(z >> 11) / 2**53 for z in expected]


def test_mix_bits_is_injective() -> None:
    z = np.arange(-50_000, 50_000)
    assert len(np.unique(mix_bits(z))) == len(z)


def test_numbers_are_uniform() -> None:
    u = next_uniform(init_rng_state(3).numpy(), 1 + np.arange(200_000))
    counts = np.bincount((u * 100).astype(int), minlength=100)
    chi2 = ((counts - 2000) ** 2 / 2000).sum()
    assert 0 <= u.min() < u.max() < 1
    assert chi2 < 149  # 99.9 % of such samples
