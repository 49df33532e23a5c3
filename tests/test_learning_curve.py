"""Learning curves show the metrics, and a picture is written completely or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from lookfurther.errors import LookFurtherError
from lookfurther.report.figure_style import format_steps, format_value
from lookfurther.report.learning_curve import plot_learning_curve


def write_metrics(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_linear_metrics(path: Path, steps: Sequence[int], growth: float) -> Path:
    """Metrics with a low-epsilon return that grows by `growth` per step."""
    return write_metrics(path, [{"step": s, "return_low_epsilon": growth * s} for s in steps])


@pytest.fixture
def saved_figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that were saved."""
    figures: list[Figure] = []
    save = Figure.savefig

    def save_and_keep(figure: Figure, *args: Any, **kwargs: Any) -> None:
        figures.append(figure)
        save(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", save_and_keep)
    return figures


def curves(axes: Axes) -> dict[str, tuple[list[float], list[float]]]:
    """The points of each solid line by its name; dashed lines are references."""
    return {
        str(line.get_label()): (
            np.ravel(line.get_xdata()).tolist(),
            np.ravel(line.get_ydata()).tolist(),
        )
        for line in axes.lines
        if line.get_linestyle() == "-"
    }


def legend_texts(axes: Axes) -> list[str]:
    legend = axes.get_legend()
    return [text.get_text() for text in legend.get_texts()] if legend else []


RUN = [
    {"step": 0, "return_mean": None, "loss_td": None},
    {"step": 1000, "return_mean": 1.0, "loss_td": 0.5, "loss_im": 0.0},
    {"step": 2000, "return_mean": 2.0, "return_low_epsilon": 3.0, "loss_td": 0.25, "loss_tc": 0.1},
    {"step": 3000, "return_mean": 2.5, "return_low_epsilon": 4.0, "loss_td": 0.2, "loss_tc": 0.1},
]


def test_learning_curve_shows_known_values(tmp_path: Path, saved_figures: list[Figure]) -> None:
    other = write_linear_metrics(tmp_path / "other.jsonl", [0, 6000], 1e-3)
    out = tmp_path / "deep" / "curve.png"
    run = write_metrics(tmp_path / "a.jsonl", RUN)
    plot_learning_curve(run, out, {"expert": 5.0}, {"no TC": other})
    upper, lower = saved_figures[0].axes
    assert curves(upper) == {
        "this run, recent": ([1000, 2000, 3000], [1.0, 2.0, 2.5]),
        "this run, low ε": ([2000, 3000], [3.0, 4.0]),
        "no TC, low ε": ([0, 6000], [0.0, 6.0]),
    }
    assert [line.get_ydata() for line in upper.lines if line.get_linestyle() != "-"] == [[5.0, 5.0]]
    assert legend_texts(upper) == [*curves(upper), "expert"]
    assert lower.get_yscale() == "log"
    assert curves(lower) == {
        "TD": ([1000, 2000, 3000], [0.5, 0.25, 0.2]),
        "TC": ([2000, 3000], [0.1, 0.1]),
    }
    assert legend_texts(lower) == ["TD", "TC"]
    with Image.open(out) as image:
        assert (image.format, image.width) == ("PNG", 1600)
        assert len(image.convert("RGB").getcolors(1 << 20) or []) > 50
    assert os.listdir(out.parent) == ["curve.png"]


@pytest.mark.parametrize("runs", [0, 1, 7])
def test_legend_names_every_run_within_the_figure(
    runs: int, tmp_path: Path, saved_figures: list[Figure]
) -> None:
    """The names are readable: they do not touch one another, the lines or the edge."""
    run = write_metrics(tmp_path / "a.jsonl", RUN)
    others = {
        f"a rather long name {i}": write_linear_metrics(tmp_path / f"{i}.jsonl", [0, 6000], 1e-3)
        for i in range(runs)
    }
    plot_learning_curve(run, tmp_path / "a.png", {"expert": 4.0}, others)
    axes = saved_figures[0].axes[0]
    legend = axes.get_legend()
    assert legend is not None
    boxes = [text.get_window_extent() for text in legend.get_texts()]
    assert len(boxes) == 3 + runs
    panel, page = axes.get_window_extent(), saved_figures[0].bbox
    assert all(panel.x1 < box.x0 and box.x1 < page.x1 for box in boxes)
    tops = sorted(boxes, key=lambda box: -box.y1)
    assert all(lower.y1 <= upper.y0 + 1 for upper, lower in pairwise(tops))


def test_run_without_finished_episode_has_a_curve(
    tmp_path: Path, saved_figures: list[Figure]
) -> None:
    plot_learning_curve(write_metrics(tmp_path / "a.jsonl", RUN[:1]), tmp_path / "a.png")
    texts = [text.get_text() for text in saved_figures[0].axes[0].texts]
    assert texts == ["no finished episode yet"]


@pytest.mark.parametrize(
    ("steps", "text"),
    [(0, "0"), (500, "500"), (2000, "2k"), (250_000, "250k"), (1.5e6, "1.5M"), (2e9, "2G")],
)
def test_steps_are_abbreviated(steps: float, text: str) -> None:
    assert format_steps(steps) == text


def test_values_have_thousands_separators() -> None:
    assert [format_value(v) for v in (0.01, 0.5, -20, 35_000)] == ["0.01", "0.5", "-20", "35,000"]


def test_empty_metrics_are_an_error(tmp_path: Path) -> None:
    empty = write_metrics(tmp_path / "empty.jsonl", [])
    out = tmp_path / "x.png"
    with pytest.raises(LookFurtherError, match=r"empty\.jsonl holds no metrics"):
        plot_learning_curve(empty, out)
    assert not out.exists()


def test_failed_save_keeps_the_old_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, folder = write_metrics(tmp_path / "a.jsonl", RUN), tmp_path / "out"
    plot_learning_curve(run, folder / "a.png")
    before = (folder / "a.png").read_bytes()

    def fail(figure: Figure, path: Path, **_: object) -> None:
        path.write_bytes(before[:100])
        raise OSError("No space left on device")

    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(OSError, match="No space"):
        plot_learning_curve(run, folder / "a.png")
    assert (folder / "a.png").read_bytes() == before
    assert os.listdir(folder) == ["a.png"]
