"""A table: what the page shows and what its CSV file says."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from lookfurther.evaluation.aggregates import Estimate


class Cell(NamedTuple):
    """What a table shows in one place, and what its CSV file says there."""

    text: str
    value: str | float = ""
    note: str = ""  # smaller, such as an interval
    best: bool = False


Row = list[Cell]


@dataclass(frozen=True)
class Table:
    """A table of the page and its CSV file."""

    name: str
    title: str
    caption: str
    header: tuple[str, ...]
    rows: list[Row]
    names: int = 1  # so many first columns are words, not numbers
    paper: int = 0  # so many last columns are the paper's

    def csv(self) -> str:
        """The table's values as a CSV file."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.header)
        writer.writerows([cell.value for cell in row] for row in self.rows)
        return text.getvalue()


def words(text: str) -> Cell:
    return Cell(text, text)


def number(value: float | None, note: str = "", mark: str = "", best: bool = False) -> Cell:
    """A score, or a dash where there is none."""
    if value is None or not math.isfinite(value):
        return Cell("–")
    return Cell(spelt(value) + mark, float(value), note, best)


def spelt(value: float) -> str:
    """A number with as many digits as a reader wants: 0.94, 21.3, 35,000."""
    size = abs(value)
    return f"{value:,.0f}" if size >= 1000 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def brief(value: float) -> str:
    """A count in three or four digits: 250, 4,300, 47.8 M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            unit = 1e3 if letter == "k" else size
            return f"{value / unit:.4g} {letter}"
    return f"{value:,.0f}"


def percent(value: float, note: str = "") -> Cell:
    return Cell(f"{value:,.0f} %", float(value), note)


def span(found: Estimate, spell: Callable[[float], str] = spelt) -> str:
    """An interval in brackets; nothing where there is none."""
    return "" if math.isnan(found.low) else f"[{spell(found.low)}, {spell(found.high)}]"
