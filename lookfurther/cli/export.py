"""lookfurther export RUN --out DIR [--half]"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from lookfurther.cli.options.parsing import parse_options


@dataclass(frozen=True)
class ExportOptions:
    """Write weights, configuration and model card of a run to a folder for Agent.load."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = tyro.MISSING
    """run folder (its best checkpoint, otherwise its newest) or one checkpoint"""
    out: Path = tyro.MISSING
    """new folder"""
    half: bool = False
    """store the weights in float16: half the size, values change by about 0.1 %"""


def run(args: list[str]) -> int:
    """Write the export and print its folder."""
    options = parse_options(ExportOptions, ExportOptions(), args, "lookfurther export")
    from lookfurther.report.model_card import export_run

    print(f"export: {export_run(options.run, options.out, options.half)}")
    return 0
