"""Values that change linearly over a run."""

from __future__ import annotations


def linear_schedule(step: int, first_step: int, last_step: int, start: float, end: float) -> float:
    """`start` up to `first_step`, `end` from `last_step` on, and a straight line between them."""
    if step <= first_step:
        return start
    share = min(1.0, (step - first_step) / max(1, last_step - first_step))
    return start + share * (end - start)
