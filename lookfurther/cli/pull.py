"""lookfurther pull OWNER/NAME [--kind agent | demos] [--out DIR]"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from lookfurther.cli.options.parsing import parse_options


@dataclass(frozen=True)
class PullOptions:
    """Download an agent or a demonstration set from the Hugging Face Hub, and check it."""

    repo: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OWNER/NAME")] = tyro.MISSING
    """repository on the Hub"""
    kind: Literal["agent", "demos"] = "agent"
    """what it holds"""
    out: Path | None = None
    """new folder; by default agents/NAME, or the set OWNER/NAME in Minari's folder"""


def run(args: list[str]) -> int:
    """Download and print the folder."""
    options = parse_options(PullOptions, PullOptions(), args, "lookfurther pull")
    from lookfurther.sharing.hub import default_folder, pull

    out = options.out or default_folder(options.repo, options.kind)
    print(f"pulled: {pull(options.repo, options.kind, out)}")
    return 0
