"""lookfurther clone PRESET [--scale SCALE] --demos SET ... [settings]"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from lookfurther.cli.parsing import parse_options
from lookfurther.cli.train import split_preset
from lookfurther.config import Config, replace
from lookfurther.presets import preset


@dataclass(frozen=True)
class CloneOptions:
    """Behaviour cloning: train the network of a preset to predict the demonstrated actions."""

    config: Annotated[Config, tyro.conf.arg(name="")]
    epochs: int = 100
    """passes over the demonstrations, at most"""
    patience: int = 5
    """stop after this many epochs without a lower loss on the held-out steps"""
    held_out: float = 0.1
    """share of the steps that is not learned from"""


def run(args: list[str]) -> int:
    """Clone and print a summary."""
    name, scale, rest = split_preset(args)
    config = replace(preset(name, scale), preset="clone", learner__imitated_episodes="all")
    options = parse_options(CloneOptions, CloneOptions(config), rest, f"lookfurther clone {name}")
    from lookfurther.training.clone import clone

    summary = clone(
        options.config,
        epochs=options.epochs,
        patience=options.patience,
        held_out=options.held_out,
    )
    print(
        f"{summary.epochs} epochs, {summary.updates:,} updates in {summary.minutes:.1f} min;"
        f" {100 * summary.held_out_accuracy:.1f} % of the held-out actions"
    )
    print(f"run folder: {summary.folder}")
    return 0
