"""A table: what the page shows and what its CSV file says."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from lookfurther.evaluation.aggregates import IntervalEstimate
from lookfurther.system.formatting import format_score


class TableCell(NamedTuple):
    """What a table shows in one place, and what its CSV file says there."""

    text: str
    value: str | float = ""
    note: str = ""  # smaller, such as an interval
    is_best: bool = False


TableRow = list[TableCell]


@dataclass(frozen=True)
class ReportTable:
    """A table of the page and its CSV file."""

    name: str
    title: str
    caption: str
    header: tuple[str, ...]
    rows: list[TableRow]
    text_columns: int = 1  # so many first columns are words, not numbers
    paper_columns: int = 0  # so many last columns are the paper's

    def to_csv(self) -> str:
        """The table's values as a CSV file."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.header)
        writer.writerows([cell.value for cell in row] for row in self.rows)
        return text.getvalue()


def text_cell(text: str) -> TableCell:
    return TableCell(text, text)


def number_cell(
    value: float | None, note: str = "", mark: str = "", is_best: bool = False
) -> TableCell:
    """A score, or a dash where there is none."""
    if value is None or not math.isfinite(value):
        return TableCell("–")
    return TableCell(format_score(value) + mark, float(value), note, is_best)


def format_count(value: float) -> str:
    """A count in three or four digits: 250, 4,300, 47.8 M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            unit = 1e3 if letter == "k" else size
            return f"{value / unit:.4g} {letter}"
    return f"{value:,.0f}"


def percent_cell(value: float, note: str = "") -> TableCell:
    return TableCell(f"{value:,.0f} %", float(value), note)


def format_interval(
    estimate: IntervalEstimate, format_value: Callable[[float], str] = format_score
) -> str:
    """An interval in brackets; nothing where there is none."""
    return (
        ""
        if math.isnan(estimate.low)
        else f"[{format_value(estimate.low)}, {format_value(estimate.high)}]"
    )
