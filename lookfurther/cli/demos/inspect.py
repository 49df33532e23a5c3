"""lookfurther demos list, show"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from lookfurther.cli.demos.arguments import Flag, SetName
from lookfurther.cli.demos.formatting import (
    format_audit,
    format_histogram,
    format_table,
    pluralize,
)
from lookfurther.demos import catalog
from lookfurther.demos.episode import Episode
from lookfurther.demos.metadata import DemoSetDescription
from lookfurther.errors import DemonstrationError
from lookfurther.system.formatting import format_number
from lookfurther.system.printable import make_printable

MAX_ORIGIN_CHARS = 300  # characters of what is said of a set's origin


@dataclass(frozen=True)
class ListOptions:
    """Every set there is, in a line each."""


@dataclass(frozen=True)
class ShowOptions:
    """What a set holds: its episodes, their origin, the actions in them."""

    name: SetName = tyro.MISSING
    """the set: its id, with or without the version, or its path"""
    json: Flag = False
    """print JSON"""
    sheet: Annotated[Path | None, tyro.conf.arg(metavar="FILE.png")] = None
    """also draw a sheet of pictures into this PNG file"""
    modules: tuple[str, ...] = ()
    """modules to import for the sheet: those that register the environment or hold its wrappers"""


def print_sets(options: ListOptions) -> int:
    """A line for each set, then one for each that cannot be read."""
    rows, broken = [], []
    for name, what in catalog.iter_sets():
        if isinstance(what, DemonstrationError):
            broken.append(str(what))
        else:
            rows.append(_set_row(name, what))
    head = ("set", "environment", "episodes", "steps", "best return", "verified")
    print(format_table(head, rows, "<<>>>>"))
    for reason in broken:
        print(reason)
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
    """Print what is known of a set, and draw its sheet."""
    held = catalog.open_set(options.name)
    facts = summarize_set(held)
    print(json.dumps(facts, indent=2) if options.json else format_summary(facts, held.description))
    if options.sheet is not None:
        from lookfurther.cli.demos.render import draw_set_sheet

        environment = catalog.trusted_env_config(held.description, options.modules)
        draw_set_sheet(held, environment, facts["actions"], options.sheet)
        if not options.json:
            print(f"\nsheet: {options.sheet}")
    return 0


def summarize_set(held: catalog.DemoSet) -> dict[str, Any]:
    """All there is to say of a set, as JSON holds it."""
    name, description, episodes = held
    shown, how = description.episodes, description.origin
    return {
        "name": name,
        "environment": description.spec.env,
        "source": description.author,
        "path": str(catalog.set_path(name)),
        "steps": sum(e.steps for e in shown),
        "best": max(range(len(shown)), key=lambda i: shown[i].score),
        "episodes": [
            {
                "return": e.score,
                "steps": e.steps,
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
            for e in shown
        ],
        "actions": count_actions(episodes, how.meanings, description.spec.actions),
        "origin": {key: value for key, value in how._asdict().items() if key != "meanings"},
    }


def count_actions(
    episodes: Sequence[Episode], meanings: Sequence[str], num_actions: int
) -> dict[str, int]:
    """How often each action was taken, by its meaning, or by its number where that is unknown."""
    taken = np.bincount(np.concatenate([e.actions for e in episodes]), minlength=num_actions)
    return dict(zip(meanings or map(str, range(num_actions)), taken.tolist(), strict=True))


def format_summary(summary: dict[str, Any], description: DemoSetDescription) -> str:
    """The same for a reader."""
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
    """Where a set comes from and how it was played."""
    how = summary["origin"]
    lines = [
        ("source", summary["source"]),
        ("folder", summary["path"]),
        ("made with", how["library"]),
    ]
    if how["game"]:
        sticky = f"sticky actions {how['sticky']:g}" if how["sticky"] else "no sticky actions"
        lines.append(("game", f"{how['game']}, ROM {how['rom'][:12]}"))
        lines.append(
            ("played", f"{how['repeat']} frames a step, {sticky}{_format_variants(summary)}")
        )
    if how["wrappers"]:
        lines.append(("wrappers", ", ".join(how["wrappers"])))
    return lines


def _format_variants(summary: dict[str, Any]) -> str:
    """The modes and difficulties that were played other than those a game starts with."""
    chosen = {
        f", {word} {e[word]}"
        for word in ("mode", "difficulty")
        for e in summary["episodes"]
        if e[word] is not None
    }
    return "".join(sorted(chosen, reverse=True))


def _format_episodes(description: DemoSetDescription, best: int) -> str:
    rows = []
    for i, e in enumerate(description.episodes):
        end = "over" if e.terminal else "cut off"
        verified = "yes" if e.is_verified else "no"
        mark = "best" if i == best else ""
        writes = len(e.reel.writes) if e.reel else 0
        replay = format_audit(e.audit) + (f", {pluralize(writes, 'RAM write')}" if writes else "")
        size = format_number(e.score), f"{e.steps:,}", str(e.reel.phase) if e.reel else "-"
        rows.append((str(i), *size, end, verified, mark, replay))
    head = ("episode", "return", "steps", "phase", "end", "verified", "", "replay")
    return format_table(head, rows, ">>>><<<<")
