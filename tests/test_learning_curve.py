"""Curves show what the metrics say, GIFs what the frames show; both are written whole or not."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from PIL import Image

from lookfurther.errors import LookFurtherError
from lookfurther.report import learning_curve as plots
from lookfurther.report.learning_curve import plot_learning_curve, plot_seed_curves
from lookfurther.video.encode import write_gif


def metrics(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def line(path: Path, steps: Sequence[int], slope: float) -> Path:
    """Metrics whose low-epsilon return grows by `slope` a step."""
    return metrics(path, [{"step": s, "return_low_epsilon": slope * s} for s in steps])


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that were saved."""
    figures: list[Figure] = []
    save = plots._save_figure

    def keep(figure: Figure, *rest: Any) -> None:
        figures.append(figure)
        save(figure, *rest)

    monkeypatch.setattr(plots, "_save_figure", keep)
    return figures


def curves(axes: Axes) -> dict[str, tuple[list[float], list[float]]]:
    """What each label's line shows, matched by colour; dashed lines are scores to compare with."""
    names = {to_hex(text.get_color()): text.get_text() for text in axes.texts}
    return {
        names[to_hex(line.get_color())]: (
            np.ravel(line.get_xdata()).tolist(),
            np.ravel(line.get_ydata()).tolist(),
        )
        for line in axes.lines
        if line.get_linestyle() == "-"
    }


RUN = [
    {"step": 0, "return_mean": None, "loss_td": None},
    {"step": 1000, "return_mean": 1.0, "loss_td": 0.5, "loss_im": 0.0},
    {"step": 2000, "return_mean": 2.0, "return_low_epsilon": 3.0, "loss_td": 0.25, "loss_tc": 0.1},
    {"step": 3000, "return_mean": 2.5, "return_low_epsilon": 4.0, "loss_td": 0.2, "loss_tc": 0.1},
]


def test_a_learning_curve_shows_the_known_values_of_each_metric(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    other = line(tmp_path / "other.jsonl", [0, 6000], 1e-3)
    out = tmp_path / "deep" / "curve.png"
    run = metrics(tmp_path / "a.jsonl", RUN)
    plot_learning_curve(run, out, {"expert": 5.0}, {"no TC": other})
    upper, lower = drawn[0].axes
    assert curves(upper) == {
        "this run, recent": ([1000, 2000, 3000], [1.0, 2.0, 2.5]),
        "this run, low ε": ([2000, 3000], [3.0, 4.0]),
        "no TC, low ε": ([0, 6000], [0.0, 6.0]),
    }
    assert [bar.get_ydata() for bar in upper.lines if bar.get_linestyle() != "-"] == [[5.0, 5.0]]
    assert "expert" in [text.get_text() for text in upper.texts]
    assert lower.get_yscale() == "log"
    assert curves(lower) == {
        "TD": ([1000, 2000, 3000], [0.5, 0.25, 0.2]),
        "TC": ([2000, 3000], [0.1, 0.1]),
    }
    with Image.open(out) as image:
        assert (image.format, image.width) == ("PNG", 1600)
        assert len(image.convert("RGB").getcolors(1 << 20) or []) > 50
    assert os.listdir(out.parent) == ["curve.png"]


def test_a_run_without_a_finished_episode_has_a_curve_too(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    plot_learning_curve(metrics(tmp_path / "a.jsonl", RUN[:1]), tmp_path / "a.png")
    assert [text.get_text() for text in drawn[0].axes[0].texts] == ["no finished episode yet"]


def test_seeds_are_averaged_where_all_have_values(tmp_path: Path, drawn: list[Figure]) -> None:
    runs = {
        "with": [
            line(tmp_path / "a.jsonl", range(0, 1100, 100), 1.0),
            line(tmp_path / "b.jsonl", range(200, 900, 300), 3.0),  # 200, 500, 800
        ],
        "without": [line(tmp_path / "c.jsonl", [0, 1000], 0.5)],
    }
    plot_seed_curves(runs, tmp_path / "seeds.png", {"expert": 900.0}, "UnlockPickup")
    (axes,) = drawn[0].axes
    shown = curves(axes)
    for name, start, end, slope in (("with", 200, 800, 2.0), ("without", 0, 1000, 0.5)):
        steps, values = map(np.array, shown[name])
        assert (steps[0], steps[-1]) == (start, end)
        np.testing.assert_allclose(values, slope * steps)
    band = np.asarray(axes.collections[0].get_paths()[0].vertices)
    inside = band[(band[:, 0] > 200) & (band[:, 0] < 800)]
    ratio = np.unique(np.round(inside[:, 1] / inside[:, 0], 9))
    assert ratio.tolist() == [1.0, 3.0]
    assert axes.get_title("left") == "UnlockPickup"
    assert axes.get_title("right") == "mean and range, seeds: 1–2"


@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=7))
def test_labels_never_touch_and_keep_their_order(heights: list[float]) -> None:
    figure = Figure(figsize=(8, 5), dpi=100)
    axes = figure.subplots()
    axes.set_ylim(0, 1)
    plots._draw_labels(axes, [(y, f"run {y!r}", "#222222") for y in heights])
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in axes.texts]
    for lower, upper in pairwise(boxes):
        assert upper.y0 > lower.y0 + 0.8 * lower.height
    assert [text.get_text() for text in axes.texts] == [f"run {y!r}" for y in sorted(heights)]


@pytest.mark.parametrize(
    ("steps", "text"),
    [(0, "0"), (500, "500"), (2000, "2k"), (250_000, "250k"), (1.5e6, "1.5M"), (2e9, "2G")],
)
def test_steps_are_written_short(steps: float, text: str) -> None:
    assert plots._format_steps(steps) == text


def test_scores_have_thousands_separators() -> None:
    assert [plots._format_value(v) for v in (0.01, 0.5, -20, 35_000)] == [
        "0.01",
        "0.5",
        "-20",
        "35,000",
    ]


def test_metrics_that_cannot_be_drawn_are_named(tmp_path: Path) -> None:
    empty = metrics(tmp_path / "empty.jsonl", [])
    early = metrics(tmp_path / "early.jsonl", RUN[:2])
    short, late = line(tmp_path / "s.jsonl", [0, 1], 1.0), line(tmp_path / "t.jsonl", [5, 9], 1.0)
    out = tmp_path / "x.png"
    with pytest.raises(LookFurtherError, match=r"empty\.jsonl holds no metrics"):
        plot_learning_curve(empty, out)
    with pytest.raises(LookFurtherError, match=r"early\.jsonl holds no return"):
        plot_seed_curves({"a": [early]}, out)
    with pytest.raises(LookFurtherError, match=r"s\.jsonl and its companions share no steps"):
        plot_seed_curves({"a": [short, late]}, out)
    assert not out.exists()


def test_a_crash_while_drawing_leaves_the_old_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, folder = metrics(tmp_path / "a.jsonl", RUN), tmp_path / "out"
    plot_learning_curve(run, folder / "a.png")
    before = (folder / "a.png").read_bytes()

    def crash(figure: Figure, path: Path, **_: object) -> None:
        path.write_bytes(before[:100])
        raise OSError("No space left on device")

    monkeypatch.setattr(Figure, "savefig", crash)
    with pytest.raises(OSError, match="No space"):
        plot_learning_curve(run, folder / "a.png")
    assert (folder / "a.png").read_bytes() == before
    assert os.listdir(folder) == ["a.png"]


# --- GIFs


def reopened(path: Path) -> tuple[list[np.ndarray], list[int]]:
    """The frames of a GIF and how long each lasts, in milliseconds."""
    frames, durations = [], []
    with Image.open(path) as image:
        for i in range(getattr(image, "n_frames", 1)):
            image.seek(i)
            durations.append(image.info["duration"])
            frames.append(np.array(image.convert("RGB")))
    return frames, durations


def coloured(colours: int, count: int = 4, seed: int = 0) -> list[np.ndarray]:
    """Frames of noise in exactly so many colours."""
    rng = np.random.default_rng(seed)
    codes = rng.choice(1 << 24, colours, replace=False)
    palette = np.stack([codes >> 16, codes >> 8 & 255, codes & 255], -1).astype(np.uint8)
    entries = rng.integers(colours, size=(count, 20, 32))
    entries[0].flat[:colours] = np.arange(colours)
    return list(palette[entries])


@pytest.mark.parametrize("colours", [2, 3, 16, 17, 254, 255])
def test_up_to_255_colours_are_exact(tmp_path: Path, colours: int) -> None:
    frames = coloured(colours)
    write_gif(frames, tmp_path / "a.gif", fps=10)
    shown, durations = reopened(tmp_path / "a.gif")
    np.testing.assert_array_equal(shown, frames)
    assert durations == [100] * len(frames)
    assert os.listdir(tmp_path) == ["a.gif"]


def test_more_colours_are_near(tmp_path: Path) -> None:
    y, x = np.mgrid[:64, :64]
    frames = [np.stack([4 * x, 4 * y, 0 * x + 8 * k], -1).astype(np.uint8) for k in range(8)]
    write_gif(frames, tmp_path / "a.gif", fps=10)
    shown, _ = reopened(tmp_path / "a.gif")
    error = np.abs(np.array(shown).astype(int) - np.array(frames))
    assert error.mean() < 8
    assert error.max() < 48


def test_one_colour_too_many_costs_that_colour_alone(tmp_path: Path) -> None:
    frames = coloured(256)
    write_gif(frames, tmp_path / "a.gif", fps=10)
    shown, _ = reopened(tmp_path / "a.gif")
    error = np.abs(np.array(shown).astype(int) - np.array(frames)).max(-1)
    assert (error <= 4).mean() > 0.97  # the 5 bits a channel that a film of many colours gets


@pytest.mark.parametrize("fps", [0.5, 7, 15, 30, 50])
def test_the_speed_is_true_to_a_hundredth_of_a_second(tmp_path: Path, fps: float) -> None:
    frames = coloured(8, count=31)
    write_gif(frames, tmp_path / "a.gif", fps)
    _, durations = reopened(tmp_path / "a.gif")
    ends = np.cumsum(durations)
    np.testing.assert_allclose(ends, 1000 * np.arange(1, 32) / fps, atol=5.001)


def test_equal_frames_become_one_that_lasts(tmp_path: Path) -> None:
    a, b = coloured(8, count=2)
    write_gif([a, a, a, b, b, a], tmp_path / "a.gif", fps=10)
    shown, durations = reopened(tmp_path / "a.gif")
    np.testing.assert_array_equal(shown, [a, b, a])
    assert durations == [300, 200, 100]


def test_what_does_not_move_costs_little(tmp_path: Path) -> None:
    still = np.random.default_rng(0).integers(2, size=(64, 64, 1), dtype=np.uint8) * 255
    frames = [still.repeat(3, 2) for _ in range(50)]
    for i, frame in enumerate(frames):
        frame[0, i] = frame[63, 63 - i] = 128  # two pixels move, far from one another
    write_gif(frames[:1], tmp_path / "one.gif", fps=10)
    write_gif(frames, tmp_path / "all.gif", fps=10)
    assert (tmp_path / "all.gif").stat().st_size < 10 * (tmp_path / "one.gif").stat().st_size


def test_scale_repeats_pixels_and_captions_stand_below(tmp_path: Path) -> None:
    frames = coloured(8, count=3)
    captions = ["step 1", "step 1", "a caption far too long for so narrow a picture"]
    write_gif(frames, tmp_path / "a.gif", fps=10, scale=3, captions=captions)
    shown, _ = reopened(tmp_path / "a.gif")
    for frame, picture in zip(frames, shown, strict=True):
        np.testing.assert_array_equal(picture[:60], np.kron(frame, np.ones((3, 3, 1))))
    bars = [picture[60:] for picture in shown]
    np.testing.assert_array_equal(bars[0], bars[1])
    assert (bars[0] != bars[2]).any()
    for bar in bars:
        assert bar.max() == 255  # white letters
        assert np.median(bar) == bar.min() == 24  # on a dark ground
        assert (bar[:, -3:] == 24).all()  # that end before the edge


FRAME = np.zeros((4, 5, 3), np.uint8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], 10), "no frames"),
        (([FRAME, FRAME[1:]], 10), r"frame 1 is uint8 \(3, 5, 3\)"),
        (([FRAME.astype(float)], 10), "frame 0 is float64"),
        (([FRAME[..., 0]], 10), r"frame 0 is uint8 \(4, 5\)"),
        (([FRAME], 0), "fps must be above 0"),
        (([FRAME], 60), "at most 50, not 60"),
        (([FRAME], 10, 1, ["a", "b"]), "2 captions for 1 frames"),
    ],
)
def test_what_cannot_be_animated_is_refused(tmp_path: Path, arguments: Any, message: str) -> None:
    frames, *rest = arguments
    with pytest.raises(LookFurtherError, match=message):
        write_gif(frames, tmp_path / "a.gif", *rest)
    assert os.listdir(tmp_path) == []
