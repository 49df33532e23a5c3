"""Numbers as text for people."""

from __future__ import annotations


def format_number(value: float) -> str:
    """A return with at most three decimals: 10,100 or 0.75."""
    is_whole = abs(value - round(value)) < 5e-4
    return f"{round(value):,}" if is_whole else f"{value:,.3f}".rstrip("0")


def format_score(value: float) -> str:
    """A mean score with fewer decimals the larger it is: 0.94, 21.3, 35,000."""
    size = abs(value)
    return f"{value:,.0f}" if size >= 1000 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def pluralize(count: int, noun: str) -> str:
    """A count with its noun: 1 episode, 2 episodes."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
