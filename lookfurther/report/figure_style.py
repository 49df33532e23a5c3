"""The style that all figures share: colours, axes, panels, legends, files."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lookfurther.system.files import atomic_replace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The palette of Okabe and Ito, which colour-blind readers can distinguish.
LINE_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#56B4E9", "#CC79A7", "#E69F00")
LINE_DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.5)), (0, (6, 1.5, 1.5, 1.5)))
TEXT_COLOUR, MUTED_COLOUR, GRID_COLOUR = "#222222", "#767676", "#E4E4E4"

PAGE_CHARACTERS = 105  # of a line of small text across a figure

# In the page these colours follow the reader's light or dark theme.
THEME_COLOURS = {
    TEXT_COLOUR: "currentColor",
    MUTED_COLOUR: "var(--muted)",
    GRID_COLOUR: "var(--line)",
}


class LineStyle(NamedTuple):
    """Colour and dash pattern of one variant in every figure."""

    colour: str
    dash: Any


LineStyles = dict[str, LineStyle]  # by variant


def assign_line_styles(variants: Iterable[str]) -> LineStyles:
    """Give each variant its own colour; when the colours run out, start again with other dashes."""
    n = len(LINE_COLOURS)
    return {
        name: LineStyle(LINE_COLOURS[i % n], LINE_DASHES[i // n % len(LINE_DASHES)])
        for i, name in enumerate(dict.fromkeys(variants))
    }


def format_steps(value: float, _: object = None) -> str:
    """Format a number of steps: 0, 250k, 1.5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def format_value(value: float, _: object = None) -> str:
    """Format a score or a loss: 0.01, 0.5, 35,000."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def style_axes(axes: Axes, ylabel: str) -> None:
    """Apply the shared style: horizontal grid lines, no frame, short numbers."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(MUTED_COLOUR)
    axes.grid(axis="y", color=GRID_COLOUR, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=MUTED_COLOUR, labelcolor=TEXT_COLOUR, length=0, labelsize=10)
    axes.set_ylabel(ylabel, color=TEXT_COLOUR, fontsize=11)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(FuncFormatter(format_steps))
    axes.yaxis.set_major_formatter(FuncFormatter(format_value))
    axes.margins(x=0)


def set_log_scale(axes: Axes) -> None:
    """Use a logarithmic y axis with labels on short ranges too; mask values that are not positive.

    Call it after plotting: the number of labels depends on the range.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_yscale("log", nonpositive="mask")
    bottom, top = axes.get_ylim()
    subs = (1.0,) if top > 100 * bottom else (1.0, 2.0, 5.0)
    axes.yaxis.set_major_locator(LogLocator(subs=subs, numticks=6))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(format_value))


def wrap_label(text: str, width: int) -> str:
    """Break a label into lines of at most `width` characters, also within a long word."""
    return "\n".join(textwrap.wrap(text, width))


def set_xlabel(axes: Axes, text: str) -> None:
    axes.set_xlabel(wrap_label(text, PAGE_CHARACTERS), color=TEXT_COLOUR, fontsize=9)


def set_panel_title(axes: Axes, text: str, page_characters: int = PAGE_CHARACTERS) -> None:
    """Set the title of a panel, in lines that fit its share of the page."""
    grid = axes.get_gridspec()
    columns = grid.ncols if grid is not None else 1
    title = wrap_label(text, page_characters // columns - 8)
    axes.set_title(title, loc="left", color=TEXT_COLOUR, fontsize=10.5)


def mark_panel_empty(axes: Axes, text: str) -> None:
    """Show a text where there is no data."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, color=MUTED_COLOUR, ha="center")


def create_panels(
    count: int, panel_height: float = 2.6, max_columns: int = 3
) -> tuple[Figure, list[Axes]]:
    """Create `count` panels, at most `max_columns` next to one another; fewer are drawn larger."""
    from matplotlib.figure import Figure

    columns = min(count, max_columns)
    rows = -(-count // columns)
    height = panel_height * {1: 1.4, 2: 1.15}.get(columns, 1.0)
    figure = Figure(figsize=(9, 0.5 + height * rows), dpi=160)
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.08)
    panels = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for unused in panels[count:]:
        unused.set_visible(False)
    return figure, panels[:count]


def add_legend(figure: Figure, names: Sequence[str], styles: LineStyles) -> None:
    """Name the variants above the panels."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=styles[n].colour, linestyle=styles[n].dash, linewidth=2) for n in names
    ]
    labels = [wrap_label(name, PAGE_CHARACTERS) for name in names]
    longest = max(map(len, names))
    figure.legend(
        handles,
        labels,
        loc="outside upper left",
        ncols=max(1, min(len(names), 110 // (longest + 6))),
        frameon=False,
        fontsize=9,
        labelcolor=TEXT_COLOUR,
        handlelength=1.6,
        columnspacing=1.4,
    )


# Metadata of each file format without the time, so that equal figures are equal files.
FIGURE_FORMATS: dict[str, dict[str, None]] = {
    "png": {},
    "pdf": {"CreationDate": None},
    "svg": {"Date": None},
}


def save_png(figure: Figure, path: Path) -> None:
    """Write a figure as a PNG file on white, equal for equal figures."""
    with atomic_replace(path) as temporary:
        figure.savefig(temporary, format="png", facecolor="white", metadata={"Software": None})


def save_figure(figure: Figure, path: Path) -> str:
    """Write a figure next to `path` in every format, on white; return SVG for a page."""
    import matplotlib

    for suffix, metadata in FIGURE_FORMATS.items():
        with (
            atomic_replace(path.with_suffix(f".{suffix}")) as temporary,
            matplotlib.rc_context({"pdf.fonttype": 42, "svg.hashsalt": "lookfurther"}),
        ):
            figure.savefig(temporary, format=suffix, facecolor="white", metadata=metadata)
        figure.set_layout_engine("none")  # keep the layout: computing it again takes as long
    return _render_svg(figure)


def _round_path(match: re.Match[str]) -> str:
    """Round a path to a tenth of a point: half the length, finer than a screen shows."""
    return re.sub(r"(\.\d)\d+", r"\1", match[0])


def _render_svg(figure: Figure) -> str:
    """SVG for inclusion in a page: text as text, no fixed size, colours of the theme."""
    import matplotlib

    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "lookfurther"}):
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'<g id="\w+_\d+">', "<g>", svg)  # every figure has the same ids
    svg = re.sub(r' d="[^"]*"', _round_path, svg)
    for colour, theme_colour in THEME_COLOURS.items():
        svg = re.sub(re.escape(colour), theme_colour, svg, flags=re.I)
    return svg
