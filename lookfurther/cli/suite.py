"""lookfurther suite FILE.toml | NAME [--out DIR] [--parallel N] [--cluster ADDRESS]"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from lookfurther.cli.options.minimums import check_minimums
from lookfurther.cli.options.parsing import parse_options
from lookfurther.errors import ConfigError
from lookfurther.system.formatting import pluralize
from lookfurther.system.printable import MAX_MESSAGE_LENGTH, make_printable
from lookfurther.training.monitoring.metrics import get_metric

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    from lookfurther.evaluation.suite import SuiteJob

STATE_STYLES = {
    "waiting": "dim",
    "running": "bold",
    "evaluating": "bold",
    "done": "green",
    "failed": "red",
    "stopped": "yellow",
}
RESERVED_LINES = 8  # terminal lines outside the table's rows


@dataclass(frozen=True)
class SuiteOptions:
    """Train and evaluate environments x presets x seeds from one file; skip runs that are done."""

    suite: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE|NAME")] = tyro.MISSING
    """a TOML file, or a suite of the package: paper, ablation"""
    out: Path | None = None
    """folder for the run folders; none: runs/ and the name of the suite"""
    modules: tuple[str, ...] = ()
    """modules that the suite may use: they register environments or define wrappers"""
    parallel: int = 1
    """runs at the same time; give each its share of the cores with run.threads in the suite"""
    cluster: str = ""
    """train on the nodes of a Ray cluster, one run for each GPU: auto, or HOST:PORT of its head"""


def run(args: list[str]) -> int:
    """Train and evaluate the runs that are not done; return 1 unless all are done at the end."""
    options = parse_options(SuiteOptions, SuiteOptions(), args, "lookfurther suite")
    check_minimums(options, parallel=1)
    from lookfurther.evaluation import suite, suite_runs

    name, data = suite.read_suite(options.suite)
    out = options.out or Path("runs") / name
    out = out.resolve() if options.cluster else out  # nodes have other working directories
    jobs = suite.build_jobs(data, out, options.modules)
    with open_status_board(jobs) as board:
        if options.cluster:
            run_jobs_on_cluster = load_cluster_suite()
            run_jobs_on_cluster(jobs, board.update, out, options.cluster)
        else:
            suite_runs.run_jobs(jobs, board.update, options.parallel)
    for job in jobs:
        if job.state == "failed":
            print(f"failed: {job.folder}: {make_printable(job.failure, MAX_MESSAGE_LENGTH)}")
    print(f"{format_counts(jobs)}; lookfurther report {out}")
    return 0 if all(job.state == "done" for job in jobs) else 1


def load_cluster_suite() -> Callable[..., None]:
    """Import Ray, which only clusters need."""
    try:
        from lookfurther.evaluation.cluster_suite import run_jobs_on_cluster
    except ModuleNotFoundError as error:
        raise ConfigError(f"--cluster needs {error.name}: install lookfurther[ray]") from None
    return run_jobs_on_cluster


def format_counts(jobs: Sequence[SuiteJob]) -> str:
    """Return the number of runs in each state: 3 done, 1 failed."""
    counts = Counter(job.state for job in jobs)
    return ", ".join(f"{counts[state]} {state}" for state in STATE_STYLES if counts[state])


@contextlib.contextmanager
def open_status_board(jobs: Sequence[SuiteJob]) -> Iterator[StatusBoard]:
    """Show a live table on a terminal, otherwise print plain lines."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal or console.is_dumb_terminal:
        print(f"{pluralize(len(jobs), 'run')}: {format_counts(jobs)}", flush=True)
        yield StatusBoard(jobs, console, None)
        return
    from rich.live import Live

    with Live(console=console, auto_refresh=False) as live:
        board = StatusBoard(jobs, console, live)
        live.update(board.render_table(jobs[0]), refresh=True)
        yield board


class StatusBoard:
    """Shows the state of the runs of a suite."""

    def __init__(self, jobs: Sequence[SuiteJob], console: Console, live: Live | None) -> None:
        self._jobs, self._console, self._live = jobs, console, live
        self._printed_states = {id(job): job.state for job in jobs}

    def update(self, job: SuiteJob) -> None:
        """Show the new state of a run."""
        if self._live is not None:
            self._live.update(self.render_table(job), refresh=True)
        elif self._printed_states[id(job)] != job.state:
            self._printed_states[id(job)] = job.state
            i = self._jobs.index(job) + 1
            line = f"[{i}/{len(self._jobs)}] {job.state}: " + " ".join(
                filter(None, format_row(job)[:3])
            )
            if job.state not in ("running", "evaluating"):
                line += (
                    f", {job.newest_row.get('step', 0):,} steps, return {format_row(job)[5] or '–'}"
                )
            line += f": {job.failure}" if job.failure else ""
            print(make_printable(line, MAX_MESSAGE_LENGTH), flush=True)

    def render_table(self, job: SuiteJob) -> Table:
        """Return a table of the runs around the current one that fits the terminal."""
        from rich.table import Table
        from rich.text import Text

        table = Table(caption=format_counts(self._jobs), caption_justify="left", border_style="dim")
        for head, side in (("environment", "left"), ("preset", "left"), ("seed", "right")):
            table.add_column(head, justify=side, no_wrap=True)  # type: ignore[arg-type]
        for head in ("state", "budget", "return", "minutes"):
            table.add_column(head, justify="right", no_wrap=True)
        for one in visible_jobs(
            self._jobs, self._jobs.index(job), self._console.height - RESERVED_LINES
        ):
            style = STATE_STYLES[one.state]
            table.add_row(*map(Text, format_row(one)), style=style)
        return table


def visible_jobs(jobs: Sequence[SuiteJob], centre: int, row_count: int) -> Sequence[SuiteJob]:
    """Return `row_count` runs around the one at index `centre`."""
    row_count = max(1, row_count)
    start = min(max(0, centre - row_count // 2), max(0, len(jobs) - row_count))
    return jobs[start : start + row_count]


def format_row(job: SuiteJob) -> tuple[str, ...]:
    """Return the cells of a run in the table."""
    config, row = job.config, job.newest_row
    score, minutes = (get_metric(row, key) for key in ("return_mean", "minutes"))
    return (
        make_printable(config.env),
        make_printable(config.preset),
        str(config.run.seed),
        job.state,
        f"{100 * job.budget_used:.0f} %" if row else "",
        f"{score:,.4g}" if score is not None else "",
        f"{minutes:.1f}" if minutes is not None else "",
    )
