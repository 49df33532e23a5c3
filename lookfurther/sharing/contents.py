"""What a shared repository may contain, and how pulled files are checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from lookfurther.agent import read_agent
from lookfurther.demos import catalog
from lookfurther.errors import LookFurtherError

MAX_FILES = 100
MAX_BYTES = 8 * 2**30  # of all files of a repository


class RemoteFile(NamedTuple):
    """A file that a repository lists."""

    name: str
    size: int | None


class SharedKind(NamedTuple):
    """A kind of repository: agents are models of the Hub, demonstration sets are datasets."""

    repo_type: str
    files: re.Pattern[str]  # names of the files that are pulled; all others are ignored
    check: Callable[[Path], object]  # raises if pulled files are damaged or hostile


def _check_agent(folder: Path) -> None:
    """Verify hashes, settings and the shapes of weights; the environment is not built."""
    read_agent(folder)


def _check_set(folder: Path) -> None:
    """Read all episodes in the sandbox and verify their hashes; the environment is not built."""
    catalog.open_set(str(folder))


SHARED_KINDS = {
    "agent": SharedKind(
        "model",
        re.compile(
            r"README\.md|config\.json|versions\.json"
            r"|best/step_\d{12,20}/(manifest\.json|facts\.json|weights\.safetensors)"
            r"|evaluation/[\w-]{1,80}/(episodes\.csv|best_returns\.csv|summary\.json)",
            re.ASCII,
        ),
        _check_agent,
    ),
    "demos": SharedKind(
        "dataset", re.compile(r"README\.md|data/(main_data\.hdf5|metadata\.json)"), _check_set
    ),
}


def select_files(repo: str, kind: str, listed: Iterable[RemoteFile]) -> list[RemoteFile]:
    """The files of a repository to pull; raises if they are too many or too large."""
    pattern = SHARED_KINDS[kind].files
    chosen = [file for file in listed if pattern.fullmatch(file.name)]
    if {file.name for file in chosen} <= {"README.md"}:
        raise LookFurtherError(f"{repo} holds no {kind} that lookfurther push has uploaded")
    if len(chosen) > MAX_FILES:
        raise LookFurtherError(f"{repo} has {len(chosen)} files: at most {MAX_FILES} are pulled")
    sizes = [file.size for file in chosen]
    total = sum(size for size in sizes if size is not None)
    if None in sizes or total > MAX_BYTES:
        shown = "an unknown size" if None in sizes else f"{total:,} bytes"
        raise LookFurtherError(f"{repo} has {shown}: at most {MAX_BYTES:,} bytes are pulled")
    return chosen
