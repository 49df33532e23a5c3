"""lookfurther clone PRESET [--scale SCALE] --demos SET ... [settings]"""

from __future__ import annotations

from dataclasses import dataclass

from lookfurther.cli.options.preset_options import (
    PresetOptions,
    find_defaults,
    parse_preset_options,
    split_preset,
)
from lookfurther.config import replace
from lookfurther.system.formatting import pluralize


@dataclass(frozen=True)
class CloneOptions(PresetOptions):
    """Behaviour cloning: train the network of a preset to predict the demonstrated actions."""

    epochs: int = 100
    """passes over the demonstrations, at most"""
    patience: int = 5
    """stop after this many epochs without a lower loss, of the held-out steps if there are any"""
    held_out: float = 0.1
    """share of the steps that is not learned from; 0: learn from all"""


def parse_clone_options(args: list[str]) -> CloneOptions:
    """Parse the arguments; the preset comes first."""
    name, scale, rest = split_preset(args, "clone")
    config = replace(
        find_defaults(name, scale, rest), preset="clone", learner__imitated_episodes="all"
    )
    return parse_preset_options(CloneOptions(name, scale, config), rest, "lookfurther clone")


def run(args: list[str]) -> int:
    """Clone and print a summary."""
    options = parse_clone_options(args)
    from lookfurther.training.clone import clone

    summary = clone(
        options.config,
        epochs=options.epochs,
        patience=options.patience,
        held_out=options.held_out,
    )
    steps = "held-out " if options.held_out else ""
    print(
        f"{pluralize(summary.epochs, 'epoch')}, {pluralize(summary.updates, 'update')}"
        f" in {summary.minutes:.1f} min;"
        f" {100 * summary.held_out_accuracy:.1f} % of the {steps}actions"
    )
    print(f"run folder: {summary.folder}")
    return 0
