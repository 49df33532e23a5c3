"""Types of arguments that several subcommands share, with their names in --help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

SetName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
SetNames = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
InputFiles = Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
OutputPath = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
RunPath = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
EnvId = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]
Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]
