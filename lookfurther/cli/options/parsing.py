"""Parses command lines into dataclasses, with one-line errors."""

from __future__ import annotations

import contextlib
import io
import re
import tempfile
from pathlib import Path
from typing import Annotated, TypeVar

import tyro

from lookfurther.cli.options.option_types import OPTION_TYPES
from lookfurther.config import unknown_setting
from lookfurther.errors import ConfigError
from lookfurther.settings.setting_names import RENAMED_SETTINGS

T = TypeVar("T")
Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]  # --name without --no-name


def parse_options(options_type: type[T], default: T, args: list[str], prog: str) -> T:
    """Parse options into a dataclass, or raise a one-line ConfigError."""
    check_renamed(args)
    stderr = io.StringIO()
    try:
        with contextlib.redirect_stderr(stderr):
            return tyro.cli(
                options_type, default=default, args=args, prog=prog, registry=OPTION_TYPES
            )
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise ConfigError(summarize_tyro_error(stderr.getvalue())) from None


def check_renamed(args: list[str]) -> None:
    """Raise a ConfigError for the old name of a setting."""
    for arg in args:
        name = arg.partition("=")[0].removeprefix("--").replace("-", "_")
        if arg.startswith("--") and name in RENAMED_SETTINGS:
            raise unknown_setting(name)


def check_writable(option: str, path: Path) -> None:
    """Raise a ConfigError if the file cannot be written, before the work starts."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError("it is a folder")
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise ConfigError(f"{option} {path} cannot be written: {error}") from None


def summarize_tyro_error(box: str) -> str:
    """Return the message and the suggested options of tyro's boxed error."""
    lines = [line.strip("│╭╮╰╯─ \t") for line in box.splitlines()[1:-1]]
    text = " ".join(line for line in lines if line.strip("-"))
    message = re.split(r" Perhaps you meant| Argument helptext| For full helptext", text)[0]
    if match := re.fullmatch(r"Missing from (.*?): (.*) \(required\)", message):
        command = match[1].removeprefix("lookfurther ")
        return f"{command} needs {_join_missing(match[2].split(' (required) '))}"
    suggestions = re.findall(r"(--[\w.-]+)", text.partition("Perhaps you meant")[2])
    suggestions = [name for name in dict.fromkeys(suggestions) if name != "--help"][:3]
    hint = f": did you mean {' or '.join(suggestions)}?" if suggestions else ""
    return message.rstrip(". ") + hint


def _join_missing(missing: list[str]) -> str:
    """Join arguments with their help: NAME (the set) and --out (the new folder)."""
    named = (re.fullmatch(r"(--\S+|\S+)(?: [A-Z]+(?= ))? (.*)", entry) for entry in missing)
    return " and ".join(f"{match[1]} ({match[2]})" for match in named if match)
