"""Progress of a run: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from lookfurther.system.formatting import format_score
from lookfurther.system.output import discard_output, print_line
from lookfurther.system.printable import MAX_MESSAGE_LENGTH, make_printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

MetricsRow = Mapping[str, Any]
UNKNOWN_TEXT = "–"
MAX_PANEL_WIDTH = 100  # columns
RATE_ROWS = 10  # newest rows from which the time left is estimated
LINE_PERIOD = 5.0  # seconds between plain lines, at least: a GPU makes several rows per second


def _is_finite_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _format_rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _format_loss(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _format_percentage(value: float) -> str:
    return f"{100 * value:.0f} %"


def _format_count(value: float) -> str:
    return f"{value:,.0f}"


def _format_memory(value: float) -> str:
    return f"{_format_rate(value)} GiB"


def _format_duration(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}"


# Heading -> (label, metric, format) of each line of the panel's blocks.
PANEL_BLOCKS: dict[str, tuple[tuple[str, str, Callable[[float], str]], ...]] = {
    "Speed": (
        ("steps/s", "steps_per_second", _format_rate),
        ("updates/s", "updates_per_second", _format_rate),
        ("samples/insert", "samples_per_insert", _format_rate),
        ("env wait", "wait_environments", _format_percentage),
    ),
    "Return": (
        ("recent", "return_mean", format_score),
        ("low ε", "return_low_epsilon", format_score),
        ("best", "return_best", format_score),
        ("so far", "return_in_progress_low_epsilon", format_score),
    ),
    "Loss": (
        ("TD", "loss_td", _format_loss),
        ("TC", "loss_tc", _format_loss),
        ("IM", "loss_im", _format_loss),
        ("|g|", "gradient_norm", _format_loss),
    ),
    "Data": (
        ("demos", "expert_share_of_gradient", _format_percentage),
        ("replay", "replay_fill", _format_percentage),
        ("memory", "memory_gib", _format_memory),
        ("ended", "episodes", _format_count),
    ),
}
METRIC_FORMATS = {key: write for block in PANEL_BLOCKS.values() for _, key, write in block}


def _format_metric(row: MetricsRow, key: str) -> str:
    """The text of a metric."""
    return METRIC_FORMATS[key](row[key]) if _is_finite_number(row.get(key)) else UNKNOWN_TEXT


class ProgressDisplay:
    """Displays rows of metrics. Without rich or a terminal, it prints plain lines.

    It prints the first and the last row, and at most one per LINE_PERIOD seconds in between.
    """

    def __init__(
        self,
        total_steps: int,
        title: str = "",
        max_minutes: float = 0.0,
        console: Console | None = None,
    ) -> None:
        """A run ends after `total_steps` agent steps or `max_minutes`, unless that is 0."""
        self._total_steps = total_steps
        self._title = make_printable(title)
        self._max_minutes = max_minutes
        self._newest_row: MetricsRow = {}
        self._recent_rates: deque[float] = deque(maxlen=RATE_ROWS)
        self._console = _live_console(console)
        self._live: Any = None
        self._printed_row = self._newest_row
        self._printed_at = -math.inf

    def start(self) -> None:
        if self._console is not None:
            from rich.live import Live

            self._live = Live(self.render_panel(), console=self._console, auto_refresh=False)
            self._live.start(refresh=True)

    def update(self, row: MetricsRow) -> None:
        """Display the newest row."""
        self._newest_row = row
        is_learning = row.get("updates") != 0  # before, steps are much faster
        rate = row.get("steps_per_second", 0.0)
        if is_learning and _is_finite_number(rate) and rate > 0:
            self._recent_rates.append(rate)
        if self._live is not None:
            with self._tolerate_closed_terminal():
                self._live.update(self.render_panel(), refresh=True)
        elif self._console is None and time.monotonic() - self._printed_at >= LINE_PERIOD:
            self._print_newest_row()

    def _print_newest_row(self) -> None:
        self._printed_row, self._printed_at = self._newest_row, time.monotonic()
        print_line(self.format_line())

    def print_message(self, text: str) -> None:
        """Print a line above the panel."""
        text = make_printable(text, MAX_MESSAGE_LENGTH)
        if self._console is None:
            print_line(text)
        else:
            from rich.text import Text

            with self._tolerate_closed_terminal():
                self._console.print(Text(text))

    def print_warning(self, text: str) -> None:
        """Print a line that quiet runs print, too."""
        self.print_message(f"warning: {text}")

    def stop(self) -> None:
        """Leave the last panel on the screen, or print the last row."""
        if self._live is not None:
            with self._tolerate_closed_terminal():
                self._live.stop()
            self._live = None
        elif self._console is None and self._printed_row is not self._newest_row:
            self._print_newest_row()

    @contextlib.contextmanager
    def _tolerate_closed_terminal(self) -> Iterator[None]:
        """Stop displaying if the terminal is closed; the run continues."""
        try:
            yield
        except OSError:
            self._live = self._console = None
            discard_output()

    def estimate_seconds_left(self) -> float | None:
        """Seconds left at the rate of the recent rows, or until the time limit if that is sooner.

        Only rates since learning started count: earlier ones do not predict the rest. Rows have
        equal numbers of steps, so the mean is one of seconds per step.
        """
        estimates = []
        if self._recent_rates:
            steps_left = max(0, self._total_steps - self._newest_row["step"])
            seconds_per_step = sum(1 / rate for rate in self._recent_rates)
            estimates.append(steps_left * seconds_per_step / len(self._recent_rates))
        if self._max_minutes:
            minutes_left = self._max_minutes - self._newest_row.get("minutes", 0.0)
            estimates.append(max(0.0, 60 * minutes_left))
        return min(estimates, default=None)

    def format_line(self) -> str:
        """The newest row as one plain line, without unknown metrics."""
        row, eta = self._newest_row, self.estimate_seconds_left()
        texts = {key: _format_metric(row, key) for key in METRIC_FORMATS}
        scores = f"(low ε {texts['return_low_epsilon']}, best {texts['return_best']})"
        losses = [(name, texts[f"loss_{name.lower()}"]) for name in ("TD", "TC", "IM")]
        parts = [
            f"step {row['step']:,} of {self._total_steps:,}",
            f"{texts['steps_per_second']} steps/s",
            f"{texts['updates_per_second']} updates/s",
            f"{texts['samples_per_insert']} samples/insert",
            f"return {texts['return_mean']} {scores}",
            f"in progress {texts['return_in_progress_low_epsilon']}",
            " ".join(f"{name} {value}" for name, value in losses if value != UNKNOWN_TEXT),
            f"demos {texts['expert_share_of_gradient']}",
            f"ETA {UNKNOWN_TEXT if eta is None else _format_duration(eta)}",
        ]
        return " | ".join(part for part in parts if part and UNKNOWN_TEXT not in part.split()[:3])

    def render_panel(self) -> RenderableType:
        """The newest row as a panel: a bar, the times and four blocks of figures."""
        from rich.console import Group
        from rich.panel import Panel
        from rich.text import Text

        available = 80 if self._console is None else self._console.width
        headings = list(PANEL_BLOCKS)
        columns = 4 if available >= 80 else 2
        unit = " steps" if columns == 4 else ""
        parts: list[RenderableType] = [self._render_progress_bar(), self._render_times(unit)]
        for i in range(0, len(headings), columns):
            parts += ["", self._render_blocks(headings[i : i + columns])]
        title = Text(self._title, "bold") if self._title else None
        width = min(available, MAX_PANEL_WIDTH)
        return Panel(
            Group(*parts), title=title, title_align="left", border_style="dim", width=width
        )

    def _render_progress_bar(self) -> Table:
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        done, unit = self._newest_row.get("step", 0) / self._total_steps, ""
        if self._max_minutes:
            time_used = self._newest_row.get("minutes", 0.0) / self._max_minutes
            if time_used > done:
                done, unit = time_used, " of the time"
        done = min(done, 1.0)
        grid = Table.grid(expand=True, padding=(0, 1))
        grid.add_column(ratio=1)
        grid.add_column(justify="right", min_width=7)
        grid.add_row(ProgressBar(1.0, done), f"{100 * done:.1f} %{unit}")
        return grid

    def _render_times(self, unit: str) -> Table:
        from rich.table import Table
        from rich.text import Text

        row, eta = self._newest_row, self.estimate_seconds_left()
        grid = Table.grid("", "", "", expand=True)
        for column, side in zip(grid.columns, ("left", "center", "right"), strict=True):
            column.justify, column.no_wrap = side, True
        grid.columns[1].ratio = 1
        grid.add_row(
            Text.assemble((f"{row.get('step', 0):,}", "bold"), f" of {self._total_steps:,}{unit}"),
            f"elapsed {_format_duration(60 * row.get('minutes', 0.0))}",
            f"ETA {UNKNOWN_TEXT if eta is None else _format_duration(eta)}",
        )
        return grid

    def _render_blocks(self, headings: list[str]) -> Table:
        """The named blocks side by side."""
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(expand=True)
        rows: list[list[RenderableType]] = [[] for _ in range(5)]
        for heading in headings:
            if rows[0]:
                grid.add_column(ratio=1)  # the space between two blocks
            grid.add_column(style="dim", no_wrap=True)
            grid.add_column(justify="right", no_wrap=True, min_width=9)
            lines: list[tuple[RenderableType, str]] = [(Text(heading, "not dim bold"), "")]
            for label, key, _ in PANEL_BLOCKS[heading]:
                lines.append((label, _format_metric(self._newest_row, key)))
            for row, line in zip(rows, lines, strict=True):
                row += ["", *line] if row else line
        for row in rows:
            grid.add_row(*row)
        return grid


def _live_console(console: Console | None) -> Console | None:
    """A console that can show the live panel, if any."""
    try:
        from rich.console import Console
    except ImportError:
        return None
    console = console or Console()
    is_capable = console.is_terminal and not console.is_dumb_terminal
    return console if is_capable and console.encoding.startswith("utf") else None
