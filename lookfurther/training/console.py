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

from lookfurther.system.printable import LONGEST_MESSAGE, printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

Row = Mapping[str, Any]
UNKNOWN = "–"
WIDEST = 100  # columns of the panel
PAUSE = 5.0  # seconds from one plain line to the next, at least: a GPU makes several rows in one


def _known(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _speed(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def score(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.2f}"


def _loss(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _share(value: float) -> str:
    return f"{100 * value:.0f} %"


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _memory(value: float) -> str:
    return f"{_speed(value)} GiB"


def _time(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}"


# Heading -> (label, key, how it is written), as the panel shows them.
BLOCKS: dict[str, tuple[tuple[str, str, Callable[[float], str]], ...]] = {
    "Speed": (
        ("steps/s", "steps_per_second", _speed),
        ("updates/s", "updates_per_second", _speed),
        ("samples/insert", "samples_per_insert", _speed),
        ("envs awaited", "wait_environments", _share),
    ),
    "Return": (
        ("recent", "return_mean", score),
        ("low ε", "return_low_epsilon", score),
        ("best", "return_best", score),
        ("so far", "under_way_low_epsilon", score),
    ),
    "Loss": (
        ("TD", "loss_td", _loss),
        ("TC", "loss_tc", _loss),
        ("IM", "loss_im", _loss),
        ("|g|", "gradient_norm", _loss),
    ),
    "Data": (
        ("demos", "expert_share_of_gradient", _share),
        ("replay", "replay_fill", _share),
        ("memory", "memory_gib", _memory),
        ("ended", "episodes", _count),
    ),
}
WRITE = {key: write for block in BLOCKS.values() for _, key, write in block}


def _value(row: Row, key: str) -> str:
    """A metric as it is shown."""
    return WRITE[key](row[key]) if _known(row.get(key)) else UNKNOWN


class Progress:
    """Shows rows of metrics. Without rich, or off a terminal, they are plain lines.

    Those are the first, the last, and of those between at most one in `PAUSE` seconds.
    """

    def __init__(
        self, total: int, title: str = "", minutes: float = 0.0, console: Console | None = None
    ) -> None:
        """A run ends after `total` agent steps or, unless 0, `minutes`."""
        self._total = total
        self._title = printable(title)
        self._minutes = minutes
        self._row: Row = {}
        self._speeds: deque[float] = deque(maxlen=20)
        self._console = _terminal(console)
        self._live: Any = None
        self._told = self._row  # the row of the last line
        self._when = -math.inf  # it was printed

    def start(self) -> None:
        if self._console is not None:
            from rich.live import Live

            self._live = Live(self.panel(), console=self._console, auto_refresh=False)
            self._live.start(refresh=True)

    def update(self, row: Row) -> None:
        """Shows the newest row."""
        self._row = row
        learning = row.get("updates") != 0  # steps are much faster before
        if learning and _known(row.get("steps_per_second")):
            self._speeds.append(row["steps_per_second"])
        if self._live is not None:
            with self._terminal_may_close():
                self._live.update(self.panel(), refresh=True)
        elif self._console is None and time.monotonic() - self._when >= PAUSE:
            self._tell()

    def _tell(self) -> None:
        self._told, self._when = self._row, time.monotonic()
        say(self.line())

    def note(self, text: str) -> None:
        """A line for the user, above the panel."""
        text = printable(text, LONGEST_MESSAGE)
        if self._console is None:
            say(text)
        else:
            from rich.text import Text

            with self._terminal_may_close():
                self._console.print(Text(text))

    def stop(self) -> None:
        """Leaves the last panel standing, or the last row printed."""
        if self._live is not None:
            with self._terminal_may_close():
                self._live.stop()
            self._live = None
        elif self._console is None and self._told is not self._row:
            self._tell()

    @contextlib.contextmanager
    def _terminal_may_close(self) -> Iterator[None]:
        """A terminal that is closed costs its panel, not the run."""
        try:
            yield
        except OSError:
            self._live = self._console = None
            discard_output()

    def eta(self) -> float | None:
        """Seconds left at the speed of the last rows, or to the limit of minutes if sooner.

        Only the speed since learning began counts: before, it says nothing of the rest.
        """
        left = []
        if sum(self._speeds) > 0:
            missing = max(0, self._total - self._row["step"])
            left.append(missing * len(self._speeds) / sum(self._speeds))
        if self._minutes:
            left.append(max(0.0, 60 * (self._minutes - self._row.get("minutes", 0.0))))
        return min(left, default=None)

    def line(self) -> str:
        """The newest row as one plain line; what is not known yet is left out."""
        row, eta = self._row, self.eta()
        show = {key: _value(row, key) for key in WRITE}
        scores = f"(low ε {show['return_low_epsilon']}, best {show['return_best']})"
        losses = [(name, show[f"loss_{name.lower()}"]) for name in ("TD", "TC", "IM")]
        parts = [
            f"step {row['step']:,} of {self._total:,}",
            f"{show['steps_per_second']} steps/s",
            f"{show['updates_per_second']} updates/s",
            f"{show['samples_per_insert']} samples/insert",
            f"return {show['return_mean']} {scores}",
            f"under way {show['under_way_low_epsilon']}",
            " ".join(f"{name} {value}" for name, value in losses if value != UNKNOWN),
            f"demos {show['expert_share_of_gradient']}",
            f"ETA {UNKNOWN if eta is None else _time(eta)}",
        ]
        return " | ".join(part for part in parts if part and UNKNOWN not in part.split()[:3])

    def panel(self) -> RenderableType:
        """The newest row as a panel: a bar, the times and four blocks of figures."""
        from rich.console import Group
        from rich.panel import Panel
        from rich.text import Text

        room = 80 if self._console is None else self._console.width
        headings = list(BLOCKS)
        across = 4 if room >= 80 else 2
        parts: list[RenderableType] = [self._bar(), self._times(" steps" if across == 4 else "")]
        for i in range(0, len(headings), across):
            parts += ["", self._figures(headings[i : i + across])]
        title = Text(self._title, "bold") if self._title else None
        width = min(room, WIDEST)
        return Panel(
            Group(*parts), title=title, title_align="left", border_style="dim", width=width
        )

    def _bar(self) -> Table:
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        done = self._row.get("step", 0) / self._total
        if self._minutes:
            done = max(done, self._row.get("minutes", 0.0) / self._minutes)
        done = min(done, 1.0)
        grid = Table.grid(expand=True, padding=(0, 1))
        grid.add_column(ratio=1)
        grid.add_column(justify="right", min_width=7)
        grid.add_row(ProgressBar(1.0, done), f"{100 * done:.1f} %")
        return grid

    def _times(self, unit: str) -> Table:
        from rich.table import Table
        from rich.text import Text

        row, eta = self._row, self.eta()
        grid = Table.grid("", "", "", expand=True)
        for column, side in zip(grid.columns, ("left", "center", "right"), strict=True):
            column.justify, column.no_wrap = side, True
        grid.columns[1].ratio = 1
        grid.add_row(
            Text.assemble((f"{row.get('step', 0):,}", "bold"), f" of {self._total:,}{unit}"),
            f"elapsed {_time(60 * row.get('minutes', 0.0))}",
            f"ETA {UNKNOWN if eta is None else _time(eta)}",
        )
        return grid

    def _figures(self, headings: list[str]) -> Table:
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
            lines += [(label, _value(self._row, key)) for label, key, _ in BLOCKS[heading]]
            for row, line in zip(rows, lines, strict=True):
                row += ["", *line] if row else line
        for row in rows:
            grid.add_row(*row)
        return grid


def _terminal(console: Console | None) -> Console | None:
    """A console fit for the live panel; None calls for plain lines."""
    try:
        from rich.console import Console
    except ImportError:
        return None
    console = console or Console()
    able = console.is_terminal and not console.is_dumb_terminal
    return console if able and console.encoding.startswith("utf") else None


def say(text: str) -> None:
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
