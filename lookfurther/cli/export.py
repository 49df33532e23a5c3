"""lookfurther export RUN --out DIR"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from lookfurther.cli.parsing import parse_options


@dataclass(frozen=True)
class ExportOptions:
    """Weights, configuration and a model card of a run, in a folder that Agent.load takes."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = tyro.MISSING
    """run folder: its best checkpoint, else its newest; or one checkpoint"""
    out: Path = tyro.MISSING
    """new folder"""


def run(args: list[str]) -> int:
    """Write the export and say where it is."""
    options = parse_options(ExportOptions, ExportOptions(), args, "lookfurther export")
    from lookfurther.report.model_card import export_run

    print(f"export: {export_run(options.run, options.out)}")
    return 0
