"""A run on the screen: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from lookfurther.system.printable import MAX_MESSAGE_LENGTH, make_printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

MetricsRow = Mapping[str, Any]
UNKNOWN_TEXT = "–"
MAX_PANEL_WIDTH = 100  # columns of the panel
LINE_PERIOD = (
    5.0  # seconds from one plain line to the next, at least: a GPU makes several rows in one
)


def _is_finite_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _format_rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def format_score(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.2f}"


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


# Heading -> (label, key, how it is written), as the panel shows them.
PANEL_BLOCKS: dict[str, tuple[tuple[str, str, Callable[[float], str]], ...]] = {
    "Speed": (
        ("steps/s", "steps_per_second", _format_rate),
        ("updates/s", "updates_per_second", _format_rate),
        ("samples/insert", "samples_per_insert", _format_rate),
        ("envs awaited", "wait_environments", _format_percentage),
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
    """A metric as it is shown."""
    return METRIC_FORMATS[key](row[key]) if _is_finite_number(row.get(key)) else UNKNOWN_TEXT


class ProgressDisplay:
    """Shows rows of metrics. Without rich, or off a terminal, they are plain lines.

    Those are the first, the last, and of those between at most one in `PAUSE` seconds.
    """

    def __init__(
        self,
        total_steps: int,
        title: str = "",
        max_minutes: float = 0.0,
        console: Console | None = None,
    ) -> None:
        """A run ends after `total` agent steps or, unless 0, `minutes`."""
        self._total_steps = total_steps
        self._title = make_printable(title)
        self._max_minutes = max_minutes
        self._newest_row: MetricsRow = {}
        self._recent_rates: deque[float] = deque(maxlen=20)
        self._console = _live_console(console)
        self._live: Any = None
        self._printed_row = self._newest_row  # the row of the last line
        self._printed_at = -math.inf  # it was printed

    def start(self) -> None:
        if self._console is not None:
            from rich.live import Live

            self._live = Live(self.render_panel(), console=self._console, auto_refresh=False)
            self._live.start(refresh=True)

    def update(self, row: MetricsRow) -> None:
        """Shows the newest row."""
        self._newest_row = row
        learning = row.get("updates") != 0  # steps are much faster before
        if learning and _is_finite_number(row.get("steps_per_second")):
            self._recent_rates.append(row["steps_per_second"])
        if self._live is not None:
            with self._tolerate_closed_terminal():
                self._live.update(self.render_panel(), refresh=True)
        elif self._console is None and time.monotonic() - self._printed_at >= LINE_PERIOD:
            self._print_newest_row()

    def _print_newest_row(self) -> None:
        self._printed_row, self._printed_at = self._newest_row, time.monotonic()
        print_line(self.format_line())

    def print_message(self, text: str) -> None:
        """A line for the user, above the panel."""
        text = make_printable(text, MAX_MESSAGE_LENGTH)
        if self._console is None:
            print_line(text)
        else:
            from rich.text import Text

            with self._tolerate_closed_terminal():
                self._console.print(Text(text))

    def stop(self) -> None:
        """Leaves the last panel standing, or the last row printed."""
        if self._live is not None:
            with self._tolerate_closed_terminal():
                self._live.stop()
            self._live = None
        elif self._console is None and self._printed_row is not self._newest_row:
            self._print_newest_row()

    @contextlib.contextmanager
    def _tolerate_closed_terminal(self) -> Iterator[None]:
        """A terminal that is closed costs its panel, not the run."""
        try:
            yield
        except OSError:
            self._live = self._console = None
            discard_output()

    def estimate_seconds_left(self) -> float | None:
        """Seconds left at the speed of the last rows, or to the limit of minutes if sooner.

        Only the speed since learning began counts: before, it says nothing of the rest.
        """
        left = []
        if sum(self._recent_rates) > 0:
            missing = max(0, self._total_steps - self._newest_row["step"])
            left.append(missing * len(self._recent_rates) / sum(self._recent_rates))
        if self._max_minutes:
            left.append(max(0.0, 60 * (self._max_minutes - self._newest_row.get("minutes", 0.0))))
        return min(left, default=None)

    def format_line(self) -> str:
        """The newest row as one plain line; what is not known yet is left out."""
        row, eta = self._newest_row, self.estimate_seconds_left()
        show = {key: _format_metric(row, key) for key in METRIC_FORMATS}
        scores = f"(low ε {show['return_low_epsilon']}, best {show['return_best']})"
        losses = [(name, show[f"loss_{name.lower()}"]) for name in ("TD", "TC", "IM")]
        parts = [
            f"step {row['step']:,} of {self._total_steps:,}",
            f"{show['steps_per_second']} steps/s",
            f"{show['updates_per_second']} updates/s",
            f"{show['samples_per_insert']} samples/insert",
            f"return {show['return_mean']} {scores}",
            f"under way {show['return_in_progress_low_epsilon']}",
            " ".join(f"{name} {value}" for name, value in losses if value != UNKNOWN_TEXT),
            f"demos {show['expert_share_of_gradient']}",
            f"ETA {UNKNOWN_TEXT if eta is None else _format_duration(eta)}",
        ]
        return " | ".join(part for part in parts if part and UNKNOWN_TEXT not in part.split()[:3])

    def render_panel(self) -> RenderableType:
        """The newest row as a panel: a bar, the times and four blocks of figures."""
        from rich.console import Group
        from rich.panel import Panel
        from rich.text import Text

        room = 80 if self._console is None else self._console.width
        headings = list(PANEL_BLOCKS)
        across = 4 if room >= 80 else 2
        parts: list[RenderableType] = [
            self._render_progress_bar(),
            self._render_times(" steps" if across == 4 else ""),
        ]
        for i in range(0, len(headings), across):
            parts += ["", self._render_blocks(headings[i : i + across])]
        title = Text(self._title, "bold") if self._title else None
        width = min(room, MAX_PANEL_WIDTH)
        return Panel(
            Group(*parts), title=title, title_align="left", border_style="dim", width=width
        )

    def _render_progress_bar(self) -> Table:
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        done = self._newest_row.get("step", 0) / self._total_steps
        if self._max_minutes:
            done = max(done, self._newest_row.get("minutes", 0.0) / self._max_minutes)
        done = min(done, 1.0)
        grid = Table.grid(expand=True, padding=(0, 1))
        grid.add_column(ratio=1)
        grid.add_column(justify="right", min_width=7)
        grid.add_row(ProgressBar(1.0, done), f"{100 * done:.1f} %")
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
            lines += [
                (label, _format_metric(self._newest_row, key))
                for label, key, _ in PANEL_BLOCKS[heading]
            ]
            for row, line in zip(rows, lines, strict=True):
                row += ["", *line] if row else line
        for row in rows:
            grid.add_row(*row)
        return grid


def _live_console(console: Console | None) -> Console | None:
    """A console fit for the live panel; None calls for plain lines."""
    try:
        from rich.console import Console
    except ImportError:
        return None
    console = console or Console()
    able = console.is_terminal and not console.is_dumb_terminal
    return console if able and console.encoding.startswith("utf") else None


def print_line(text: str) -> None:
    """One line to the standard output, which may not know every letter and may be closed."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        print(text.encode(encoding, "replace").decode(encoding), flush=True)
    except OSError:  # nobody reads any more: no reason to stop a run
        discard_output()


def discard_output() -> None:
    """Send what is still to be printed nowhere: Python would try to write it once more at exit."""
    with contextlib.suppress(OSError), open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), sys.stdout.fileno())
