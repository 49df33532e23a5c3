"""PRESET, --scale and every setting as options, for the commands that take a configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar, get_type_hints

import tyro

from lookfurther.cli.options.parsing import parse_options
from lookfurther.cli.options.setting_docs import describe_settings, field_docstrings
from lookfurther.config import Config, flatten_settings
from lookfurther.errors import ConfigError
from lookfurther.presets import PRESETS, TUNED, preset

# The settings that --help shows; --help-all shows all of them.
COMMON_SETTINGS = (
    "env",
    "demos",
    "run.steps",
    "run.minutes",
    "run.seed",
    "run.folder",
    "run.device",
    "actor.lanes",
    "learner.learning_rate",
    "environment.wrappers",
)
HELP_ALL_HINT = "The defaults are those of PRESET and SCALE. --help-all lists every setting."


@dataclass(frozen=True)
class PresetOptions:
    """Options of a command that takes a preset, a scale and settings."""

    variant: Annotated[
        str,
        tyro.conf.Positional,
        tyro.conf.arg(metavar="PRESET", help_behavior_hint="(required)"),
    ] = "apex-dqfd"
    """algorithm, such as apex-dqfd, or tuned for those of ENV; lookfurther presets lists them"""
    scale: Annotated[str, tyro.conf.arg(metavar="SCALE")] = "paper"
    """size of the run: paper or small"""
    config: Annotated[Config, tyro.conf.arg(name="")] = field(default_factory=Config)


Options = TypeVar("Options", bound=PresetOptions)


def split_preset(args: Sequence[str], command: str = "train") -> tuple[str, str, list[str]]:
    """Return (preset, scale, other arguments); the first two determine all defaults."""
    scale, args = _take_option(args, "--scale", "paper")
    if args and not args[0].startswith("-"):
        return args[0], scale, args[1:]
    if asks_for_help(args):
        return "apex-dqfd", scale, args
    raise ConfigError(f"{command} needs a preset: one of {', '.join((*PRESETS, TUNED))}")


def find_defaults(name: str, scale: str, args: Sequence[str]) -> Config:
    """The configuration that options change; that of tuned settings depends on --env."""
    if name != TUNED:
        return preset(name, scale)
    env, _ = _take_option(args, "--env", "")
    if not env and asks_for_help(args):
        return preset("no-demos", scale)
    return preset(TUNED, scale, env=env)


def _take_option(args: Sequence[str], option: str, default: str) -> tuple[str, list[str]]:
    """The last value of an option, written as two arguments or with =, and the other arguments."""
    value, others, remaining = default, [], iter(args)
    for arg in remaining:
        if arg == option:
            value = next(remaining, "")
        elif arg.startswith(f"{option}="):
            value = arg.partition("=")[2]
        else:
            others.append(arg)
    return value, others


def asks_for_help(args: Sequence[str]) -> bool:
    """Whether the arguments contain an option that prints help and ends the command."""
    return any(arg in ("-h", "--help", "--help-all") for arg in args)


def parse_preset_options(defaults: Options, args: list[str], prog: str) -> Options:
    """Parse the arguments after the preset; --help shows common options, --help-all all."""
    chosen = [defaults.variant, "--scale", defaults.scale]
    if "--help-all" in args:
        config = defaults.config
        if not config.env:
            config = dataclasses.replace(config, env=tyro.MISSING)
        defaults = dataclasses.replace(defaults, config=config)
        return parse_options(type(defaults), defaults, ["--help"], prog)
    if asks_for_help(args):
        parse_options(*make_common_options(defaults), ["--help"], prog)
    return parse_options(type(defaults), defaults, [*chosen, *args], prog)


def make_common_options(defaults: PresetOptions) -> tuple[type, Any]:
    """A dataclass of the common options, for --help, and an instance with the defaults."""
    cls = type(defaults)
    hints, texts = get_type_hints(cls, include_extras=True), field_docstrings(PresetOptions)
    texts |= field_docstrings(cls)
    rows: list[tuple[str, Any, Any]] = []
    for own in dataclasses.fields(defaults):
        if own.name == "config":
            rows += _common_settings(defaults.config)
        else:
            hint = Annotated[hints[own.name], tyro.conf.arg(help=texts[own.name])]
            rows.append((own.name, hint, field(default=getattr(defaults, own.name))))
    made = dataclasses.make_dataclass("CommonOptions", rows)
    made.__doc__ = f"{cls.__doc__}\n\n{HELP_ALL_HINT}"
    return made, made()


def _common_settings(config: Config) -> Iterator[tuple[str, Any, Any]]:
    """The name, the type and the default of a field for each common setting."""
    descriptions, values = describe_settings(), flatten_settings(config)
    for name in COMMON_SETTINGS:
        hint, text = descriptions[name]
        option = tyro.conf.arg(name=name.replace("_", "-"), help=text)
        default = tyro.MISSING if name == "env" and not config.env else values[name]
        yield name.replace(".", "__"), Annotated[hint, option], field(default=default)
