"""lookfurther tune PRESET [--scale SCALE] --out DIR [--trials N] [--space FILE] [settings]"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from lookfurther.cli.parsing import parse_options
from lookfurther.cli.train import split_preset
from lookfurther.config import Config
from lookfurther.errors import ConfigError
from lookfurther.presets import preset
from lookfurther.validation import validate


@dataclass(frozen=True)
class TuneOptions:
    """Search for settings with Optuna. Repeat the command to continue a search."""

    config: Annotated[Config, tyro.conf.arg(name="")]
    out: Path = Path("tuning")
    """folder of the search: its trials and best.toml"""
    trials: int = 20
    """trials in total, including those of earlier calls"""
    episodes: int = 20
    """episodes that score a trial"""
    space: Path | None = None
    """TOML file with the settings to search over; by default the package's"""


def run(args: list[str]) -> int:
    """Search and print the best settings as options of `lookfurther train`."""
    name, scale, rest = split_preset(args)
    options = parse_options(
        TuneOptions, TuneOptions(preset(name, scale)), rest, f"lookfurther tune {name}"
    )
    for option, value in {"trials": options.trials, "episodes": options.episodes}.items():
        if value < 1:
            raise ConfigError(f"--{option} must be 1 or more, not {value}")
    config = validate(options.config)
    from lookfurther.evaluation.tuning import read_space, tune

    space = read_space(options.space, config)
    result = tune(config, space, options.trials, options.out, options.episodes)
    print(f"{result.trials} trials, best score {result.score:g}: {options.out / 'best.toml'}")
    print(" ".join(f"--{setting} {value}" for setting, value in result.settings.items()))
    return 0
