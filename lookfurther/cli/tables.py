"""Plain-text tables, laid out by rich."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from lookfurther.system.printable import make_printable

MAX_WIDTH = 100_000  # wider than any table, so that rich never wraps or crops


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]], alignment: str) -> str:
    """Format columns aligned to the left (<) or right (>); an empty header is left out.

    The text has no colours and is never wrapped, so it is the same in a terminal and in a pipe.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=bool(header))
    for i, side in enumerate(alignment):
        justify = "left" if side == "<" else "right"
        table.add_column(header[i] if header else "", justify=justify, no_wrap=True)
    for row in rows:
        table.add_row(*(make_printable(cell) for cell in row))
    console = Console(
        width=MAX_WIDTH,
        color_system=None,
        force_terminal=False,
        force_jupyter=False,
        markup=False,
        emoji=False,
        highlight=False,
    )
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().rstrip("\n").split("\n"))
