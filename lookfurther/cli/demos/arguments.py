"""Types of arguments that several subcommands share, with their names in --help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

SetName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
SetNames = Annotated[
    tuple[str, ...],
    tyro.conf.Positional,
    tyro.conf.arg(metavar="NAME [NAME ...]", help_behavior_hint="(required)"),
]
InputFiles = Annotated[
    tuple[Path, ...],
    tyro.conf.Positional,
    tyro.conf.arg(metavar="FILE [FILE ...]", help_behavior_hint="(required)"),
]
OutputPath = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
RunPath = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
EnvId = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]
# Its commands check that a name is given.
NewSetName = Annotated[str, tyro.conf.arg(metavar="NEW", help_behavior_hint="(required)")]
