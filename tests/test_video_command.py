"""`lookfurther video`: files, errors, and the page that shows episodes live."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lookfurther import video
from lookfurther.agent import Agent
from lookfurther.cli.main import main
from lookfurther.config import Config, EnvConfig
from lookfurther.config import replace as change
from lookfurther.demos.storage import save_episodes
from lookfurther.envs import get_spec
from lookfurther.networks.dueling import make_network_builder
from lookfurther.training.checkpoints import checkpoint
from lookfurther.video import encode
from lookfurther.video.playback import (
    cumulative_returns,
)
from lookfurther.video.players import ExpertEpisode, make_pair
from tests.video_samples import CART, expert_episodes, make_env_view


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of an untrained agent, and a set of demonstrations."""
    folder = tmp_path_factory.mktemp("run")
    spec = get_spec(CART, EnvConfig())
    demos = save_episodes("cart/leaning-v0", expert_episodes(), spec, "a test", folder / "demos")
    config = change(Config(), env=CART, demos=(str(demos),), network__hidden=(8,))
    facts = {"step": 7, "spec": spec._asdict(), "config": dataclasses.asdict(config)}
    weights = {"weights": dict(make_network_builder(config.network)(spec).state_dict())}
    checkpoint.save(folder / "best", 7, weights, facts, keep=1)
    return folder


def test_video_command_writes_mp4_and_gif(
    run: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two pairs, the best demonstration first; as many pictures as the episodes have frames."""
    av = pytest.importorskip("av", reason="MP4 is an extra: lookfurther[video]")
    pytest.importorskip("pygame", reason="CartPole is drawn with pygame")
    monkeypatch.setattr(video, "END_PAUSE_SECONDS", 0.08)
    assert main(["video", str(run), "--out", str(tmp_path / "a.mp4"), "--episodes", "5"]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    best, other = sorted((e.score for e in expert_episodes()), reverse=True)
    assert f"expert {best:g}" in lines[0]
    assert f"expert {other:g}" in lines[1]
    assert len(lines) == 3
    with av.open(str(tmp_path / "a.mp4")) as file:
        pictures = [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]
        assert file.streams.video[0].average_rate == 25
    assert pictures[0].shape == (720, 1280, 3)
    agent = Agent.load(run)
    env_view = make_env_view(CART)
    experts = sorted(expert_episodes(), key=lambda e: -e.score)
    lengths = []
    for seed, episode in enumerate(experts):
        players = make_pair(agent, env_view, ExpertEpisode("", episode), seed)
        lengths.append(max(len(cumulative_returns(player.play())) - 1 for player in players))
    assert len(pictures) == sum(-(-n // 2) + 1 + 2 for n in lengths)
    progress = ["playing 1 of 2", "playing 2 of 2", f"drawing {len(pictures)} pictures"]
    assert printed.err.splitlines() == progress
    assert main(["video", str(run), "--out", str(tmp_path / "a.gif"), "--speed", "4"]) == 0
    with Image.open(tmp_path / "a.gif") as animation:
        assert animation.size == (960, 540)
        assert getattr(animation, "n_frames", 1) > 1


def test_video_errors_are_one_line(run: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "file").touch()
    for arguments, message in {
        (str(run), "--out", "a.avi"): "a.avi must end in .gif or .mp4",
        (str(run), "--out", str(tmp_path / "file" / "a.gif")): "a.gif cannot be written",
        (str(run), "--episodes", "0"): "--episodes must be at least 1",
        (str(run), "--speed", "-1"): "--speed must be 0 ... 1000",
        (str(run), "--demos", "no/such-v0"): "no demonstrations named no/such-v0",
        (str(tmp_path / "none"),): "holds no checkpoint",
    }.items():
        assert main(["video", *arguments]) != 0
        error = capsys.readouterr().err
        assert message in error
        assert len(error.splitlines()) == 1
    assert not Path("a.avi").exists()


def test_too_long_gif_is_an_error(
    run: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encode, "MAX_GIF_FRAMES", 3)
    assert main(["video", str(run), "--out", str(tmp_path / "a.gif")]) == 2
    assert re.search(r"\d+ pictures are too many for a GIF", capsys.readouterr().err)
    assert not (tmp_path / "a.gif").exists()


def test_mp4_without_pyav_fails_before_playing(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    assert main(["video", str(tmp_path / "no run"), "--out", str(tmp_path / "a.mp4")]) == 2
    assert "MP4 needs PyAV: install lookfurther[video]" in capsys.readouterr().err


def test_watch_page_plays_pairs_in_sequence(run: Path, monkeypatch: Any) -> None:
    """Playing, a pause, a higher speed that skips frames, and the next pair."""
    pytest.importorskip("starlette", reason="the page is an extra: lookfurther[record]")
    pytest.importorskip("pygame", reason="CartPole is drawn with pygame")
    from lookfurther.recorder import watch
    from lookfurther.recorder.protocol import PageMessage

    monkeypatch.setattr(watch, "END_PAUSE_SECONDS", 0.0)
    source = watch.WatchSession(
        Agent.load(run), [ExpertEpisode("", e) for e in expert_episodes(1)], 0, 640
    )
    assert source.hello_message()["mode"] == "watch"
    statuses: list[dict[str, Any]] = []

    class Page:
        """Accepts every frame, pauses after five and resumes at a higher speed."""

        async def send_frame(self, picture: np.ndarray) -> None:
            assert picture.shape == (360, 640, 3)

        async def send(self, kind: str, **fields: Any) -> None:
            assert kind == "status"
            statuses.append(fields | {"expert": source._side_by_side.playbacks[1].frame_count})
            if len(statuses) == 5:
                source.on_message(PageMessage("pause"))
                asyncio.get_running_loop().call_later(
                    0.01, source.on_message, PageMessage("speed", speed=4.0)
                )
                asyncio.get_running_loop().call_later(
                    0.02, source.on_message, PageMessage("resume")
                )
            if len(statuses) > 6 and statuses[-1]["expert"] == 0:
                raise EOFError

        def clock_shift(self) -> float:
            return -1.0

    with pytest.raises(EOFError):
        asyncio.run(source.stream_to(Page()))  # type: ignore[arg-type]
    assert [t["expert"] for t in statuses[:6]] == [0, 2, 4, 6, 8, 8]
    assert [t["state"] for t in statuses[:6]] == [*["watching"] * 5, "paused"]
    assert statuses[-3]["expert"] - statuses[-4]["expert"] == 7
    assert statuses[-2]["expert"] == len(expert_episodes(1)[0])
    assert statuses[-2]["score"] == statuses[-2]["steps"] > 0
    assert statuses[-1]["score"] == 0
