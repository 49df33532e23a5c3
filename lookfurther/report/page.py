"""The page itself: one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import NamedTuple

from lookfurther import __version__
from lookfurther.envs.naming import env_title
from lookfurther.report.runs import RunData, RunGroup
from lookfurther.report.table import ReportTable, TableCell


class Section(NamedTuple):
    """A part of the page with its place in the contents."""

    anchor: str
    title: str
    body: str


def render_table(report_table: ReportTable) -> str:
    """A table under its title; the paper's columns stand apart."""
    ours = len(report_table.header) - report_table.paper_columns
    kinds = [
        " class=words" if i < report_table.text_columns else " class=paper" if i >= ours else ""
        for i in range(len(report_table.header))
    ]
    head = "".join(
        f"<th scope=col{kind}>{escape(text)}</th>"
        for text, kind in zip(report_table.header, kinds, strict=True)
    )
    heading = f"<h3>{escape(report_table.title)}</h3>\n" if report_table.title else ""
    rows = "\n".join(f"<tr>{_render_row(row, kinds)}</tr>" for row in report_table.rows)
    return (
        f"{heading}<div class=wide><table><thead><tr>{head}</tr></thead>\n"
        f"<tbody>{rows}</tbody></table></div>\n{render_caption(report_table.caption)}"
    )


def _render_row(row: Sequence[TableCell], css_classes: Sequence[str]) -> str:
    first, *rest = row
    cells = [f"<th scope=row>{escape(first.text)}</th>"]
    for cell, kind in zip(rest, css_classes[1:], strict=True):
        text = f"<b>{escape(cell.text)}</b>" if cell.is_best else escape(cell.text)
        note = f"<small>{escape(cell.note)}</small>" if cell.note else ""
        cells.append(f"<td{kind}>{text}{note}</td>")
    return "".join(cells)


def render_caption(text: str) -> str:
    return f"<p class=caption>{escape(text)}</p>\n" if text else ""


def render_figure(svg: str, caption_text: str) -> str:
    """A drawing with what it shows."""
    return f"<figure>{svg}</figure>\n{render_caption(caption_text)}"


def render_tabs(name: str, parts: Mapping[str, str]) -> str:
    """One part at a time, chosen without a script."""
    inputs = "".join(
        f'<input type=radio name="{name}" id="{name}-{i}"{" checked" if i == 0 else ""}>'
        f'<label for="{name}-{i}">{escape(text)}</label>'
        for i, text in enumerate(parts)
    )
    return f"<div class=tabs>{inputs}{''.join(f'<div>{p}</div>' for p in parts.values())}</div>\n"


def render_details(summary: str, body: str, is_open: bool = False) -> str:
    """A part that can be folded away."""
    mark = " open" if is_open else ""
    return f"<details{mark}><summary>{escape(summary)}</summary>\n{body}</details>\n"


def collect_notes(groups: Sequence[RunGroup], without_metrics: Sequence[RunData]) -> list[str]:
    """What a reader must know before comparing these numbers."""
    said = []
    for group in groups:
        sticky = group.config.environment.sticky_prob
        versions = {run.commit for run in group.runs}
        who = f"{env_title(group.env)}, {group.variant}"
        if sticky:
            said.append(
                f"{who}: trained with sticky actions, probability {sticky:g}; the paper has none."
            )
        if len(versions) > 1:
            said.append(f"{who}: its runs come from {len(versions)} versions of the code.")
    for run in without_metrics:
        said.append(f"{run.path} is left out: it holds no metrics yet.")
    return said


def render_page(
    groups: Sequence[RunGroup], sections: Sequence[Section], notes: Sequence[str]
) -> str:
    """The whole page."""
    links = "".join(f'<a href="#{s.anchor}">{escape(s.title)}</a>' for s in sections)
    body = "".join(
        f'<section id="{s.anchor}">\n<h2>{escape(s.title)}</h2>\n{s.body}</section>\n'
        for s in sections
    )
    envs = list(dict.fromkeys(env_title(group.env) for group in groups))
    page = Template((files("lookfurther.report") / "page.html").read_text(encoding="utf-8"))
    return page.substitute(
        title=escape(", ".join(envs[:3]) + (f" and {len(envs) - 3} more" if len(envs) > 3 else "")),
        facts=_render_facts(groups, len(envs)),
        notes="".join(f"<li>{escape(text)}</li>" for text in notes),
        links=links,
        body=body,
        version=escape(__version__),
    )


def _render_facts(groups: Sequence[RunGroup], envs: int) -> str:
    """How much was run, in figures."""
    runs = [run for group in groups for run in group.runs]
    steps = sum(run.last_value("step") or 0 for run in runs)
    minutes = sum(run.last_value("minutes") or 0 for run in runs)
    facts = (
        (f"{len(runs):,}", "runs"),
        (f"{len(groups):,}", "groups of equal settings"),
        (f"{envs:,}", "environments"),
        (f"{steps:,.0f}", "agent steps"),
        (f"{minutes / 60:,.1f}", "hours") if minutes >= 60 else (f"{minutes:.1f}", "minutes"),
    )
    return "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for value, name in facts)
