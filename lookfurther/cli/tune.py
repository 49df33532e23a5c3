"""lookfurther tune PRESET [--scale SCALE] --out DIR [--trials N] [--space FILE] [settings]"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lookfurther.cli.options.preset_options import (
    PresetOptions,
    find_defaults,
    parse_preset_options,
    split_preset,
)
from lookfurther.errors import ConfigError
from lookfurther.system.formatting import pluralize
from lookfurther.validation import validate


@dataclass(frozen=True)
class TuneOptions(PresetOptions):
    """Search for settings with Optuna. Repeat the command to continue a search."""

    out: Path = Path("tuning")
    """folder of the search: its trials and best.toml"""
    trials: int = 20
    """trials in total, including those of earlier calls"""
    episodes: int = 20
    """episodes that score a trial"""
    space: Path | None = None
    """TOML file with the settings to search over; by default the package's"""


def parse_tune_options(args: list[str]) -> TuneOptions:
    """Parse the arguments; the preset comes first."""
    name, scale, rest = split_preset(args, "tune")
    defaults = TuneOptions(name, scale, find_defaults(name, scale, rest))
    options = parse_preset_options(defaults, rest, "lookfurther tune")
    for option, value in {"trials": options.trials, "episodes": options.episodes}.items():
        if value < 1:
            raise ConfigError(f"--{option} must be 1 or more, not {value}")
    return options


def run(args: list[str]) -> int:
    """Search and print the best settings as options of `lookfurther train`."""
    options = parse_tune_options(args)
    config = validate(options.config)
    from lookfurther.evaluation.tuning import read_space, tune

    space = read_space(options.space, config)
    result = tune(config, space, options.trials, options.out, options.episodes)
    trials = pluralize(result.trials, "trial")
    print(f"{trials}, best score {result.score:g}: {options.out / 'best.toml'}")
    print(" ".join(f"--{setting} {value}" for setting, value in result.settings.items()))
    return 0
