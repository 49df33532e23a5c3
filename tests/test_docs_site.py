"""The documentation site builds without warnings and contains every page."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import lookfurther

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_site_builds_without_warnings(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    pytest.importorskip("myst_parser")
    command = [sys.executable, "-m", "sphinx", "-q", "--fail-on-warning", "docs", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    pages = {path.stem for path in tmp_path.glob("*.html")}
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} <= pages
    reference = (tmp_path / "reference.html").read_text()
    missing = [name for name in lookfurther.__all__ if f"lookfurther.{name}" not in reference]
    assert missing == ["LookFurtherError"]  # it is listed with its module
    assert "lookfurther.errors.LookFurtherError" in reference


def test_every_page_is_in_the_contents() -> None:
    index = (ROOT / "docs" / "index.md").read_text().split("\n")
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index"}
    assert pages <= set(index)
