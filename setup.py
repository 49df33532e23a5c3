"""The description on PyPI: README.md with absolute addresses. pyproject.toml has the rest."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent


def absolute_readme() -> str:
    """README.md; PyPI shows no files of the repository, so its links and images need addresses."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    repository = project["urls"]["Repository"]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"(!\[[^]]*\])\((?!https:)", rf"\1({repository}/raw/main/", text)
    return re.sub(r"(?<!!)(\[[^]]*\])\((?!https:)", rf"\1({repository}/blob/main/", text)


setup(long_description=absolute_readme(), long_description_content_type="text/markdown")
