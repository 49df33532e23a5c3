"""lookfurther train PRESET [--scale SCALE] [--resume] [--init PATH] [--cluster ADDRESS] ..."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lookfurther.cli.options.parsing import Flag
from lookfurther.cli.options.preset_options import (
    PresetOptions,
    find_defaults,
    parse_preset_options,
    split_preset,
)
from lookfurther.system.formatting import pluralize
from lookfurther.validation import validate

if TYPE_CHECKING:
    from lookfurther.training.monitoring.summary import Summary


@dataclass(frozen=True)
class TrainOptions(PresetOptions):
    """Train an agent. Every setting of the configuration is an option."""

    resume: Flag = False
    """continue from the newest valid checkpoint of the run folder"""
    init: Path | None = None
    """start with the weights of a run, a checkpoint, an export or a safetensors file"""
    quiet: Flag = False
    """print only warnings and the summary at the end"""
    cluster: str = ""
    """run the actors with Ray: local, auto, or HOST:PORT of a cluster's head node"""
    cluster_actors: int = 0
    """ranges of lanes, each an actor with one core; 0: one for each core of the cluster but one"""


def parse_train_options(args: list[str]) -> TrainOptions:
    """Parse the arguments; the preset comes first."""
    name, scale, rest = split_preset(args)
    defaults = TrainOptions(name, scale, find_defaults(name, scale, rest))
    return parse_preset_options(defaults, rest, "lookfurther train")


def run(args: list[str]) -> int:
    """Train, draw the learning curve and print a summary."""
    options = parse_train_options(args)
    config = validate(options.config)
    from lookfurther.report.learning_curve import plot_learning_curve
    from lookfurther.system.output import print_line
    from lookfurther.training.cluster.options import ClusterOptions
    from lookfurther.training.train import train

    cluster = None
    if options.cluster:
        cluster = ClusterOptions(options.cluster, options.cluster_actors)
    summary = train(
        config,
        resume=options.resume,
        init=options.init,
        quiet=options.quiet,
        cluster=cluster,
    )
    folder = summary.folder
    plot_learning_curve(folder / "metrics.jsonl", folder / "curve.png")
    print_line(f"{format_training_summary(summary)}\nrun folder: {folder}")
    if summary.stop_reason == "time" and not config.run.keep_final_replay:
        print_line(f"stopped (time): continue with --init {folder} in another --run.folder")
    elif summary.stop_reason != "done":
        change = "more --run.minutes" if summary.stop_reason == "time" else "the same command"
        print_line(f"stopped ({summary.stop_reason}): continue with {change} and --resume")
    return 0


def format_training_summary(summary: Summary) -> str:
    """Format the summary as one line."""
    from lookfurther.system.formatting import format_score

    returns = {
        "recent return": summary.return_mean,
        "low-epsilon lanes": summary.return_low_epsilon,
        "best": summary.return_best,
    }
    known = ", ".join(f"{n} {format_score(r)}" for n, r in returns.items() if not math.isnan(r))
    return (
        f"{pluralize(summary.step, 'step')}, {pluralize(summary.updates, 'update')},"
        f" {pluralize(summary.episodes, 'episode')} in {summary.minutes:.1f} min;"
        f" {known or 'no episode has ended yet'}"
    )
