"""The command `lookfurther`."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

import tyro

from lookfurther.config import Config, validate
from lookfurther.errors import ConfigError, LookFurtherError
from lookfurther.presets import PRESETS, SCALES, preset

T = TypeVar("T")

USAGE = """\
usage: lookfurther COMMAND ...

Learning to act from a handful of demonstrations plus reward (Ape-X DQfD).

commands:
  train PRESET --env ENV [--demos SET ...]   train an agent
  presets                                    the presets and scales, with their place in the paper

lookfurther COMMAND --help lists every setting of a command.
"""


@dataclass(frozen=True)
class TrainOptions:
    """Train an agent. Every setting of the configuration is an option."""

    config: Annotated[Config, tyro.conf.arg(name="")]
    resume: bool = False
    """go on from the newest valid checkpoint of the run folder"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point: the exit code, with one line on stderr where something is wrong."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0 if words else 2
    if words[0] == "--version":
        from lookfurther import __version__

        print(__version__)
        return 0
    try:
        command = COMMANDS.get(words[0])
        if command is None:
            raise ConfigError(f"unknown command {words[0]!r}: choose one of {', '.join(COMMANDS)}")
        return command(words[1:])
    except LookFurtherError as error:
        print(f"lookfurther: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def train_command(words: list[str]) -> int:
    """lookfurther train PRESET [--scale SCALE] [--resume] [settings]"""
    name, scale, rest = split(words)
    options = parse(
        TrainOptions, TrainOptions(preset(name, scale)), rest, f"lookfurther train {name}"
    )
    config = validate(options.config)
    from lookfurther.plots import learning_curve
    from lookfurther.runtime.training import train

    summary = train(config, resume=options.resume)
    folder = summary.folder
    learning_curve(folder / "metrics.jsonl", folder / "curve.png")
    print(
        f"{summary.step:,} steps, {summary.updates:,} updates, {summary.episodes:,} episodes in"
        f" {summary.minutes:.1f} min; recent return {summary.return_mean:g},"
        f" low-epsilon lanes {summary.return_low_epsilon:g}, best {summary.return_best:g}"
    )
    print(f"run folder: {folder}")
    if summary.stopped != "done":
        how = "more --run.minutes" if summary.stopped == "time" else "the same command"
        print(f"stopped ({summary.stopped}): go on with {how} and --resume")
    return 0


def presets_command(words: list[str]) -> int:
    """lookfurther presets"""
    for title, table in (("presets", PRESETS), ("scales, --scale", SCALES)):
        print(f"{title}:")
        for name, (place, overrides) in table.items():
            print(f"  {name:18}{place}")
            for setting, value in overrides.items():
                print(f"  {'':20}{setting.replace('__', '.')} = {value}")
    return 0


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


def parse(kind: type[T], default: T, words: list[str], prog: str) -> T:
    """Options into a dataclass; what does not fit becomes a ConfigError of one line."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(kind, default=default, args=words, prog=prog)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise ConfigError(one_line(said.getvalue())) from None


def one_line(box: str) -> str:
    """The message and the suggested options of tyro's boxed error."""
    lines = [line.strip("│╭╮╰╯─ \t") for line in box.splitlines()[1:-1]]
    text = " ".join(line for line in lines if line)
    message = re.split(r" Perhaps you meant| Argument helptext| For full helptext", text)[0]
    meant = re.findall(r"(--[\w.-]+)", text.partition("Perhaps you meant")[2])
    meant = [m for m in dict.fromkeys(meant) if m != "--help"][:3]
    return message.rstrip(". ") + (f": did you mean {' or '.join(meant)}?" if meant else "")


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": train_command,
    "presets": presets_command,
}

if __name__ == "__main__":
    sys.exit(main())
