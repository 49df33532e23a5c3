"""How sets are put into words: numbers, tables, bars and audits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lookfurther.system.formatting import format_number
from lookfurther.system.printable import MAX_MESSAGE_LENGTH, make_printable

if TYPE_CHECKING:
    from lookfurther.demos.episode import Audit, Episode

MAX_BAR_CHARS = 32  # characters of the longest bar


def pluralize(count: int, noun: str) -> str:
    """1 episode, 2 episodes."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]], alignment: str) -> str:
    """Columns as wide as they need to be, each to the left (<) or to the right (>)."""
    lines = [header, *([make_printable(cell) for cell in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    shaped = (
        "  ".join(
            f"{cell:{side}{width}}"
            for cell, side, width in zip(line, alignment, widths, strict=True)
        )
        for line in lines
    )
    return "\n".join(line.rstrip() for line in shaped)


def format_histogram(counts: Mapping[str, int]) -> str:
    """A line for each count that is not 0: name, count, share and a bar."""
    total, most = sum(counts.values()), max(counts.values())
    rows = [
        (name, f"{n:,}", f"{100 * n / total:.1f} %", "█" * max(1, round(MAX_BAR_CHARS * n / most)))
        for name, n in counts.items()
        if n
    ]
    return format_table(("action", "steps", "share", ""), rows, "<>><")


def format_audit(audit: Audit | None) -> str:
    """What a replay showed, in a few words."""
    if audit is None:
        return "not replayed"
    if audit.mismatch:
        return make_printable(audit.mismatch, MAX_MESSAGE_LENGTH)
    several = f", {pluralize(audit.ambiguous, 'ambiguous block')}" if audit.ambiguous else ""
    return f"equal: {format_checks(audit.checks)}{several}"


def format_checks(checks: Mapping[str, int]) -> str:
    """What a replay was found equal in; sets of older versions do not say."""
    repaired = checks.get("ram_repaired", 0)
    known = {
        "score": "score",
        "rewards": pluralize(checks.get("rewards", 0), "reward"),
        "end": "end",
        "observations": pluralize(checks.get("observations", 0), "observation"),
        "last_picture": "last picture",
        "ram": f"RAM at {pluralize(checks.get('ram', 0), 'checkpoint')}",
        "ram_repaired": f"(RAM repaired at {pluralize(repaired, 'checkpoint')})",
    }
    return ", ".join(word for name, word in known.items() if name in checks) or (
        "unknown in what, the set is of an older version"
    )


def format_audited_episode(label: str, episode: Episode) -> str:
    """One episode and its audit on a line."""
    phase = f", phase {episode.input_log.phase}" if episode.input_log else ""
    size, audit = format_episode_size(episode), format_audit(episode.audit)
    return f"{make_printable(label)}: {size}{phase}; {audit}"


def format_episode_size(episode: Episode) -> str:
    """Its return and how long it is."""
    return f"return {format_number(episode.score)}, {pluralize(len(episode), 'step')}"
