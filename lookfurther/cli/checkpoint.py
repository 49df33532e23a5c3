"""lookfurther checkpoint RUN"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from lookfurther.cli.options.parsing import parse_options


@dataclass(frozen=True)
class CheckpointOptions:
    """Save a checkpoint of a run in progress after its current step."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = tyro.MISSING
    """run folder in which another process trains"""


def run(args: list[str]) -> int:
    """Send the request and print the id of the process that received it."""
    options = parse_options(CheckpointOptions, CheckpointOptions(), args, "lookfurther checkpoint")
    from lookfurther.training.run_process import request_checkpoint

    pid = request_checkpoint(options.run)
    print(f"checkpoint requested: process {pid} saves it after its current step")
    return 0
