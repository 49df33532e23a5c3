"""The pages of the documentation, and their parts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

from lookfurther.config import Config

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))
NOTES = tuple(sorted(f"notes/{path.name}" for path in (ROOT / "notes").glob("*.md")))
QUICKSTART, PYTHON, RUNS = "docs/quickstart.md", "docs/python.md", "docs/runs.md"
COMPARISON = "docs/comparison.md"
Table = tuple[list[str], list[list[str]]]  # header, rows


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def fences(page: str, language: str) -> Iterator[tuple[int, str]]:
    """Yield (line number, content) of each code block in a language."""
    for match in re.finditer(rf"^```{language}\n(.*?)^```", text(page), re.M | re.S):
        yield text(page)[: match.start(1)].count("\n"), match[1]


def prose(page: str) -> str:
    """Return a page without its code blocks."""
    return re.sub(r"^```.*?^```", "", text(page), flags=re.M | re.S)


def spans(page: str) -> list[str]:
    """Return the inline code of a page."""
    return re.findall(r"`([^`\n]+)`", prose(page))


def tables(page: str) -> list[Table]:
    """Return every table of a page."""
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", prose(page), re.M):
        lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in block.splitlines()]
        header, _, *rows = [[cell.strip() for cell in line] for line in lines]
        found.append((header, rows))
    return found


def rows(page: str, head: str) -> list[list[str]]:
    """Return the rows of all tables whose first column has this head."""
    return [row for header, rows in tables(page) if header[0] == head for row in rows]


def setting_names() -> set[str]:
    """Return every setting as section.name."""
    names = set()
    for field in fields(Config):
        section = getattr(Config(), field.name)
        is_section = is_dataclass(section)
        names |= {f"{field.name}.{f.name}" for f in fields(section)} if is_section else {field.name}
    return names
