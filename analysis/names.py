"""How readable the source tree is, in numbers: names, folders, files and functions.

    python -m analysis.names [FOLDER ...]

One column for each folder, by default the package. A name has two words if it has an underscore
between letters or two capitals, as in `compute_loss` and `ActorPool`.
"""

from __future__ import annotations

import argparse
import ast
import re
import statistics
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+")


def count_words(name: str) -> int:
    """Words of a snake-case or camel-case name."""
    return len(WORD.findall(name))


def public_definitions(tree: ast.Module) -> Iterator[Definition]:
    """Functions, methods and classes, without Python's own double underscores."""
    for node in ast.walk(tree):
        if isinstance(node, Definition) and not node.name.startswith("__"):
            yield node


def two_word_share(names: list[str]) -> float:
    """Share of names with two words or more."""
    return sum(count_words(name) > 1 for name in names) / max(1, len(names))


def duplicated_names(trees: list[ast.Module], kind: type[ast.AST]) -> int:
    """Module-level names of a kind that more than one module defines."""
    names = Counter(
        node.name
        for tree in trees
        for node in tree.body
        if isinstance(node, kind) and isinstance(node, Definition)
    )
    return sum(count > 1 and name not in ("run", "main") for name, count in names.items())


def measure_tree(root: Path) -> dict[str, str]:
    """The figures of a source tree."""
    files = sorted(root.rglob("*.py"))
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    trees = [ast.parse(text) for text in texts.values()]
    definitions = [node for tree in trees for node in public_definitions(tree)]
    functions = [node for node in definitions if not isinstance(node, ast.ClassDef)]
    classes = [node.name for node in definitions if isinstance(node, ast.ClassDef)]
    lengths = sorted((node.end_lineno or 0) - node.lineno + 1 for node in functions)
    folders = Counter(path.parent for path in files)
    lines = {path: len(text.splitlines()) for path, text in texts.items()}
    longest = max(lines, key=lambda path: lines[path])
    return {
        "functions with two words or more": f"{two_word_share([f.name for f in functions]):.0%}",
        "classes with two words or more": f"{two_word_share(classes):.0%}",
        "function names in two modules": str(duplicated_names(trees, ast.FunctionDef)),
        "class names in two modules": str(duplicated_names(trees, ast.ClassDef)),
        "modules in the fullest folder": str(max(folders.values())),
        "lines of the longest file": f"{lines[longest]} ({longest.relative_to(root)})",
        "lines of a function: median, 95 %, longest": (
            f"{statistics.median(lengths):.0f}, {lengths[int(0.95 * len(lengths))]}, {lengths[-1]}"
        ),
        "modules": str(len(files)),
        "lines": f"{sum(lines.values()):,}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, default=[Path("lookfurther")])
    measured = [measure_tree(folder) for folder in parser.parse_args().folders]
    for figure in measured[0]:
        print("| " + " | ".join([figure, *(column[figure] for column in measured)]) + " |")


if __name__ == "__main__":
    main()
