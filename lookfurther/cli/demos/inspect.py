"""lookfurther demos list, show"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from lookfurther.cli.demos.arguments import SetName
from lookfurther.cli.demos.formatting import format_audit, format_histogram
from lookfurther.cli.options.parsing import Flag, check_writable
from lookfurther.cli.tables import format_table
from lookfurther.demos import catalog, storage
from lookfurther.demos.episode import Episode
from lookfurther.demos.metadata import DemoSetDescription
from lookfurther.errors import ConfigError, LookFurtherError
from lookfurther.system.formatting import format_number, pluralize
from lookfurther.system.printable import make_printable

MAX_ORIGIN_CHARS = 300  # per line about the origin of a set


@dataclass(frozen=True)
class ListOptions:
    """List all sets, one line each."""


@dataclass(frozen=True)
class ShowOptions:
    """Show the origin, episodes and action counts of a set."""

    name: SetName = tyro.MISSING
    """the set: its id, with or without the version, or its path"""
    json: Flag = False
    """print JSON"""
    sheet: Annotated[Path | None, tyro.conf.arg(metavar="FILE.png")] = None
    """also draw a contact sheet of frames into this PNG file"""
    modules: tuple[str, ...] = ()
    """modules to import for the sheet, which register the environment or define its wrappers"""


def print_sets(options: ListOptions) -> int:
    """Print a line per set, then one per set that cannot be read."""
    rows, errors = [], []
    for name, description in catalog.iter_sets():
        if isinstance(description, LookFurtherError):
            errors.append(str(description))
        else:
            rows.append(_set_row(name, description))
    header = ("set", "environment", "episodes", "steps", "best return", "verified")
    print(format_table(header, rows, "<<>>>>"))
    for error in errors:
        print(error)
    return 0


def _set_row(name: str, description: DemoSetDescription) -> tuple[str, ...]:
    episodes = description.episodes
    return (
        name,
        description.spec.env,
        f"{len(episodes):,}",
        f"{sum(e.steps for e in episodes):,}",
        format_number(max((e.score for e in episodes), default=0.0)),
        f"{sum(e.is_verified for e in episodes)} of {len(episodes)}",
    )


def show_set(options: ShowOptions) -> int:
    """Print a summary of a set, and draw its contact sheet."""
    if options.sheet is not None:
        if options.sheet.suffix != ".png":
            raise ConfigError(f"--sheet {options.sheet} must end in .png")
        check_writable("--sheet", options.sheet)
    demo_set = catalog.open_set(options.name)
    summary = summarize_set(demo_set)
    text = format_set_summary(summary, demo_set.description)
    print(json.dumps(summary, indent=2) if options.json else text)
    if options.sheet is not None:
        from lookfurther.cli.demos.render import draw_set_sheet

        env_config = storage.trusted_env_config(demo_set.description, options.modules)
        draw_set_sheet(demo_set, env_config, summary["actions"], options.sheet)
        if not options.json:
            print(f"\nsheet: {options.sheet}")
    return 0


def summarize_set(demo_set: catalog.DemoSet) -> dict[str, Any]:
    """Return the summary of a set as JSON values."""
    name, description, episodes = demo_set
    metadata, origin = description.episodes, description.origin
    return {
        "name": name,
        "environment": description.spec.env,
        "source": description.author,
        "path": str(catalog.set_path(name)),
        "steps": sum(e.steps for e in metadata),
        "best": max(range(len(metadata)), key=lambda i: metadata[i].score),
        "episodes": [
            {
                "return": e.score,
                "steps": e.steps,
                "demonstrated_steps": e.demonstrated_steps,
                "verified": e.is_verified,
                "terminal": e.terminal,
                "seed": e.seed,
                "frames": e.reel.length if e.reel else None,
                "ram_writes": len(e.reel.writes) if e.reel else None,
                "phase": e.reel.phase if e.reel else None,
                "mode": e.reel.variant.mode if e.reel else None,
                "difficulty": e.reel.variant.difficulty if e.reel else None,
                "audit": asdict(e.audit) if e.audit else None,
            }
            for e in metadata
        ],
        "actions": count_actions(episodes, origin.meanings, description.spec.actions),
        "origin": {key: value for key, value in origin._asdict().items() if key != "meanings"},
    }


def count_actions(
    episodes: Sequence[Episode], meanings: Sequence[str], num_actions: int
) -> dict[str, int]:
    """Count each action, by its meaning, or by its index if the meaning is unknown."""
    counts = np.bincount(np.concatenate([e.actions for e in episodes]), minlength=num_actions)
    return dict(zip(meanings or map(str, range(num_actions)), counts.tolist(), strict=True))


def format_set_summary(summary: dict[str, Any], description: DemoSetDescription) -> str:
    """Format the summary of a set as text."""
    parts = [
        f"{make_printable(summary['name'])}: {make_printable(summary['environment'])},"
        f" {pluralize(len(summary['episodes']), 'episode')}, {pluralize(summary['steps'], 'step')}",
        "\n".join(
            f"  {key:10}{make_printable(value, MAX_ORIGIN_CHARS)}"
            for key, value in _origin_rows(summary)
        ),
        _format_episodes(description, summary["best"]),
        format_histogram(summary["actions"]),
    ]
    return "\n\n".join(parts)


def _origin_rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Return labels and values about the origin of a set."""
    origin = summary["origin"]
    lines = [
        ("source", summary["source"]),
        ("folder", summary["path"]),
        ("made with", origin["library"]),
    ]
    if origin["game"]:
        sticky = f"sticky actions {origin['sticky']:g}" if origin["sticky"] else "no sticky actions"
        settings = f"{origin['repeat']} frames per step, {sticky}{_format_variants(summary)}"
        lines.append(("game", f"{origin['game']}, ROM {origin['rom'][:12]}"))
        lines.append(("settings", settings))
    if origin["wrappers"]:
        lines.append(("wrappers", ", ".join(origin["wrappers"])))
    return lines


def _format_variants(summary: dict[str, Any]) -> str:
    """Format the modes and difficulties that differ from the defaults of the game."""
    variants = {
        f", {name} {e[name]}"
        for name in ("mode", "difficulty")
        for e in summary["episodes"]
        if e[name] is not None
    }
    return "".join(sorted(variants, reverse=True))


def _format_episodes(description: DemoSetDescription, best: int) -> str:
    rows = []
    for i, e in enumerate(description.episodes):
        end = "game over" if e.terminal else "truncated"
        verified = "yes" if e.is_verified else "no"
        mark = "best" if i == best else ""
        writes = len(e.reel.writes) if e.reel else 0
        replay = format_audit(e.audit) + (f", {pluralize(writes, 'RAM write')}" if writes else "")
        steps = f"{e.steps:,}", f"{e.demonstrated_steps:,}"
        size = format_number(e.score), *steps, str(e.reel.phase) if e.reel else "-"
        rows.append((str(i), *size, end, verified, mark, replay))
    header = "episode", "return", "steps", "demonstrated", "phase", "end", "verified", "", "replay"
    return format_table(header, rows, ">>>>><<<<")
