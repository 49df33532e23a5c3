"""CONTRIBUTING.md names files, functions and commands that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
JOURNEY_ROWS = re.findall(r"^\| `(lookfurther/[\w/]+\.py)` \| `([\w.]+)` \|", TEXT, re.MULTILINE)


def defined_names(path: Path) -> set[str]:
    """Functions, classes and Class.method names of a file."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = [m.name for m in node.body if isinstance(m, ast.FunctionDef)]
            names |= {f"{node.name}.{method}" for method in methods}
    return names


def test_three_journeys_are_described() -> None:
    assert len(re.findall(r"^### An? .*", TEXT, re.MULTILINE)) == 3
    assert len(JOURNEY_ROWS) > 30


@pytest.mark.parametrize(("file", "function"), JOURNEY_ROWS)
def test_journey_names_an_existing_function(file: str, function: str) -> None:
    assert function in defined_names(ROOT / file)


def test_named_files_exist() -> None:
    files = re.findall(r"`((?:lookfurther|tests)/[\w/]+\.py)`", TEXT)
    files += re.findall(r"\]\(([\w/.]+\.md)\)", TEXT)
    assert len(files) > 40
    assert [file for file in files if not (ROOT / file).exists()] == []


def test_named_commands_are_make_targets() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    commands = re.findall(r"make ([\w-]+)", TEXT)
    assert commands
    assert set(commands) <= set(targets)
