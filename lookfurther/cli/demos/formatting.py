"""How sets are put into words: numbers, tables, bars and audits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lookfurther.system.printable import LONGEST_MESSAGE, printable

if TYPE_CHECKING:
    from lookfurther.demos.episode import Audit, Episode

BAR = 32  # characters of the longest bar


def number(value: float) -> str:
    """A score as 10,100 or 0.75."""
    return f"{value:,.0f}" if value == round(value) else f"{value:,.4g}"


def plural(count: int, noun: str) -> str:
    """1 episode, 2 episodes."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def table(head: Sequence[str], rows: Sequence[Sequence[str]], sides: str) -> str:
    """Columns as wide as they need to be, each to the left (<) or to the right (>)."""
    lines = [head, *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    shaped = (
        "  ".join(
            f"{cell:{side}{width}}" for cell, side, width in zip(line, sides, widths, strict=True)
        )
        for line in lines
    )
    return "\n".join(line.rstrip() for line in shaped)


def histogram(counts: Mapping[str, int]) -> str:
    """A line for each count that is not 0: name, count, share and a bar."""
    total, most = sum(counts.values()), max(counts.values())
    rows = [
        (name, f"{n:,}", f"{100 * n / total:.1f} %", "█" * max(1, round(BAR * n / most)))
        for name, n in counts.items()
        if n
    ]
    return table(("action", "steps", "share", ""), rows, "<>><")


def found(audit: Audit | None) -> str:
    """What a replay showed, in a few words."""
    if audit is None:
        return "not replayed"
    if audit.mismatch:
        return printable(audit.mismatch, LONGEST_MESSAGE)
    several = f", {plural(audit.ambiguous, 'ambiguous block')}" if audit.ambiguous else ""
    return f"equal: {compared(audit.checks)}{several}"


def compared(checks: Mapping[str, int]) -> str:
    """What a replay was found equal in; sets of older versions do not say."""
    known = {
        "score": "score",
        "rewards": plural(checks.get("rewards", 0), "reward"),
        "end": "end",
        "observations": plural(checks.get("observations", 0), "observation"),
        "last_picture": "last picture",
        "ram": f"RAM at {plural(checks.get('ram', 0), 'checkpoint')}",
        "ram_repaired": f"(RAM repaired at {plural(checks.get('ram_repaired', 0), 'checkpoint')})",
    }
    return ", ".join(word for name, word in known.items() if name in checks) or (
        "unknown in what, the set is of an older version"
    )


def audited(label: str, episode: Episode) -> str:
    """One episode and its audit on a line."""
    phase = f", phase {episode.tape.phase}" if episode.tape else ""
    return f"{printable(label)}: {sized(episode)}{phase}; {found(episode.audit)}"


def sized(episode: Episode) -> str:
    """Its return and how long it is."""
    return f"return {number(episode.score)}, {plural(len(episode), 'step')}"
