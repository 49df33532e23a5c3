"""lookfurther suite FILE.toml | NAME [--out DIR]"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from lookfurther.cli.parsing import parse
from lookfurther.system.printable import LONGEST_MESSAGE, printable
from lookfurther.training.metrics import number

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    from lookfurther.evaluation.suite import Job

STYLES = {
    "waiting": "dim",
    "running": "bold",
    "done": "green",
    "failed": "red",
    "stopped": "yellow",
}
AROUND = 8  # lines of a terminal that are not the table's rows


@dataclass(frozen=True)
class SuiteOptions:
    """Train environments x presets x seeds from one file, skipping what is done already."""

    suite: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE|NAME")] = tyro.MISSING
    """a TOML file, or one of the package's: paper, ablation"""
    out: Path = Path()
    """folder of the run folders; empty: runs/ and the suite's name"""
    modules: tuple[str, ...] = ()
    """modules the suite may name: those that register its environments or hold their wrappers"""


def run(words: list[str]) -> int:
    """Train what is not done; the exit code is 1 where any run is not at its end."""
    options = parse(SuiteOptions, SuiteOptions(), words, "lookfurther suite")
    from lookfurther.evaluation import suite

    name, data = suite.read(options.suite)
    out = options.out if options.out != Path() else Path("runs") / name
    jobs = suite.jobs(data, out, options.modules)
    with board(jobs) as show:
        suite.perform(jobs, show.update)
    for job in jobs:
        if job.state == "failed":
            print(f"failed: {job.folder}: {printable(job.note, LONGEST_MESSAGE)}")
    print(f"{counted(jobs)}; lookfurther report {out}")
    return 0 if all(job.state == "done" for job in jobs) else 1


def counted(jobs: Sequence[Job]) -> str:
    """How the runs stand: 3 done, 1 failed."""
    counts = Counter(job.state for job in jobs)
    return ", ".join(f"{counts[state]} {state}" for state in STYLES if counts[state])


@contextlib.contextmanager
def board(jobs: Sequence[Job]) -> Iterator[Board]:
    """A live table on a terminal, plain lines elsewhere."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal or console.is_dumb_terminal:
        print(f"{len(jobs)} runs: {counted(jobs)}", flush=True)
        yield Board(jobs, console, None)
        return
    from rich.live import Live

    with Live(console=console, auto_refresh=False) as live:
        show = Board(jobs, console, live)
        live.update(show.table(jobs[0]), refresh=True)
        yield show


class Board:
    """How a suite stands."""

    def __init__(self, jobs: Sequence[Job], console: Console, live: Live | None) -> None:
        self._jobs, self._console, self._live = jobs, console, live
        self._said = {id(job): job.state for job in jobs}

    def update(self, job: Job) -> None:
        """A run has gone on."""
        if self._live is not None:
            self._live.update(self.table(job), refresh=True)
        elif self._said[id(job)] != job.state:
            self._said[id(job)] = job.state
            i = self._jobs.index(job) + 1
            line = f"[{i}/{len(self._jobs)}] {job.state}: " + " ".join(filter(None, cells(job)[:3]))
            if job.state != "running":
                line += f", {job.row.get('step', 0):,} steps, return {cells(job)[5] or '–'}"
            line += f": {job.note}" if job.note else ""
            print(printable(line, LONGEST_MESSAGE), flush=True)

    def table(self, job: Job) -> Table:
        """The runs around the one at work, as many as the terminal has lines for."""
        from rich.table import Table
        from rich.text import Text

        table = Table(caption=counted(self._jobs), caption_justify="left", border_style="dim")
        for head, side in (("environment", "left"), ("preset", "left"), ("seed", "right")):
            table.add_column(head, justify=side, no_wrap=True)  # type: ignore[arg-type]
        for head in ("state", "budget", "return", "minutes"):
            table.add_column(head, justify="right", no_wrap=True)
        for one in window(self._jobs, self._jobs.index(job), self._console.height - AROUND):
            style = STYLES[one.state]
            table.add_row(*map(Text, cells(one)), style=style)
        return table


def window(jobs: Sequence[Job], centre: int, room: int) -> Sequence[Job]:
    """So many runs, with the centre among them."""
    room = max(1, room)
    start = min(max(0, centre - room // 2), max(0, len(jobs) - room))
    return jobs[start : start + room]


def cells(job: Job) -> tuple[str, ...]:
    """A run as a row of the table."""
    config, row = job.config, job.row
    score, minutes = (number(row, key) for key in ("return_mean", "minutes"))
    return (
        printable(config.env),
        printable(config.preset),
        str(config.run.seed),
        job.state,
        f"{100 * job.share:.0f} %" if row else "",
        f"{score:,.4g}" if score is not None else "",
        f"{minutes:.1f}" if minutes is not None else "",
    )
