"""Damaged files for readers; LOOKFURTHER_FUZZ sets their number, by default a small one."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from lookfurther.errors import LookFurtherError

NUM_FILES = int(os.environ.get("LOOKFURTHER_FUZZ", "40"))
fuzz = settings(
    max_examples=NUM_FILES,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
fuzz_few = settings(fuzz, max_examples=max(1, NUM_FILES // 8))  # for readers that start an emulator


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Data that is truncated, altered or spliced, or random data."""
    kinds = ("cut", "bytes", "bits", "number", "splice", "text", "random")
    kind = draw(st.sampled_from(kinds))
    changed = bytearray(data)
    if kind == "random":
        return draw(st.binary(max_size=300))
    if kind == "cut":
        return data[: draw(st.integers(0, len(data) - 1))]
    for _ in range(draw(st.integers(1, 8))):
        offset = draw(st.integers(0, max(len(changed) - 1, 0)))
        if kind == "bytes":
            changed[offset : offset + 1] = draw(st.binary(max_size=9))
        elif kind == "bits" and changed:
            changed[offset] ^= 1 << draw(st.integers(0, 7))
        elif kind == "number":
            value = draw(st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1]))
            width = draw(st.sampled_from([4, 8]))
            changed[offset : offset + width] = value.to_bytes(8, "little")[:width]
        elif kind == "splice":
            other = draw(st.integers(0, len(data) - 1))
            changed[offset:offset] = data[other : other + draw(st.integers(0, 200))]
        elif kind == "text":
            words = [b"null", b"-1", b"1e999", b"[]", b"{}", b'"x"', b"9" * 30, b"true", b"../"]
            changed[offset : offset + draw(st.integers(0, 9))] = draw(st.sampled_from(words))
    return bytes(changed)


def read_or_one_line_error(call: Callable[[], Any]) -> None:
    """A reader succeeds, or raises an error of this package with one line."""
    message = ""
    try:
        call()
    except LookFurtherError as error:
        message = str(error)
    assert "\n" not in message
