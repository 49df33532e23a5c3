"""lookfurther demos play: GIFs and MP4s."""

from __future__ import annotations

import dataclasses
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageSequence

from lookfurther.cli.demos import playback
from lookfurther.demos.episode import InputLog
from lookfurther.demos.playback import play_log
from lookfurther.envs.emulator import Emulator
from lookfurther.errors import LookFurtherError
from lookfurther.video import encode
from lookfurther.video.encode import write_mp4
from tests.demo_commands import PONG, episode, run_command, save_demo_set

pytestmark = pytest.mark.usefixtures("datasets_home")


@given(st.integers(1, 5000), st.data(), st.floats(0.01, 1000), st.sampled_from([10.0, 15.0, 60.0]))
def test_select_steps_keeps_the_speed(
    length: int, data: st.DataObject, speed: float, rate: float
) -> None:
    begin = data.draw(st.integers(0, length - 1))
    end = data.draw(st.integers(begin + 1, length))
    options = playback.PlayOptions("a", Path("a.gif"), begin=begin, end=end, speed=speed)
    steps, fps = playback.select_steps(options, length, rate)
    assert steps[0] == begin
    assert set(np.diff(steps)) <= {math.ceil(rate * speed / playback.MAX_VIDEO_FPS)}
    assert steps[-1] <= end < steps[-1] + math.ceil(rate * speed / playback.MAX_VIDEO_FPS)
    assert 0 < fps <= playback.MAX_VIDEO_FPS
    if len(steps) > 1:
        seconds = (steps[1] - steps[0]) / rate  # of the game between two frames
        assert math.isclose(seconds * fps, speed)


def step_screens(log: InputLog, env: str) -> list[np.ndarray]:
    """The maximum of the last two frames of every step, computed directly."""
    emulator = Emulator(env)
    screens = [emulator.rgb_screen()]
    for _ in play_log(log, emulator):
        screens.append(emulator.rgb_screen())
    ends = [*range(4, len(screens), 4)] + ([len(screens) - 1] if (len(screens) - 1) % 4 else [])
    return [screens[0], *(np.maximum(screens[i - 1], screens[i]) for i in ends)]


def test_gif_shows_emulator_colours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = save_demo_set("pong-v0", episode(40, 3), episode(201))
    out = tmp_path / "a.gif"
    args = ("play", "pong", str(out), "--episode", "1", "--scale", "1")
    assert "a.gif: pong-v0, episode 1, return 0, steps 0 to 51" in run_command(capsys, *args)
    expected = step_screens(made[1].input_log, PONG)  # type: ignore[arg-type]
    assert len(expected) == 52
    time, moments = 0.0, {}
    with Image.open(out) as video:
        for frame in ImageSequence.Iterator(video):  # equal frames in a row are one
            moments[round(time * 15)] = np.asarray(frame.convert("RGB"))[:210]
            time += frame.info["duration"] / 1000
    assert abs(time - 52 / 15) < 0.02
    assert all((picture == expected[step]).all() for step, picture in moments.items())
    assert len(moments) > 20


def test_mp4_has_every_selected_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    av = pytest.importorskip("av")
    made = save_demo_set("pong-v0", episode(202))
    out = tmp_path / "a.mp4"
    run_command(capsys, "play", "pong", str(out), "--begin", "10", "--end", "40", "--speed", "2")
    expected = step_screens(made[0].input_log, PONG)[10:41]  # type: ignore[arg-type]
    with av.open(out) as video:
        stream = video.streams.video[0]
        assert (stream.average_rate, stream.width) == (30, 320)
        shown = [frame.to_ndarray(format="rgb24")[:420:2, ::2] for frame in video.decode(video=0)]
    assert len(shown) == 31
    for picture, wanted in zip(shown, expected, strict=True):
        assert np.abs(picture.astype(int) - wanted).mean() < 6  # H.264 loses a little


def test_failed_mp4_leaves_no_file(tmp_path: Path) -> None:
    pytest.importorskip("av")

    def frames() -> Any:
        yield np.zeros((31, 21, 3), np.uint8)
        yield np.zeros((30, 21, 3), np.uint8)

    with pytest.raises(LookFurtherError, match="all must be uint8"):
        write_mp4(frames(), tmp_path / "a.mp4", 10)
    with pytest.raises(LookFurtherError, match="no frames"):
        write_mp4([], tmp_path / "a.mp4", 10)
    with pytest.raises(LookFurtherError, match="fps must be"):
        write_mp4(frames(), tmp_path / "a.mp4", 0)
    assert list(tmp_path.iterdir()) == []


def test_unverified_episode_is_drawn_from_planes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A colour replay of a forced import could differ from its planes."""
    shown = dataclasses.replace(episode(20), audit=None)
    save_demo_set("pong-v0", shown)
    run_command(capsys, "play", "pong", str(tmp_path / "a.gif"), "--scale", "1")
    with Image.open(tmp_path / "a.gif") as video:
        picture = np.asarray(video.convert("RGB"))[:84]
    assert (picture == shown.planes[0, 0][..., None]).all()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["a.avi"], "a.avi must end in .gif or .mp4"),
        (["a.gif", "--episode", "1"], "pong-v0 has episodes 0 ... 0, not 1"),
        (["a.gif", "--begin", "10"], "--begin and --end must be in 0 ... 10"),
        (["a.gif", "--speed", "0"], "--speed must be above 0"),
    ],
)
def test_play_rejects_invalid_options(
    args: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save_demo_set("pong-v0", episode(40))
    assert message in run_command(capsys, "play", "pong", *args, code=2)


def test_play_checks_output_before_reading_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    nowhere = str(tmp_path / "file" / "a.gif")
    assert "a.gif cannot be written" in run_command(capsys, "play", "none", nowhere, code=2)
    monkeypatch.setitem(sys.modules, "av", None)
    assert "MP4 needs PyAV" in run_command(capsys, "play", "none", str(tmp_path / "a.mp4"), code=2)


def test_play_rejects_too_long_gif(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(encode, "MAX_GIF_FRAMES", 10)
    save_demo_set("pong-v0", episode(40))
    assert "11 pictures are too many for a GIF" in run_command(
        capsys, "play", "pong", "a.gif", code=2
    )
