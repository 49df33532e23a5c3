"""The HTML page of a report: one file that needs nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from lookfurther import __version__
from lookfurther.envs.naming import env_title
from lookfurther.report.runs import RunData, RunGroup
from lookfurther.report.table import ReportTable

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


def render_table(table: ReportTable) -> Markup:
    return _render_component("table", table)


def render_caption(text: str) -> Markup:
    return _render_component("caption", text)


def render_figure(svg: str, caption: str) -> Markup:
    """Render a figure of matplotlib, which escapes the text in its SVG itself."""
    return _render_component("figure", Markup(svg), caption)


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
        commits = {run.commit for run in group.runs}
        name = f"{env_title(group.env)}, {group.variant}"
        if sticky_prob:
            notes.append(
                f"{name}: trained with sticky actions, probability {sticky_prob:g};"
                " the paper has none."
            )
        if len(commits) > 1:
            notes.append(f"{name}: its runs were made with {len(commits)} versions of the code.")
    for run in without_metrics:
        notes.append(f"{run.path} is left out: it holds no metrics yet.")
    return notes


def render_page(
    groups: Sequence[RunGroup], sections: Sequence[Section], notes: Sequence[str]
) -> str:
    """Render the whole page."""
    envs = list(dict.fromkeys(env_title(group.env) for group in groups))
    title = ", ".join(envs[:3]) + (f" and {len(envs) - 3} more" if len(envs) > 3 else "")
    return TEMPLATES.get_template("page.html").render(
        title=title,
        facts=_page_facts(groups, len(envs)),
        notes=notes,
        sections=sections,
        version=__version__,
    )


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
