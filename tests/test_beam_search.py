"""Distances of the beam search that aligns demonstrations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookfurther.demos.beam_search import compute_byte_limits, ram_distances

pytest.importorskip("ale_py")


RAM = st.binary(min_size=128, max_size=128).map(lambda x: np.frombuffer(x, np.uint8))


@given(RAM, RAM, st.integers(0, 64))
def test_ram_distances_matches_plain_sum(a: np.ndarray, b: np.ndarray, limit: int) -> None:
    gaps = [abs(x - y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    plain = sum(min(gap, 256 - gap, limit) for gap in gaps)
    limits = np.full(128, limit)
    assert (
        ram_distances(a, b.astype(np.int16), limits)
        == plain
        == ram_distances(b, a.astype(np.int16), limits)
    )
    assert ram_distances(a, a.astype(np.int16), limits) == 0


def test_byte_limits_are_highest_for_rare_changes() -> None:
    ram = np.zeros((101, 128), np.int16)
    ram[::2, 0] = 1  # in every step
    ram[::20, 1] = 1  # in a tenth of them
    ram[50:, 2] = 1  # once
    assert compute_byte_limits(ram)[:4].tolist() == [2, 20, 64, 64]
