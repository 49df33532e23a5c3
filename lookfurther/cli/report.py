"""lookfurther report RUN ... [--out DIR]"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from lookfurther.cli.options.parsing import parse_options
from lookfurther.errors import ConfigError


@dataclass(frozen=True)
class ReportOptions:
    """Write one page of tables and figures from run folders, with files of each."""

    runs: Annotated[
        tuple[Path, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="RUN [RUN ...]", help_behavior_hint="(required)"),
    ]
    """run folders, or folders that contain them"""
    out: Path = Path("report")
    """folder for the page and its files"""


def run(args: list[str]) -> int:
    """Write the report and print its path."""
    options = parse_options(ReportOptions, ReportOptions(()), args, "lookfurther report")
    if not options.runs:
        raise ConfigError("report needs a run folder, or a folder of them: lookfurther report runs")
    from lookfurther.report import write_report

    print(f"report: {write_report(options.runs, options.out)}")
    return 0
