"""lookfurther push RUN | SET OWNER/NAME [--private]"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from lookfurther.cli.options.parsing import Flag, parse_options


@dataclass(frozen=True)
class PushOptions:
    """Upload an agent or a demonstration set with its card to the Hugging Face Hub."""

    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|SET")] = tyro.MISSING
    """run folder, export, or name or path of a set"""
    repo: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OWNER/NAME")] = tyro.MISSING
    """repository on the Hub, which is created if it does not exist"""
    private: Flag = False
    """make a new repository private"""


def run(args: list[str]) -> int:
    """Upload and print the address."""
    options = parse_options(PushOptions, PushOptions(), args, "lookfurther push")
    from lookfurther.sharing.hub import push

    print(f"pushed: {push(options.source, options.repo, options.private)}")
    return 0
