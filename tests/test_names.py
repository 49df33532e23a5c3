"""analysis.names: the figures of a small source tree, worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.names import count_words, measure_tree


@pytest.mark.parametrize(
    ("name", "words"),
    [("act", 1), ("compute_loss", 2), ("_sync", 1), ("ActorPool", 2), ("TDLoss", 2), ("h_inv", 2)],
)
def test_words_of_a_name(name: str, words: int) -> None:
    assert count_words(name) == words


def test_figures_of_a_small_tree(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "one.py").write_text("def act():\n    pass\n\n\nclass ActorPool:\n    x = 1\n")
    (tmp_path / "two.py").write_text(
        "def act():\n    pass\n\n\ndef compute_loss():\n    return 1\n"
    )
    (tmp_path / "inner" / "three.py").write_text("class Actor:\n    def act(self):\n        pass\n")
    figures = measure_tree(tmp_path)
    assert figures["functions with two words or more"] == "25%"
    assert figures["classes with two words or more"] == "50%"
    assert figures["function names in two modules"] == "1"
    assert figures["class names in two modules"] == "0"
    assert figures["modules in the fullest folder"] == "2"
    assert figures["lines"] == "15"
