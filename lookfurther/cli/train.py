"""lookfurther train PRESET [--scale SCALE] [--resume] [--init WEIGHTS] [settings]"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from lookfurther.cli.parsing import parse_options
from lookfurther.config import Config
from lookfurther.errors import ConfigError
from lookfurther.presets import PRESETS, preset
from lookfurther.validation import validate

if TYPE_CHECKING:
    from lookfurther.training.summary import Summary


@dataclass(frozen=True)
class TrainOptions:
    """Train an agent. Every setting of the configuration is an option."""

    config: Annotated[Config, tyro.conf.arg(name="")]
    resume: bool = False
    """continue from the newest valid checkpoint of the run folder"""
    init: Path | None = None
    """start with the weights of a run, a checkpoint, an export or a safetensors file"""


def run(args: list[str]) -> int:
    """Train, draw the learning curve and print a summary."""
    name, scale, rest = split_preset(args)
    options = parse_options(
        TrainOptions, TrainOptions(preset(name, scale)), rest, f"lookfurther train {name}"
    )
    config = validate(options.config)
    from lookfurther.report.learning_curve import plot_learning_curve
    from lookfurther.training.console import print_line
    from lookfurther.training.train import train

    summary = train(config, resume=options.resume, init=options.init)
    folder = summary.folder
    plot_learning_curve(folder / "metrics.jsonl", folder / "curve.png")
    print_line(f"{format_training_summary(summary)}\nrun folder: {folder}")
    if summary.stop_reason != "done":
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
        f"{summary.step:,} steps, {summary.updates:,} updates, {summary.episodes:,} episodes in"
        f" {summary.minutes:.1f} min; {known or 'no episode has ended yet'}"
    )


def split_preset(args: list[str]) -> tuple[str, str, list[str]]:
    """Return (preset, scale, other arguments); the first two determine all defaults."""
    args = list(args)
    scale = "paper"
    for i, arg in enumerate(args):
        if arg == "--scale" or arg.startswith("--scale="):
            scale = arg.partition("=")[2] or (args[i + 1] if i + 1 < len(args) else "")
            del args[i : i + (1 if "=" in arg else 2)]
            break
    if args and not args[0].startswith("-"):
        return args[0], scale, args[1:]
    if "-h" in args or "--help" in args:
        return "apex-dqfd", scale, args
    raise ConfigError(f"train needs a preset: one of {', '.join(PRESETS)}")
