"""The page of an analysis: one file with its figures and pictures, and a JSON file next to it."""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from markupsafe import Markup

from lookfurther.analysis import Analysis
from lookfurther.analysis.life_losses import LifeLoss
from lookfurther.analysis.results import analysis_to_json, divergence_reason, name_counts
from lookfurther.analysis.reward_order import RewardOrder, describe_orders, format_reward
from lookfurther.analysis.rollouts import DemonstrationRollout
from lookfurther.analysis.standstill import StandstillPlace
from lookfurther.envs.naming import env_title
from lookfurther.errors import ConfigError
from lookfurther.report import page
from lookfurther.report.analysis_figures import plot_rollouts, plot_values
from lookfurther.report.figure_style import save_figure
from lookfurther.report.page import Card, PageFooter, PageHeader, Section
from lookfurther.report.table import EMPTY_CELL, ReportTable, TableCell, TableRow, text_cell
from lookfurther.system.files import write_text
from lookfurther.system.formatting import format_number
from lookfurther.system.printable import make_printable

MAX_CARDS = 24  # pictures of a section; the tables have every row
SHOWN_ACTIONS = 4
VALUES_CAPTION = (
    "Values below the return have not propagated back yet. The lowest panel shows the action gap:"
    " where it is negative (filled), the greedy action is not the demonstrated one. Each point is"
    " the lowest of its neighbouring steps."
)
ROLLOUTS_CAPTION = (
    "Greedy play from states along the demonstration. Values are in h space. The one-step error is"
    " the median of |f(x, a) − h(r + γ h⁻¹(max f(x′, a′)))| along the demonstration: gaps below it"
    " are noise."
)
STANDSTILL_CAPTION = (
    "An episode stands still while nine tenths of the last {} pictures were shown before in the"
    " same episode. Pictures, scores and values are of the moment at which this was noticed."
    " A clock or an enemy on the screen that is always new hides a standstill. If an agent loses a"
    " life and its values fall to almost 0, it has not learned to go on with fewer lives."
)
PAGE_REMARK = "Every number is in analysis.json next to this page."


def write_analysis(analysis: Analysis, out: Path) -> Path:
    """Write the page and its files to a folder and return the path of the page."""
    from matplotlib import rc_context

    try:
        out.mkdir(parents=True, exist_ok=True)
        with rc_context({"text.parse_math": False}):  # names may contain dollar signs
            sections = [
                Section("values", "Values along the demonstration", _values_section(analysis, out)),
                Section(
                    "rollouts", "Where greedy play leaves it", _rollouts_section(analysis, out)
                ),
                Section("standstill", "Where episodes stand still", _places_section(analysis)),
            ]
        header, footer = _make_header(analysis), PageFooter(PAGE_REMARK, {})
        write_text(out / "analysis.json", analysis_to_json(analysis))
        write_text(out / "index.html", page.render_page(header, sections, footer))
    except OSError as error:
        raise ConfigError(f"{out} cannot hold the analysis: {error}") from None
    return out / "index.html"


def _make_header(analysis: Analysis) -> PageHeader:
    """The title, the main numbers and the notes."""
    agent, demonstration, values = analysis.agent, analysis.demonstration, analysis.values
    scores = [trace.score for trace in analysis.traces]
    facts = [
        ("agent steps of training", f"{agent.step:,}"),
        ("steps of the demonstration", f"{len(demonstration.episode):,}"),
        ("its score", format_number(demonstration.episode.score)),
        ("steps with the demonstrated action", f"{values.agreement:.1%}"),
        ("mean of h(return) − value", f"{values.shortfall:.2f}"),
        ("median one-step error", f"{values.noise:.2f}"),
    ]
    if scores:
        facts.append((f"mean score, {len(scores)} episodes", format_number(float(np.mean(scores)))))
    title = f"{env_title(agent.spec.env)}: {make_printable(demonstration.name)}"
    return PageHeader("lookfurther analyse", title, facts, analysis.notes)


def _values_section(analysis: Analysis, out: Path) -> Markup:
    svg = save_figure(plot_values(analysis.values), out / "values.png")
    return page.render_figure(svg, VALUES_CAPTION)


def _rollouts_section(analysis: Analysis, out: Path) -> Markup:
    """The figure, the pictures of the moments and the table."""
    rollouts, noise = analysis.rollouts, analysis.values.noise
    if not rollouts:
        return page.render_caption("There are no rollouts: the notes above say why.")
    svg = save_figure(plot_rollouts(rollouts), out / "rollouts.png")
    cards = [
        card
        for rollout in rollouts
        if (card := _divergence_card(rollout, analysis.action_names, noise))
    ]
    table = page.render_table(_rollout_table(analysis))
    return (
        page.render_figure(svg, ROLLOUTS_CAPTION)
        + page.render_cards(_spread(cards))
        + page.render_details(f"All {len(rollouts)} rollouts", table)
    )


def _spread(cards: list[Card]) -> list[Card]:
    """At most MAX_CARDS, evenly chosen."""
    count = min(len(cards), MAX_CARDS)
    return [cards[i * len(cards) // count] for i in range(count)]


def _divergence_card(
    rollout: DemonstrationRollout, names: tuple[str, ...], noise: float
) -> Card | None:
    """The moment at which a rollout leaves; None if it does not."""
    found = rollout.divergence
    if found is None:
        return None
    return Card(
        encode_picture(found.picture),
        f"From step {rollout.start:,}: leaves at {found.step:,}",
        [
            ("agent", f"{names[found.agent_action]}, {found.agent_value:.2f}"),
            (
                "demonstration",
                f"{names[found.demonstrated_action]}, {found.demonstrated_value:.2f}",
            ),
            ("observation", "the demonstrator's" if found.is_same_observation else "another"),
            (
                f"score in {rollout.steps:,} steps",
                f"{format_number(rollout.agent_score)}, demonstration"
                f" {format_number(rollout.demonstrated_score)}"
                + (", game over" if rollout.is_game_over else ""),
            ),
        ],
        divergence_reason(found, noise),
    )


def _rollout_table(analysis: Analysis) -> ReportTable:
    header = (
        "from step",
        "reason",
        "leaves at",
        "agent",
        "demonstration",
        "gap",
        "score",
        "its score",
    )
    rows = [
        _rollout_row(r, analysis.action_names, analysis.values.noise) for r in analysis.rollouts
    ]
    return ReportTable("rollouts", "", "", header, rows, text_columns=2)


def _rollout_row(rollout: DemonstrationRollout, names: tuple[str, ...], noise: float) -> TableRow:
    found = rollout.divergence
    cells = [text_cell("never"), *[EMPTY_CELL] * 4]
    if found is not None:
        cells = [
            text_cell(divergence_reason(found, noise)),
            text_cell(f"{found.step:,}"),
            TableCell(names[found.agent_action], note=f"{found.agent_value:.2f}"),
            TableCell(names[found.demonstrated_action], note=f"{found.demonstrated_value:.2f}"),
            text_cell(f"{found.action_gap:.2f}"),
        ]
    scores = (rollout.agent_score, rollout.demonstrated_score)
    return [text_cell(f"{rollout.start:,}"), *cells, *(text_cell(format_number(s)) for s in scores)]


def _places_section(analysis: Analysis) -> Markup:
    """The places with their pictures, and all episodes."""
    settings, traces = analysis.settings.episodes, analysis.traces
    still = sum(bool(trace.standstills) for trace in traces)
    summary = (
        f"{still} of {len(traces)} episodes of at most {settings.max_steps:,} steps at ε"
        f" {settings.epsilon:g} from the evaluation's starts stand still somewhere."
    )
    if traces:
        summary += f" {describe_orders([trace.reward_order for trace in traces])}."
    cards = [_place_card(place, analysis) for place in analysis.places[:MAX_CARDS]]
    return (
        page.render_caption(f"{summary} {STANDSTILL_CAPTION.format(settings.window)}")
        + page.render_cards(cards)
        + page.render_details(
            f"All {len(traces)} episodes", page.render_table(_trace_table(analysis))
        )
    )


def _place_card(place: StandstillPlace, analysis: Analysis) -> Card:
    names, first = analysis.action_names, place.standstills[0]
    demonstrated = _format_counts(place.demonstrated_actions, names) or "never shown"
    return Card(
        encode_picture(first.picture),
        f"{len(place.episodes)} of {len(analysis.traces)} episodes, {place.steps:,} steps",
        [
            ("actions", _format_counts(place.action_counts, names)),
            ("values", ", ".join(_top_values(first.q_values, names))),
            ("different pictures", f"{place.distinct_planes:,}"),
            ("score there", format_number(first.score)),
            ("demonstration", demonstrated),
        ],
        f"first seen in episode {first.episode} from step {first.first_step:,}",
    )


def _format_counts(counts: Counter[int], names: tuple[str, ...]) -> str:
    named = list(name_counts(counts, names).items())
    shown = ", ".join(f"{name} {count:,}" for name, count in named[:SHOWN_ACTIONS])
    return shown + (" ..." if len(named) > SHOWN_ACTIONS else "")


def _top_values(q_values: np.ndarray, names: tuple[str, ...]) -> Iterator[str]:
    for action in np.argsort(-q_values)[:SHOWN_ACTIONS].tolist():
        yield f"{names[action]} {q_values[action]:.2f}"


def _trace_table(analysis: Analysis) -> ReportTable:
    rows = [
        [
            text_cell(f"{i}"),
            text_cell(format_number(trace.score)),
            text_cell(f"{trace.steps:,}"),
            text_cell("yes" if trace.is_over else "cut"),
            text_cell(f"{sum(s.steps for s in trace.standstills):,}"),
            *_life_loss_cells(trace.life_losses),
            *_reward_cells(trace.reward_order),
        ]
        for i, trace in enumerate(analysis.traces)
    ]
    columns = ("lives lost", "first at step", "value before", "value after")
    rewards = ("rewards as demonstrated", "then", "demonstration then")
    header = ("episode", "score", "steps", "ended", "steps standing still", *columns, *rewards)
    return ReportTable("episodes", "", "", header, rows)


def _life_loss_cells(losses: list[LifeLoss]) -> list[TableCell]:
    if not losses:
        return [text_cell("0"), *[EMPTY_CELL] * 3]
    first = losses[0]
    after = EMPTY_CELL if first.value_after is None else text_cell(f"{first.value_after:.2f}")
    cells = [text_cell(f"{len(losses)}"), text_cell(f"{first.step:,}")]
    return [*cells, text_cell(f"{first.value_before:.2f}"), after]


def _reward_cells(order: RewardOrder) -> list[TableCell]:
    later = (format_reward(order.next_reward), format_reward(order.demonstrated_reward))
    return [text_cell(f"{order.shared_rewards:,}"), *map(text_cell, later)]


def encode_picture(picture: np.ndarray | None) -> str:
    """A picture as a data URI of a PNG file; "" if there is none."""
    if picture is None:
        return ""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
