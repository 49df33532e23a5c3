"""lookfurther cluster check ADDRESS [--env ENV]"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from lookfurther.cli.dispatch import Command, CommandGroup
from lookfurther.errors import ConfigError
from lookfurther.presets import preset
from lookfurther.system.formatting import pluralize

if TYPE_CHECKING:
    from lookfurther.training.cluster.check import NodeReport


@dataclass(frozen=True)
class CheckOptions:
    """Measure every node of a cluster before a run."""

    address: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ADDRESS")] = tyro.MISSING
    """local, auto, or HOST:PORT of the head node"""
    env: str = ""
    """also measure how fast each node plays this environment"""
    lanes: int = 8
    """lanes of the actor that plays it"""


def check_cluster(options: CheckOptions) -> int:
    """Print a table of the nodes; return 1 if their versions differ."""
    try:
        from lookfurther.training.cluster.check import check_nodes, find_other_versions
        from lookfurther.training.cluster.connection import connect_cluster
    except ModuleNotFoundError as error:
        raise ConfigError(f"cluster needs {error.name}: install lookfurther[ray]") from None

    config = None
    if options.env:
        config = preset("no-demos", env=options.env, actor__lanes=options.lanes)
    with connect_cluster(options.address):
        reports = check_nodes(config)
    print(format_reports(reports))
    differences = find_other_versions(reports)
    for line in differences:
        print(f"different versions: {line}")
    return 1 if differences else 0


def format_reports(reports: Sequence[NodeReport]) -> str:
    """Return the table of nodes, and what a run would place where and play."""
    from lookfurther.cli.tables import format_table
    from lookfurther.training.cluster.check import count_placed

    header = ("node", "cores", "GPUs", "ray", "torch", "MB/s", "steps/s per core", "steps/s")
    rows = [_format_row(report) for report in reports]
    placed = count_placed(reports)
    lines = [
        format_table(header, rows, "<>><<>>>"),
        f"learner and replay on {reports[0].host};"
        f" {pluralize(placed, 'actor')}, one for each core but one",
    ]
    if any(report.play_rate for report in reports):
        total = sum(report.steps_per_second for report in reports)
        share = placed / max(1, sum(report.cores for report in reports))
        lines.append(f"expected: {total * share:,.0f} steps/s, if the learner keeps up")
    return "\n".join(lines)


def _format_row(report: NodeReport) -> tuple[str, ...]:
    rate = report.play_rate
    return (
        report.host + (" (here)" if report.is_local else ""),
        str(report.cores),
        str(report.gpus),
        report.versions["ray"] or "",
        report.versions["torch"] or "",
        f"{report.transfer_rate / 1e6:,.0f}",
        f"{rate.steps_per_second:,.0f}" if rate else "",
        f"{report.steps_per_second:,.0f}" if rate else "",
    )


COMMANDS = CommandGroup(
    "lookfurther cluster",
    "Ray clusters for train --cluster and suite --cluster.",
    "lookfurther.cli",
    {
        "check": Command(
            "ADDRESS [--env ENV]", "measure the nodes of a cluster", "cluster:check_cluster"
        )
    },
)
run = COMMANDS.run
