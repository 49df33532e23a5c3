"""The package as users install it: public names, version, types and data files."""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

import lookfurther
from lookfurther.settings.setting_names import RENAMED_SETTINGS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "lookfurther"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_public_names_equal_the_lazy_table() -> None:
    assert lookfurther.__all__ == sorted(lookfurther._MODULE_OF)


@pytest.mark.parametrize("name", lookfurther.__all__)
def test_public_name_is_defined_in_its_module(name: str) -> None:
    value = getattr(lookfurther, name)
    assert value.__name__ == name
    assert value.__module__ == lookfurther._MODULE_OF[name]


def test_unknown_public_name_is_an_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'agent_of'"):
        lookfurther.agent_of  # noqa: B018


def test_version_is_defined_once() -> None:
    assert PYPROJECT["project"]["dynamic"] == ["version", "readme"]
    assert "version" not in PYPROJECT["project"]
    source = PYPROJECT["tool"]["setuptools"]["dynamic"]["version"]
    assert source == {"attr": "lookfurther.__version__"}
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.findall(r"^version: (\S+)$", citation, re.MULTILINE) == [lookfurther.__version__]
    assert f"\n## {lookfurther.__version__}\n" in (ROOT / "CHANGELOG.md").read_text()


def test_changelog_lists_every_renamed_setting() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    rows = re.findall(r"^\| `([\w.]+)` \| `([\w.]+)` \|$", changelog, re.MULTILINE)
    assert dict(rows) == RENAMED_SETTINGS


def test_package_data_contains_every_data_file() -> None:
    patterns = PYPROJECT["tool"]["setuptools"]["package-data"]["lookfurther"]
    files = [
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    ]
    assert "py.typed" in files
    assert [file for file in files if not any(fnmatch(file, p) for p in patterns)] == []
    assert [p for p in patterns if not any(fnmatch(file, p) for file in files)] == []


def test_pre_commit_uses_the_pinned_ruff() -> None:
    constraints = (ROOT / "constraints.txt").read_text()
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    (pinned,) = re.findall(r"^ruff==(\S+)$", constraints, re.MULTILINE)
    assert re.findall(r"ruff-pre-commit\n    rev: v(\S+)", hooks) == [pinned]


def test_ci_runs_all_supported_versions() -> None:
    """The Pythons of the classifiers, and the oldest torch that is allowed."""
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    pythons = re.findall(r"Python :: (3\.\d+)", " ".join(PYPROJECT["project"]["classifiers"]))
    (matrix,) = re.findall(r"python: \[(.*)\]", workflow)
    assert re.findall(r"3\.\d+", matrix) == pythons
    (oldest,) = (d for d in PYPROJECT["project"]["dependencies"] if d.startswith("torch>="))
    assert f"torch=={oldest.removeprefix('torch>=')}.*" in workflow
