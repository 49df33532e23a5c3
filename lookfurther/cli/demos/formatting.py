"""Numbers, histograms, audits and progress as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lookfurther.cli.tables import format_table
from lookfurther.system.formatting import format_number, pluralize
from lookfurther.system.printable import MAX_MESSAGE_LENGTH, make_printable

if TYPE_CHECKING:
    from lookfurther.demos.episode import Audit, Episode

MAX_BAR_CHARS = 32


def format_histogram(counts: Mapping[str, int]) -> str:
    """Format a line per count that is not 0: name, count, share and a bar."""
    total, most = sum(counts.values()), max(counts.values())
    rows = [
        (name, f"{n:,}", f"{100 * n / total:.1f} %", "█" * max(1, round(MAX_BAR_CHARS * n / most)))
        for name, n in counts.items()
        if n
    ]
    return format_table(("action", "steps", "share", ""), rows, "<>><")


def format_audit(audit: Audit | None) -> str:
    """Format the result of a replay."""
    if audit is None:
        return "not replayed"
    if audit.mismatch:
        return make_printable(audit.mismatch, MAX_MESSAGE_LENGTH)
    ambiguous = f", {pluralize(audit.ambiguous, 'ambiguous step')}" if audit.ambiguous else ""
    return f"equal: {format_checks(audit.checks)}{ambiguous}"


def format_checks(checks: Mapping[str, int]) -> str:
    """Format the values that a replay was compared in; sets of older versions do not store them."""
    repaired = checks.get("ram_repaired", 0)
    descriptions = {
        "score": "score",
        "rewards": pluralize(checks.get("rewards", 0), "reward"),
        "end": "end",
        "observations": pluralize(checks.get("observations", 0), "observation"),
        "last_picture": "last picture",
        "ram": f"RAM at {pluralize(checks.get('ram', 0), 'checkpoint')}",
        "ram_repaired": f"(RAM repaired at {pluralize(repaired, 'checkpoint')})",
    }
    compared = [text for name, text in descriptions.items() if name in checks]
    return ", ".join(compared) or "compared values unknown, the set is of an older version"


def format_audited_episode(label: str, episode: Episode) -> str:
    """Format an episode and its audit on one line."""
    phase = f", phase {episode.input_log.phase}" if episode.input_log else ""
    size, audit = format_episode_size(episode), format_audit(episode.audit)
    return f"{make_printable(label)}: {size}{phase}; {audit}"


def print_progress(label: str, step: int, steps: int) -> None:
    """Print how far a search is."""
    print(f"{label}: step {step:,} of {steps:,}", flush=True)


def format_episode_size(episode: Episode) -> str:
    """Format the return and length of an episode."""
    return f"return {format_number(episode.score)}, {pluralize(len(episode), 'step')}"
