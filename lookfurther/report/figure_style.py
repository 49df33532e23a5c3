"""What the figures share: panels, a legend, the colours of the variants, PNG and SVG."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lookfurther.report.learning_curve import GRID_COLOUR, LINE_COLOURS, MUTED_COLOUR, TEXT_COLOUR
from lookfurther.system.files import atomic_replace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LINE_DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.5)), (0, (6, 1.5, 1.5, 1.5)))

# On the page the ink follows the reader's light or dark theme.
THEME_COLOURS = {
    TEXT_COLOUR: "currentColor",
    MUTED_COLOUR: "var(--muted)",
    GRID_COLOUR: "var(--line)",
}


class LineStyle(NamedTuple):
    """How one variant is drawn in every figure."""

    colour: str
    dash: Any


def assign_line_styles(variants: Iterable[str]) -> dict[str, LineStyle]:
    """A colour for each variant, and another dash when the colours are used up."""
    n = len(LINE_COLOURS)
    return {
        name: LineStyle(LINE_COLOURS[i % n], LINE_DASHES[i // n % len(LINE_DASHES)])
        for i, name in enumerate(dict.fromkeys(variants))
    }


def create_panels(
    count: int, panel_height: float = 2.6, max_columns: int = 3
) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels, at most `across` side by side; a few are larger than many."""
    from matplotlib.figure import Figure

    max_columns = min(count, max_columns)
    down = -(-count // max_columns)
    tall = panel_height * {1: 1.4, 2: 1.15}.get(max_columns, 1.0)
    figure = Figure(figsize=(9, 0.5 + tall * down), dpi=160)
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.08)
    grid = figure.subplots(down, max_columns, squeeze=False).ravel().tolist()
    for spare in grid[count:]:
        spare.set_visible(False)
    return figure, grid[:count]


def add_legend(figure: Figure, names: Sequence[str], styles: dict[str, LineStyle]) -> None:
    """The variants above the panels."""
    from matplotlib.lines import Line2D

    keys = [
        Line2D([], [], color=styles[n].colour, linestyle=styles[n].dash, linewidth=2) for n in names
    ]
    widest = max(map(len, names))
    figure.legend(
        keys,
        names,
        loc="outside upper left",
        ncols=max(1, min(len(names), 110 // (widest + 6))),
        frameon=False,
        fontsize=9,
        labelcolor=TEXT_COLOUR,
        handlelength=1.6,
        columnspacing=1.4,
    )


def set_panel_title(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", color=TEXT_COLOUR, fontsize=10.5)


def save_figure(figure: Figure, path: Path) -> str:
    """Write a PNG file on white; the same figure as SVG for the page, without a background."""
    with atomic_replace(path) as temporary:
        figure.savefig(temporary, format="png", facecolor="white")
    figure.set_layout_engine("none")  # laid out by now: twice would take twice the time
    return _render_svg(figure)


def _round_path(match: re.Match[str]) -> str:
    """A path to a tenth of a point, finer than a screen shows, in half the length."""
    return re.sub(r"(\.\d)\d+", r"\1", match[0])


def _render_svg(figure: Figure) -> str:
    """SVG to stand inside a page: text as text, its own size given up, colours of the theme."""
    import matplotlib

    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "lookfurther"}):
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'<g id="\w+_\d+">', "<g>", svg)  # the same ids come in every figure
    svg = re.sub(r' d="[^"]*"', _round_path, svg)
    for colour, word in THEME_COLOURS.items():
        svg = re.sub(re.escape(colour), word, svg, flags=re.I)
    return svg
