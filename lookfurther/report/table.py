"""Tables of a report, with the numbers for their CSV files."""

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
    """One cell: its text on the page and its value in the CSV file."""

    text: str
    value: str | float = ""
    note: str = ""  # in small print, such as an interval
    is_best: bool = False


TableRow = list[TableCell]
EMPTY_CELL = TableCell("–")


@dataclass(frozen=True)
class ReportTable:
    """A table of the page, also written as a CSV file."""

    name: str
    title: str
    caption: str
    header: tuple[str, ...]
    rows: list[TableRow]
    text_columns: int = 1  # the number of leading columns with text
    paper_columns: int = 0  # the number of trailing columns with the paper's numbers

    def to_csv(self) -> str:
        """The values as the text of a CSV file."""
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
    """A score, or a dash if there is none."""
    if value is None or not math.isfinite(value):
        return EMPTY_CELL
    return TableCell(format_score(value) + mark, float(value), note, is_best)


def format_count(value: float) -> str:
    """Format a count with at most four digits: 250, 4,300, 47.8 M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            unit = 1e3 if letter == "k" else size
            return f"{value / unit:.4g} {letter}"
    return f"{value:,.0f}"


def percent_cell(value: float, note: str = "") -> TableCell:
    return TableCell(f"{value:,.0f} %", float(value), note)


def format_interval(
    estimate: IntervalEstimate, formatter: Callable[[float], str] = format_score
) -> str:
    """Format an interval in brackets; an estimate of one run has none."""
    if math.isnan(estimate.low):
        return ""
    return f"[{formatter(estimate.low)}, {formatter(estimate.high)}]"
