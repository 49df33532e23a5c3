"""lookfurther train PRESET [--scale SCALE] [--resume] [settings]"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from lookfurther.cli.parsing import parse
from lookfurther.config import Config, validate
from lookfurther.errors import ConfigError
from lookfurther.presets import PRESETS, preset

if TYPE_CHECKING:
    from lookfurther.training.loop import Summary


@dataclass(frozen=True)
class TrainOptions:
    """Train an agent. Every setting of the configuration is an option."""

    config: Annotated[Config, tyro.conf.arg(name="")]
    resume: bool = False
    """go on from the newest valid checkpoint of the run folder"""


def run(words: list[str]) -> int:
    """Train, draw the curve, and say how it went."""
    name, scale, rest = split(words)
    options = parse(
        TrainOptions, TrainOptions(preset(name, scale)), rest, f"lookfurther train {name}"
    )
    config = validate(options.config)
    from lookfurther.report.learning_curve import learning_curve
    from lookfurther.training.console import say
    from lookfurther.training.train import train

    summary = train(config, resume=options.resume)
    folder = summary.folder
    learning_curve(folder / "metrics.jsonl", folder / "curve.png")
    say(f"{told(summary)}\nrun folder: {folder}")
    if summary.stopped != "done":
        how = "more --run.minutes" if summary.stopped == "time" else "the same command"
        say(f"stopped ({summary.stopped}): go on with {how} and --resume")
    return 0


def told(summary: Summary) -> str:
    """How it went, in a line."""
    from lookfurther.training.console import score

    returns = {
        "recent return": summary.return_mean,
        "low-epsilon lanes": summary.return_low_epsilon,
        "best": summary.return_best,
    }
    known = ", ".join(f"{n} {score(r)}" for n, r in returns.items() if not math.isnan(r))
    return (
        f"{summary.step:,} steps, {summary.updates:,} updates, {summary.episodes:,} episodes in"
        f" {summary.minutes:.1f} min; {known or 'no episode has ended yet'}"
    )


def split(words: list[str]) -> tuple[str, str, list[str]]:
    """(preset, scale, the remaining words): these two decide every other setting's default."""
    words = list(words)
    scale = "paper"
    for i, word in enumerate(words):
        if word == "--scale" or word.startswith("--scale="):
            value = word.partition("=")[2] or (words[i + 1] if i + 1 < len(words) else "")
            scale = value
            del words[i : i + (1 if "=" in word else 2)]
            break
    if words and not words[0].startswith("-"):
        return words[0], scale, words[1:]
    if "-h" in words or "--help" in words:
        return "apex-dqfd", scale, words
    raise ConfigError(f"train needs a preset: one of {', '.join(PRESETS)}")
