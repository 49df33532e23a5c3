"""Progress of a run: the same figures as a panel on a terminal and as plain lines elsewhere."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest
from rich.console import Console

from lookfurther.training.monitoring.console import PANEL_BLOCKS, RATE_ROWS, ProgressDisplay
from lookfurther.training.monitoring.quiet_progress import QuietProgress

ROW: dict[str, Any] = {
    "step": 20_000,
    "minutes": 3.5,
    "steps_per_second": 1234.4,
    "updates_per_second": 38.5,
    "samples_per_insert": 8.0,
    "wait_environments": 0.573,
    "episodes": 1_204,
    "return_mean": 0.42,
    "return_low_epsilon": 0.55,
    "return_best": 0.93,
    "return_in_progress_low_epsilon": 0.1,
    "loss_td": 0.012,
    "loss_tc": 0.003,
    "loss_im": 0.2,
    "gradient_norm": 2.04,
    "expert_share_of_gradient": 0.31,
    "replay_fill": 0.5,
    "memory_gib": 3.14,
}
WIDE_ROW = ROW | {
    "step": 49_412_000,
    "minutes": 1235.7,
    "steps_per_second": 16_234.4,
    "updates_per_second": 1138.5,
    "return_mean": -123_456.4,
    "return_low_epsilon": float("nan"),
    "return_best": 1_234_567.9,
    "loss_td": 1.234e-5,
    "loss_tc": 12_345.6,
    "loss_im": None,
    "replay_fill": 1.0,
    "memory_gib": 113.1,
}


def build_terminal(width: int) -> Console:
    return Console(
        file=io.StringIO(),
        force_terminal=True,
        width=width,
        record=True,
        _environ={"TERM": "xterm", "COLUMNS": str(width)},
    )


def panel_lines(row: dict[str, Any], width: int, **settings: Any) -> list[str]:
    """The panel's lines on a terminal of this width."""
    console = build_terminal(width)
    progress = ProgressDisplay(settings.pop("total", 1_000_000), console=console, **settings)
    if row:
        progress.update(row)
    console.print(progress.render_panel())
    return console.export_text().splitlines()


# Plain lines


def test_plain_line_shows_all_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    progress = ProgressDisplay(1_000_000, console=Console(file=io.StringIO()))
    progress.start()
    progress.update(ROW)
    progress.print_message("checkpoint [2] saved")
    progress.stop()
    # 980,000 steps at 1,234.4 a second are 793.9 seconds.
    assert capsys.readouterr().out.splitlines() == [
        "step 20,000 of 1,000,000 | 1,234 steps/s | 38.5 updates/s | 8.0 samples/insert"
        " | return 0.42 (low ε 0.55, best 0.93) | in progress 0.10 | TD 0.012 TC 0.003 IM 0.2"
        " | demos 31 % | ETA 00:13:14",
        "checkpoint [2] saved",
    ]


def test_plain_line_omits_unknown_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    progress = ProgressDisplay(100, console=Console(file=io.StringIO()))
    progress.update({"step": 10, "return_mean": float("nan"), "loss_td": None})
    progress.update({"step": 20, "steps_per_second": 2.0, "return_mean": 1.0, "loss_tc": 0.5})
    progress.stop()
    assert capsys.readouterr().out.splitlines() == [
        "step 10 of 100",
        "step 20 of 100 | 2.0 steps/s | return 1.00 (low ε –, best –) | TC 0.5 | ETA 00:00:40",
    ]


def test_fast_rows_print_at_most_every_period(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first, the last, and one in five seconds."""
    now = 0.0
    monkeypatch.setattr("lookfurther.training.monitoring.console.time.monotonic", lambda: now)
    progress = ProgressDisplay(1_000, console=Console(file=io.StringIO()))
    for step, now in enumerate((0.0, 0.1, 4.9, 5.0, 5.1, 11.0, 11.2)):  # noqa: B007
        progress.update({"step": step})
    progress.stop()
    progress.stop()
    steps = [int(line.split()[1]) for line in capsys.readouterr().out.splitlines()]
    assert steps == [0, 3, 5, 6]


def test_without_rich_prints_plain_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    progress = ProgressDisplay(1_000_000, console=build_terminal(80))
    progress.start()
    progress.update(ROW)
    progress.stop()
    assert capsys.readouterr().out.startswith("step 20,000 of 1,000,000 | ")


def test_ascii_output_replaces_greek_letters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    ProgressDisplay(1_000_000, console=Console(file=io.StringIO())).update(ROW)
    assert b"(low ? 0.55, best 0.93)" in out.buffer.getvalue()  # type: ignore[attr-defined]


# Time left


def test_eta_follows_recent_rates_and_time_limit() -> None:
    progress = ProgressDisplay(1000, console=build_terminal(80))
    assert progress.estimate_seconds_left() is None
    progress.update({"step": 100, "steps_per_second": 10.0})
    assert progress.estimate_seconds_left() == 90
    progress.update({"step": 200, "steps_per_second": 40.0})
    # Two rows of 100 steps took 10 and 2.5 seconds, so that 800 steps take 50 seconds.
    assert progress.estimate_seconds_left() == pytest.approx(50)
    for _ in range(RATE_ROWS):
        progress.update({"step": 400, "steps_per_second": 60.0})
    assert progress.estimate_seconds_left() == pytest.approx(10)
    progress.update({"step": 400, "steps_per_second": 0.0})
    assert progress.estimate_seconds_left() == pytest.approx(10)

    limited = ProgressDisplay(1000, max_minutes=1.0, console=build_terminal(80))
    assert limited.estimate_seconds_left() == 60
    limited.update({"step": 100, "steps_per_second": 10.0, "minutes": 0.75})
    assert limited.estimate_seconds_left() == 15
    limited.update({"step": 100, "steps_per_second": 10.0, "minutes": 2.0})
    assert limited.estimate_seconds_left() == 0


def test_eta_ignores_rates_before_learning() -> None:
    progress = ProgressDisplay(1000, console=build_terminal(80))
    progress.update({"step": 100, "steps_per_second": 900.0, "updates": 0})
    assert progress.estimate_seconds_left() is None
    progress.update({"step": 200, "steps_per_second": 10.0, "updates": 3})
    assert progress.estimate_seconds_left() == 80


# The panel

SHOT_80 = """\
╭─ Pong · seed 0 ──────────────────────────────────────────────────────────────╮
│ ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━╺━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━  50.0 % │
│ 20,000 of 40,000 steps             elapsed 00:03:30             ETA 00:00:16 │
│                                                                              │
│ Speed                      Return            Loss            Data            │
│ steps/s           1,234    recent     0.42   TD      0.012   demos      31 % │
│ updates/s          38.5    low ε      0.55   TC      0.003   replay     50 % │
│ samples/insert      8.0    best       0.93   IM        0.2   memory  3.1 GiB │
│ env wait           57 %    so far     0.10   |g|      2.04   ended     1,204 │
╰──────────────────────────────────────────────────────────────────────────────╯"""


def test_panel_at_80_columns() -> None:
    assert panel_lines(ROW, 80, total=40_000, title="Pong · seed 0") == SHOT_80.splitlines()


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("row", [{}, ROW, WIDE_ROW], ids=["nothing", "usual", "wide"])
def test_panel_fits_width_and_shows_all_figures(width: int, row: dict[str, Any]) -> None:
    lines = panel_lines(row, width, title="ALE/Pong-v5 · apex-dqfd · seed 0")
    text = "\n".join(lines)
    assert {len(line) for line in lines} == {min(width, 100)}
    assert "…" not in text
    for block in PANEL_BLOCKS.values():
        for label, _, _ in block:
            assert f" {label} " in text
    if row is WIDE_ROW:
        for figure in ("16,234", "-123,456", "1,234,568", "1.23e-05", "12,346", "100 %", "113 GiB"):
            assert f" {figure} " in text


def test_progress_bar_follows_time_limit() -> None:
    text = "\n".join(panel_lines(ROW, 80, total=1_000_000, max_minutes=4.0))
    assert " 87.5 % of the time " in text
    assert "20,000 of 1,000,000" in text
    assert "ETA 00:00:30" in text


def test_quiet_progress_prints_warnings_to_stderr_only(capsys: pytest.CaptureFixture[str]) -> None:
    progress = QuietProgress()
    progress.start()
    progress.update(ROW)
    progress.print_message("network of 5 parameters")
    progress.print_warning("no checkpoint at step 5")
    progress.stop()
    assert capsys.readouterr() == ("", "warning: no checkpoint at step 5\n")


def test_messages_appear_above_live_panel() -> None:
    console = build_terminal(80)
    progress = ProgressDisplay(40_000, "Pong · seed 0", console=console)
    progress.start()
    progress.update(ROW)
    console.export_text()
    progress.print_message("checkpoint [bold]2[/] saved")
    written = console.export_text().splitlines()
    assert written[0].endswith("checkpoint [bold]2[/] saved")
    assert [line.rstrip() for line in written[1:]] == SHOT_80.splitlines()
    progress.stop()
    progress.stop()
    assert console.file.getvalue().rstrip().endswith("\x1b[?25h")  # type: ignore[attr-defined]
