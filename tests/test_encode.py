"""GIFs show the frames they are made from, at the right speed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lookfurther.errors import LookFurtherError
from lookfurther.video.encode import write_gif


def read_gif(path: Path) -> tuple[list[np.ndarray], list[int]]:
    """The frames of a GIF and their durations in milliseconds."""
    frames, durations = [], []
    with Image.open(path) as image:
        for i in range(getattr(image, "n_frames", 1)):
            image.seek(i)
            durations.append(image.info["duration"])
            frames.append(np.array(image.convert("RGB")))
    return frames, durations


def noise_frames(colours: int, count: int = 4, seed: int = 0) -> list[np.ndarray]:
    """Frames of noise with exactly this many colours."""
    rng = np.random.default_rng(seed)
    codes = rng.choice(1 << 24, colours, replace=False)
    palette = np.stack([codes >> 16, codes >> 8 & 255, codes & 255], -1).astype(np.uint8)
    entries = rng.integers(colours, size=(count, 20, 32))
    entries[0].flat[:colours] = np.arange(colours)
    return list(palette[entries])


def absolute_error(shown: list[np.ndarray], frames: list[np.ndarray]) -> np.ndarray:
    return np.abs(np.array(shown).astype(int) - np.array(frames))


# Colours


@pytest.mark.parametrize("colours", [2, 3, 16, 17, 254, 255])
def test_up_to_255_colours_are_exact(tmp_path: Path, colours: int) -> None:
    frames = noise_frames(colours)
    write_gif(frames, tmp_path / "a.gif", fps=10)
    shown, durations = read_gif(tmp_path / "a.gif")
    np.testing.assert_array_equal(shown, frames)
    assert durations == [100] * len(frames)
    assert os.listdir(tmp_path) == ["a.gif"]


def test_many_colours_are_approximated(tmp_path: Path) -> None:
    y, x = np.mgrid[:64, :64]
    frames = [np.stack([4 * x, 4 * y, 0 * x + 8 * k], -1).astype(np.uint8) for k in range(8)]
    write_gif(frames, tmp_path / "a.gif", fps=10)
    error = absolute_error(read_gif(tmp_path / "a.gif")[0], frames)
    assert error.mean() < 8
    assert error.max() < 32


def test_frequent_colours_are_nearly_exact(tmp_path: Path) -> None:
    """Large areas of a few colours next to a gradient, as in a game with a chart below."""
    rng = np.random.default_rng(0)
    areas = rng.integers(0, 256, (8, 3)).astype(np.uint8).repeat(8, 0)[:, None].repeat(64, 1)
    gradient = np.stack([np.linspace(0, 255, 64).astype(np.uint8)] * 3, -1)
    frames = []
    for k in range(40):
        frame = areas.copy()
        frame[:4] = np.roll(gradient, k, 0)
        frame[:4, :, 1] = 6 * k
        frames.append(frame)
    write_gif(frames, tmp_path / "a.gif", fps=10)
    error = absolute_error(read_gif(tmp_path / "a.gif")[0], frames).max(-1)
    assert (error[:, 4:] <= 4).all()


def test_still_areas_do_not_flicker(tmp_path: Path) -> None:
    """One palette for all frames: a pixel that does not change keeps its colour."""
    rng = np.random.default_rng(0)
    still = rng.integers(0, 256, (32, 32, 3), np.uint8)
    frames = [still.copy() for _ in range(6)]
    for frame in frames:
        frame[:8] = rng.integers(0, 256, (8, 32, 3), np.uint8)
    write_gif(frames, tmp_path / "a.gif", fps=10)
    shown, _ = read_gif(tmp_path / "a.gif")
    for frame in shown:
        np.testing.assert_array_equal(frame[8:], shown[0][8:])


def test_one_extra_colour_costs_little(tmp_path: Path) -> None:
    frames = noise_frames(256)
    write_gif(frames, tmp_path / "a.gif", fps=10)
    error = absolute_error(read_gif(tmp_path / "a.gif")[0], frames).max(-1)
    assert (error <= 4).mean() > 0.97


# Time and size


@pytest.mark.parametrize("fps", [0.5, 7, 15, 30, 50])
def test_speed_is_exact_to_a_hundredth_of_a_second(tmp_path: Path, fps: float) -> None:
    frames = noise_frames(8, count=31)
    write_gif(frames, tmp_path / "a.gif", fps)
    _, durations = read_gif(tmp_path / "a.gif")
    ends = np.cumsum(durations)
    np.testing.assert_allclose(ends, 1000 * np.arange(1, 32) / fps, atol=5.001)


def test_equal_consecutive_frames_are_merged(tmp_path: Path) -> None:
    a, b = noise_frames(8, count=2)
    write_gif([a, a, a, b, b, a], tmp_path / "a.gif", fps=10)
    shown, durations = read_gif(tmp_path / "a.gif")
    np.testing.assert_array_equal(shown, [a, b, a])
    assert durations == [300, 200, 100]


def test_still_areas_cost_few_bytes(tmp_path: Path) -> None:
    still = np.random.default_rng(0).integers(2, size=(64, 64, 1), dtype=np.uint8) * 255
    frames = [still.repeat(3, 2) for _ in range(50)]
    for i, frame in enumerate(frames):
        frame[0, i] = frame[63, 63 - i] = 128  # two moving pixels, far from one another
    write_gif(frames[:1], tmp_path / "one.gif", fps=10)
    write_gif(frames, tmp_path / "all.gif", fps=10)
    assert (tmp_path / "all.gif").stat().st_size < 10 * (tmp_path / "one.gif").stat().st_size


# Captions and errors


def test_scale_repeats_pixels_above_captions(tmp_path: Path) -> None:
    frames = noise_frames(8, count=3)
    captions = ["step 1", "step 1", "a caption far too long for so narrow a picture"]
    write_gif(frames, tmp_path / "a.gif", fps=10, scale=3, captions=captions)
    shown, _ = read_gif(tmp_path / "a.gif")
    for frame, picture in zip(frames, shown, strict=True):
        np.testing.assert_array_equal(picture[:60], np.kron(frame, np.ones((3, 3, 1))))
    bars = [picture[60:] for picture in shown]
    np.testing.assert_array_equal(bars[0], bars[1])
    assert (bars[0] != bars[2]).any()
    for bar in bars:
        assert bar.max() == 255  # white text
        assert np.median(bar) == bar.min() == 24  # on a dark background
        assert (bar[:, -3:] == 24).all()  # the text ends before the edge


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
def test_invalid_gif_input_is_an_error(tmp_path: Path, arguments: Any, message: str) -> None:
    frames, *rest = arguments
    with pytest.raises(LookFurtherError, match=message):
        write_gif(frames, tmp_path / "a.gif", *rest)
    assert os.listdir(tmp_path) == []
