"""docs/comparison.md: every number of the table is the count of its snippet."""

from __future__ import annotations

import ast
import re

import pytest

from tests.doc_pages import COMPARISON, rows, tables, text

OURS = "lookfurther"
# The tasks that take longer than in another library. The page says so.
LONGER = {"Install"}


def count_commands(code: str) -> int:
    """Shell commands; a backslash continues a line and && separates two commands."""
    lines = code.replace("\\\n", " ").splitlines()
    return sum(len(line.split("&&")) for line in lines if line.strip())


def count_statements(code: str) -> int:
    """Python statements, those inside functions and classes included."""
    return sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(code)))


COUNT = {
    "sh": count_commands,
    "bash": count_commands,
    "python": count_statements,
    "py": count_statements,
}


def snippet_counts() -> dict[tuple[str, str], int]:
    """Task and library of every snippet, with the sum of its blocks."""
    counts: dict[tuple[str, str], int] = {}
    task = library = ""
    pattern = r"^### ([^\n]+)$|^\*\*([^\n]+)\*\*$|^```(\w+)\n(.*?)^```"
    appendix = text(COMPARISON).partition("## The snippets")[2]
    for heading, label, language, code in re.findall(pattern, appendix, re.M | re.S):
        task, library = heading or task, label or library
        if language:
            key = (task, library)
            counts[key] = counts.get(key, 0) + COUNT[language](code)
    return counts


def table_counts() -> dict[tuple[str, str], int]:
    """Task and library of every number in the table."""
    (header,) = (header for header, _ in tables(COMPARISON) if header[0] == "task")
    return {
        (task, library): int(match[0])
        for task, *cells in rows(COMPARISON, "task")
        for library, cell in zip(header[1:], cells, strict=True)
        if (match := re.match(r"\d+", cell))
    }


@pytest.mark.parametrize(
    ("code", "count"), [("a\n", 1), ("a && b\n\nc\n", 3), ("a \\\n    --b 1\n", 1)]
)
def test_commands_are_counted(code: str, count: int) -> None:
    assert count_commands(code) == count


def test_statements_are_counted() -> None:
    code = "import a\n\n\ndef f(\n    x,\n):\n    if x:\n        a.g()\n    return x\n"
    assert count_statements(code) == 5


def test_numbers_are_the_counts_of_the_snippets() -> None:
    assert table_counts() == snippet_counts()


def test_ours_is_longer_only_where_the_page_says_so() -> None:
    counts = table_counts()
    tasks = [task for task, *_ in rows(COMPARISON, "task")]
    others = {
        task: [n for (name, library), n in counts.items() if name == task and library != OURS]
        for task in tasks
    }
    longer = {task for task in tasks if counts[task, OURS] > min(others[task], default=10**6)}
    assert longer == LONGER
    section = text(COMPARISON).partition("longer or does less\n\n")[2]
    assert all(f"- **{task}.**" in section for task in LONGER)
