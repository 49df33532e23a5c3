"""Arguments that several subcommands share, with the names that their --help shows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

Name = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
Names = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
Files = Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
Out = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
Run = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
Env = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]
Switch = Annotated[bool, tyro.conf.FlagCreatePairsOff]
