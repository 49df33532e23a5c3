"""HTML pages of reports and analyses: one file that needs nothing else."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from lookfurther.envs.naming import env_title, is_atari
from lookfurther.report.runs import RunData, RunGroup
from lookfurther.report.table import ReportTable
from lookfurther.training.run_dir import collect_versions

TEMPLATES = Environment(
    loader=PackageLoader("lookfurther.report"),
    autoescape=True,  # names in run folders may contain markup
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


class Section(NamedTuple):
    """A part of the page with an entry in its navigation."""

    anchor: str
    title: str
    body: Markup


class Card(NamedTuple):
    """A picture with a few facts."""

    picture: str  # a data URI; "" without a picture
    title: str
    facts: Sequence[tuple[str, str]]
    remark: str


class PageHeader(NamedTuple):
    """The top of a page."""

    program: str
    title: str
    facts: Sequence[tuple[str, str]]
    notes: Sequence[str]


class PageFooter(NamedTuple):
    """The bottom of a page."""

    remark: str
    trained_with: Mapping[str, str]  # commit, machine and libraries of the runs


def render_table(table: ReportTable) -> Markup:
    return _render_component("table", table)


def render_caption(text: str) -> Markup:
    return _render_component("caption", text)


def render_figure(svg: str, caption: str) -> Markup:
    """Render a figure of matplotlib, which escapes the text in its SVG itself."""
    return _render_component("figure", Markup(svg), caption)


def render_cards(cards: Sequence[Card]) -> Markup:
    """Show pictures next to one another."""
    return _render_component("cards", cards)


def render_tabs(name: str, parts: Mapping[str, Markup]) -> Markup:
    """Show one part at a time."""
    return _render_component("tabs", name, parts)


def render_details(summary: str, body: Markup, is_open: bool = False) -> Markup:
    """Show a part that can be folded."""
    return _render_component("details", summary, body, is_open)


def _render_component(name: str, *args: object) -> Markup:
    macro: Callable[..., Markup] = getattr(TEMPLATES.get_template("components.html").module, name)
    return macro(*args)


def collect_notes(groups: Sequence[RunGroup], without_metrics: Sequence[RunData]) -> list[str]:
    """What a reader must know before comparing these numbers."""
    notes = []
    for group in groups:
        sticky_prob = group.config.environment.sticky_prob
        commits = {run.versions.get("commit") for run in group.runs}
        name = f"{env_title(group.env)}, {group.variant}"
        if sticky_prob and is_atari(group.env):
            notes.append(
                f"{name}: trained with sticky actions, probability {sticky_prob:g};"
                " the paper has none."
            )
        if len(commits) > 1:
            notes.append(f"{name}: its runs were made with {len(commits)} versions of the code.")
        notes += [f"{name}: its runs {text}." for text in _group_differences(group)]
    for run in without_metrics:
        notes.append(f"{run.path} is left out: it holds no metrics yet.")
    return notes


def _group_differences(group: RunGroup) -> list[str]:
    """Differences between the runs of a group that do not change learning but may change scores."""
    differences = []
    steps = sorted(run.last_value("step") or 0 for run in group.runs)
    if steps[0] < 0.9 * steps[-1]:
        differences.append(f"have {steps[0]:,.0f} to {steps[-1]:,.0f} steps")
    devices = sorted({run.config.run.device.partition(":")[0] for run in group.runs})
    if len(devices) > 1 and group.config.run.precision == "auto":
        differences.append(f"are on different devices ({', '.join(devices)})")
    return differences


def render_page(header: PageHeader, sections: Sequence[Section], footer: PageFooter) -> str:
    """Render the page."""
    return TEMPLATES.get_template("page.html").render(
        header=header,
        sections=sections,
        footer=footer,
        made_with=collect_versions() | {"date": _current_date()},
    )


def make_report_header(groups: Sequence[RunGroup], notes: Sequence[str]) -> PageHeader:
    """The top of a report of these runs."""
    envs = list(dict.fromkeys(env_title(group.env) for group in groups))
    title = ", ".join(envs[:3]) + (f" and {len(envs) - 3} more" if len(envs) > 3 else "")
    return PageHeader("lookfurther report", title, _page_facts(groups, len(envs)), notes)


def _current_date() -> str:
    """The time now, or that of SOURCE_DATE_EPOCH, which makes a report reproducible."""
    seconds = float(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def training_versions(groups: Sequence[RunGroup]) -> dict[str, str]:
    """Commit, machine and libraries of the runs; where runs differ, all their values."""
    versions = [run.versions for group in groups for run in group.runs]
    names = dict.fromkeys(name for entry in versions for name in entry)
    values = {name: dict.fromkeys(e[name] for e in versions if name in e) for name in names}
    return {name: ", ".join(known) for name, known in values.items()}


def _page_facts(groups: Sequence[RunGroup], env_count: int) -> list[tuple[str, str]]:
    """Names and values of the figures at the top of the page."""
    runs = [run for group in groups for run in group.runs]
    steps = sum(run.last_value("step") or 0 for run in runs)
    minutes = sum(run.last_value("minutes") or 0 for run in runs)
    return [
        ("runs", f"{len(runs):,}"),
        ("groups of equal settings", f"{len(groups):,}"),
        ("environments", f"{env_count:,}"),
        ("agent steps", f"{steps:,.0f}"),
        ("hours", f"{minutes / 60:,.1f}") if minutes >= 60 else ("minutes", f"{minutes:.1f}"),
    ]
