"""Markdown of cards: text from files is escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable

from lookfurther.system.printable import make_printable


def escape_markdown(value: object) -> str:
    """Escape text so that neither Markdown nor HTML interprets any of it."""
    return re.sub(r"([\\`*_\[\]<>|&~$#!])", r"\\\1", make_printable(value))


def code_span(value: object) -> str:
    """Text as a code span inside a table."""
    return f"`{make_printable(value).replace('`', chr(39)).replace('|', chr(92) + '|')}`"


def markdown_table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
