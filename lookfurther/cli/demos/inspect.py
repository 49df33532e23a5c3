"""lookfurther demos list, show"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from lookfurther.cli.demos.arguments import Name, Switch
from lookfurther.cli.demos.formatting import found, histogram, number, plural, table
from lookfurther.demos import catalog
from lookfurther.demos.episode import Episode
from lookfurther.demos.metadata import Description
from lookfurther.errors import DemonstrationError
from lookfurther.system.printable import printable

LONGEST = 300  # characters of what is said of a set's origin


@dataclass(frozen=True)
class ListOptions:
    """Every set there is, in a line each."""


@dataclass(frozen=True)
class ShowOptions:
    """What a set holds: its episodes, their origin, the actions in them."""

    name: Name = tyro.MISSING
    """the set: its id, with or without the version, or its path"""
    json: Switch = False
    """print JSON"""
    sheet: Annotated[Path | None, tyro.conf.arg(metavar="FILE.png")] = None
    """also draw a sheet of pictures into this PNG file"""
    modules: tuple[str, ...] = ()
    """modules to import for the sheet: those that register the environment or hold its wrappers"""


def list_sets(options: ListOptions) -> int:
    """A line for each set, then one for each that cannot be read."""
    rows, broken = [], []
    for name, what in catalog.every():
        if isinstance(what, DemonstrationError):
            broken.append(str(what))
        else:
            rows.append(_line(name, what))
    head = ("set", "environment", "episodes", "steps", "best return", "verified")
    print(table(head, rows, "<<>>>>"))
    for reason in broken:
        print(reason)
    return 0


def _line(name: str, what: Description) -> tuple[str, ...]:
    episodes = what.episodes
    return (
        name,
        what.spec.env,
        f"{len(episodes):,}",
        f"{sum(e.steps for e in episodes):,}",
        number(max((e.score for e in episodes), default=0.0)),
        f"{sum(e.verified for e in episodes)} of {len(episodes)}",
    )


def show(options: ShowOptions) -> int:
    """Print what is known of a set, and draw its sheet."""
    held = catalog.opened(options.name)
    facts = summary(held)
    print(json.dumps(facts, indent=2) if options.json else told(facts, held.description))
    if options.sheet is not None:
        from lookfurther.cli.demos.render import draw_sheet

        environment = catalog.trusted(held.description, options.modules)
        draw_sheet(held, environment, facts["actions"], options.sheet)
        if not options.json:
            print(f"\nsheet: {options.sheet}")
    return 0


def summary(held: catalog.Held) -> dict[str, Any]:
    """All there is to say of a set, as JSON holds it."""
    name, description, episodes = held
    shown, how = description.episodes, description.origin
    return {
        "name": name,
        "environment": description.spec.env,
        "source": description.author,
        "path": str(catalog.place(name)),
        "steps": sum(e.steps for e in shown),
        "best": max(range(len(shown)), key=lambda i: shown[i].score),
        "episodes": [
            {
                "return": e.score,
                "steps": e.steps,
                "verified": e.verified,
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
        "actions": counts(episodes, how.meanings, description.spec.actions),
        "origin": {key: value for key, value in how._asdict().items() if key != "meanings"},
    }


def counts(episodes: Sequence[Episode], meanings: Sequence[str], actions: int) -> dict[str, int]:
    """How often each action was taken, by its meaning, or by its number where that is unknown."""
    taken = np.bincount(np.concatenate([e.actions for e in episodes]), minlength=actions)
    return dict(zip(meanings or map(str, range(actions)), taken.tolist(), strict=True))


def told(facts: dict[str, Any], description: Description) -> str:
    """The same for a reader."""
    parts = [
        f"{printable(facts['name'])}: {printable(facts['environment'])},"
        f" {plural(len(facts['episodes']), 'episode')}, {plural(facts['steps'], 'step')}",
        "\n".join(f"  {key:10}{printable(value, LONGEST)}" for key, value in _origin(facts)),
        _episodes(description, facts["best"]),
        histogram(facts["actions"]),
    ]
    return "\n\n".join(parts)


def _origin(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Where a set comes from and how it was played."""
    how = facts["origin"]
    lines = [("source", facts["source"]), ("folder", facts["path"]), ("made with", how["library"])]
    if how["game"]:
        sticky = f"sticky actions {how['sticky']:g}" if how["sticky"] else "no sticky actions"
        lines.append(("game", f"{how['game']}, ROM {how['rom'][:12]}"))
        lines.append(("played", f"{how['repeat']} frames a step, {sticky}{_variants(facts)}"))
    if how["wrappers"]:
        lines.append(("wrappers", ", ".join(how["wrappers"])))
    return lines


def _variants(facts: dict[str, Any]) -> str:
    """The modes and difficulties that were played other than those a game starts with."""
    chosen = {
        f", {word} {e[word]}"
        for word in ("mode", "difficulty")
        for e in facts["episodes"]
        if e[word] is not None
    }
    return "".join(sorted(chosen, reverse=True))


def _episodes(description: Description, best: int) -> str:
    rows = []
    for i, e in enumerate(description.episodes):
        end = "over" if e.terminal else "cut off"
        verified = "yes" if e.verified else "no"
        mark = "best" if i == best else ""
        writes = len(e.reel.writes) if e.reel else 0
        replay = found(e.audit) + (f", {plural(writes, 'RAM write')}" if writes else "")
        size = number(e.score), f"{e.steps:,}", str(e.reel.phase) if e.reel else "-"
        rows.append((str(i), *size, end, verified, mark, replay))
    head = ("episode", "return", "steps", "phase", "end", "verified", "", "replay")
    return table(head, rows, ">>>><<<<")
