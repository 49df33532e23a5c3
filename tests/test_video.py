"""Films: what is shown is what was played, in step, and the overtaking is where it is."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from lookfurther import video
from lookfurther.agent import Agent
from lookfurther.cli.main import main
from lookfurther.config import Config, EnvConfig
from lookfurther.config import replace as change
from lookfurther.demos.collect import ObservationPolicy, collect_episodes
from lookfurther.demos.episode import Episode, InputLog
from lookfurther.demos.playback import episode_from_log
from lookfurther.demos.storage import save_episodes
from lookfurther.envs import get_spec
from lookfurther.envs.naming import short_env_title
from lookfurther.errors import DemonstrationError
from lookfurther.networks import make_network_builder
from lookfurther.system.formatting import format_number
from lookfurther.training import checkpoint
from lookfurther.video import MAX_EPISODE_SECONDS, encode, growing_axes, playback_pace
from lookfurther.video.chart import ChartAxes, ReturnCurve, axis_ticks
from lookfurther.video.encode import MAX_FPS
from lookfurther.video.layout import PlayerPanel, VideoLayout
from lookfurther.video.playback import (
    EnvView,
    Frame,
    Playback,
    cumulative_returns,
    find_overtaking,
    play_policy,
    replay_demonstration,
)
from lookfurther.video.players import ExpertEpisode, make_pair

CART, PONG = "CartPole-v1", "ALE/Pong-v5"
returns = st.lists(st.integers(-3, 3), min_size=1, max_size=12).map(lambda r: np.array(r, float))


def leaning(x: np.ndarray) -> int:
    """A poor player of CartPole: it pushes where the pole leans."""
    return int(x[2] > 0)


def experts(count: int = 2) -> list[Episode]:
    return collect_episodes(CART, EnvConfig(), ObservationPolicy(leaning), range(count))[0]


def scene(env: str, **environment: Any) -> EnvView:
    how = EnvConfig(**environment)
    return EnvView.from_config(change(Config(), env=env, environment=how), get_spec(env, how))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of an untrained agent, with a set of demonstrations beside it."""
    folder = tmp_path_factory.mktemp("run")
    spec = get_spec(CART, EnvConfig())
    demos = save_episodes("cart/leaning-v0", experts(), spec, "a test", folder / "demos")
    config = change(Config(), env=CART, demos=(str(demos),), network__hidden=(8,))
    facts = {"step": 7, "spec": spec._asdict(), "config": dataclasses.asdict(config)}
    weights = {"weights": dict(make_network_builder(config.network)(spec).state_dict())}
    checkpoint.save(folder / "best", 7, weights, facts, keep=1)
    return folder


# Overtaking


@given(returns, returns)
def test_overtaking_is_the_first_lead_that_is_never_lost(a: np.ndarray, e: np.ndarray) -> None:
    frames = range(max(len(a), len(e)))
    lead = [a[min(t, len(a) - 1)] - e[min(t, len(e) - 1)] for t in frames]
    kept = [t for t in frames if lead[t] > 0 and all(x >= 0 for x in lead[t:])]
    assert find_overtaking(a, e) == (kept[0] if kept else None)


@given(returns, returns)
def test_only_one_of_two_overtakes_the_other(a: np.ndarray, e: np.ndarray) -> None:
    assert find_overtaking(a, a) is None
    assert find_overtaking(a, e) is None or find_overtaking(e, a) is None


def test_overtaking_by_hand() -> None:
    """Ahead at 1, behind at 2, ahead from 4 on; the expert's return lasts beyond its end at 3."""
    assert find_overtaking(np.array([0, 2, 2, 2, 5, 5.0]), np.array([0, 1, 3, 4.0])) == 4


# Plays


def shots(rewards: Sequence[float]) -> Iterator[Frame]:
    """A play whose n-th picture is grey of value n."""
    for n, reward in enumerate([0.0, *rewards]):
        yield Frame(reward, lambda n=n: np.full((2, 2, 3), n, np.uint8), n == len(rewards))


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=20), st.lists(st.integers(0, 25)))
def test_a_reel_shows_the_frame_asked_for_or_its_last(rewards: list[int], asked: list[int]) -> None:
    reel = Playback(shots([float(r) for r in rewards]))
    for frame in sorted(asked):
        now = min(frame, len(rewards))
        assert (reel.picture_at(frame) == now).all()
        assert reel.frame_count == now
        assert reel.returns.tolist() == [sum(rewards[:n]) for n in range(now + 1)]
        assert reel.is_over == (now == len(rewards))


def test_a_demonstration_is_repeated_reward_by_reward() -> None:
    where = scene(CART)
    for episode in experts():
        total = cumulative_returns(replay_demonstration(episode, where, "it"))
        assert np.diff(total).tolist() == episode.rewards.tolist()


def test_a_demonstration_that_replays_otherwise_is_refused() -> None:
    false = replace(experts(1)[0], rewards=np.full(3, 9, np.float32))
    with pytest.raises(DemonstrationError, match=r"it replays to \d+, not to its 27"):
        cumulative_returns(replay_demonstration(false, scene(CART), "it"))
    unknown = replace(experts(1)[0], seed=None)
    with pytest.raises(DemonstrationError, match="it has neither a tape nor a seed"):
        cumulative_returns(replay_demonstration(unknown, scene(CART), "it"))


def test_the_policy_sees_what_training_shows_it() -> None:
    """Stacks of planes, from the same start as the demonstration, to the same end."""
    seen: list[np.ndarray] = []

    def policy(x: np.ndarray) -> np.ndarray:
        seen.append(x[0].copy())
        return np.array([leaning(x[0][-4:])])

    where = scene(CART, stack=2)
    episode = experts(1)[0]
    total = cumulative_returns(play_policy(policy, where, 5, 0))
    assert total[-1] == episode.score
    assert np.array_equal([x[4:] for x in seen], episode.planes[:-1])
    assert (seen[0][:4] == 0).all()
    assert np.array_equal(seen[1][:4], seen[0][4:])


def test_an_atari_play_holds_each_action_and_begins_idle() -> None:
    """The picture of the emulator that plays the same frames; the cap ends it."""
    pytest.importorskip("ale_py")
    where = scene(PONG, max_episode_length=40, noop_max=30)
    random = np.random.default_rng(0)
    taken: list[int] = []

    def policy(_: np.ndarray) -> np.ndarray:
        taken.append(int(random.integers(18)))
        return np.array(taken[-1:])

    reel = Playback(play_policy(policy, where, 3, 0))
    picture = reel.picture_at(1000)
    assert reel.frame_count == 160
    assert reel.is_over
    idle = int(np.random.default_rng(3).integers(8))
    assert idle > 0
    taken[:idle] = [0] * idle
    screens: list[np.ndarray] = []
    tape = InputLog(np.repeat(np.array(taken, np.uint8), 4))
    episode = episode_from_log(
        tape, PONG, on_frame=lambda emulator, _: screens.append(emulator.rgb_screen())
    )
    assert np.array_equal(picture, np.maximum(screens[-2], screens[-1]))
    assert np.array_equal(
        cumulative_returns(replay_demonstration(episode, where, "it")), reel.returns
    )


# The picture


def panel(value: float, over: bool = False, colour: str = "#ff0000") -> PlayerPanel:
    picture = np.full((20, 30, 3), 200, np.uint8)
    return PlayerPanel("Agent", "", ReturnCurve(colour, np.array([0, value]), over), picture)


def test_a_moment_is_drawn_at_any_width() -> None:
    for width in (1280, 960, 640):
        stage = VideoLayout("CartPole", scene(CART), width)
        drawn = stage.draw_frame(1, [panel(1.0), panel(2.0)], ChartAxes(4, 0, 2))
        assert drawn.shape == (width * 9 // 16, width, 3)
        assert drawn.dtype == np.uint8


def test_the_mark_appears_with_the_overtaking_alone() -> None:
    """Green is the colour of being ahead and of nothing else."""
    stage = VideoLayout("CartPole", scene(CART), 1280)

    def green(*returns: float) -> int:
        drawn = stage.draw_frame(1, [panel(r) for r in returns], ChartAxes(4, 0, 2)).astype(int)
        return int(np.count_nonzero((drawn == (0x6F, 0xCF, 0x97)).all(-1)))

    assert green(2.0, 1.0) > 100
    assert green(1.0, 2.0) == green(1.0, 1.0) == green(1.0) == 0


def test_the_curve_ends_now_at_its_height() -> None:
    """Half the time and the full return: the dot is in the middle of the box, at its top."""
    stage = VideoLayout("CartPole", scene(CART), 1280)
    drawn = stage.draw_frame(
        2,
        [panel(1.0)._replace(curve=ReturnCurve("#ff0000", np.array([0, 1, 1.0]), False))],
        ChartAxes(4, 0, 1),
    )
    red = (drawn == (255, 0, 0)).all(-1)
    y, x = np.nonzero(red[530:700])
    left, right = 92, 1280 - 44
    assert abs(x.max() - (left + right) / 2) <= 6
    assert abs(y.min() + 530 - 556) <= 6
    assert abs(x.min() - left) <= 2


def test_a_picture_is_sharp_where_it_is_enlarged_by_whole_numbers() -> None:
    """An Atari screen is three by two pixels each, in colours it has."""
    picture = np.random.default_rng(0).integers(0, 255, (210, 160, 3), np.uint8)
    stage = VideoLayout(
        "Pong",
        EnvView(PONG, get_spec(CART, EnvConfig())._replace(env=PONG), EnvConfig(), 60),
        1280,
    )
    one = panel(0.0)._replace(picture=picture)
    drawn = stage.draw_frame(0, [one, one], ChartAxes(4, 0, 1))
    left = 32 + (596 - 480) // 2
    assert np.array_equal(
        drawn[92 : 92 + 420, left : left + 480], picture.repeat(2, 0).repeat(3, 1)
    )


@given(st.floats(-1e6, 1e6), st.floats(0.01, 1e6), st.integers(2, 8))
def test_ticks_lie_within_the_axis(low: float, wide: float, count: int) -> None:
    found = axis_ticks(low, low + wide, count)
    assert all(low <= x <= low + wide for x in found)
    assert len(found) <= count + 1


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.8125, "0.812"), (0.75, "0.75"), (71500.0, "71,500"), (-21.0, "-21"), (99.99999, "100")],
)
def test_returns_in_words(value: float, text: str) -> None:
    assert format_number(value) == text


@given(st.floats(1, 120), st.integers(1, 10**6), st.sampled_from([0.0, 0.25, 1.0, 4.0, 100.0]))
def test_the_pace_is_the_speed_asked_for(rate: float, frames: int, speed: float) -> None:
    stride, fps = playback_pace(rate, frames, speed)
    assert fps <= MAX_FPS
    assert stride >= 1
    if speed:
        assert stride * fps == pytest.approx(rate * speed)
    else:
        assert frames / (stride * fps) <= MAX_EPISODE_SECONDS * 1.001


@given(st.integers(1, 10**6))
def test_growing_axes_have_room_and_seldom_change(frames: int) -> None:
    axes = growing_axes([np.zeros(frames + 1)])
    assert frames <= axes.frames <= max(97, 1.5 * frames + 2)
    assert (axes.low, axes.high) == (0, 1)


def test_titles() -> None:
    assert short_env_title("ALE/MontezumaRevenge-v5") == "Montezuma's Revenge"
    assert short_env_title("lookfurther/UnlockPickup-v0") == "UnlockPickup"


# The command


def test_a_film_and_an_animation(
    run: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two pairs, the best demonstration first; as many pictures as the plays have frames."""
    av = pytest.importorskip("av", reason="MP4 is an extra: lookfurther[video]")
    pytest.importorskip("pygame", reason="CartPole is drawn with pygame")
    monkeypatch.setattr(video, "END_PAUSE_SECONDS", 0.08)
    assert main(["video", str(run), "--out", str(tmp_path / "a.mp4"), "--episodes", "5"]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    best, other = sorted((e.score for e in experts()), reverse=True)
    assert f"expert {best:g}" in lines[0]
    assert f"expert {other:g}" in lines[1]
    assert len(lines) == 3
    with av.open(str(tmp_path / "a.mp4")) as film:
        pictures = [frame.to_ndarray(format="rgb24") for frame in film.decode(video=0)]
        assert film.streams.video[0].average_rate == 25
    assert pictures[0].shape == (720, 1280, 3)
    agent = Agent.load(run)
    where = scene(CART)
    found = sorted(experts(), key=lambda e: -e.score)
    lengths = []
    for seed, episode in enumerate(found):
        sides = make_pair(agent, where, ExpertEpisode("", episode), seed)
        lengths.append(max(len(cumulative_returns(side.play())) - 1 for side in sides))
    assert len(pictures) == sum(-(-n // 2) + 1 + 2 for n in lengths)
    stages = ["playing 1 of 2", "playing 2 of 2", f"drawing {len(pictures)} pictures"]
    assert printed.err.splitlines() == stages
    assert main(["video", str(run), "--out", str(tmp_path / "a.gif"), "--speed", "4"]) == 0
    with Image.open(tmp_path / "a.gif") as animation:
        assert animation.size == (960, 540)
        assert getattr(animation, "n_frames", 1) > 1


def test_what_cannot_be_is_one_line(run: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "file").touch()
    for words, said in {
        (str(run), "--out", "a.avi"): "a.avi must end in .gif or .mp4",
        (str(run), "--out", str(tmp_path / "file" / "a.gif")): "a.gif cannot be written",
        (str(run), "--episodes", "0"): "--episodes must be at least 1",
        (str(run), "--speed", "-1"): "--speed must be 0 ... 1000",
        (str(run), "--demos", "no/such-v0"): "no demonstrations named no/such-v0",
        (str(tmp_path / "none"),): "holds no checkpoint",
    }.items():
        assert main(["video", *words]) != 0
        error = capsys.readouterr().err
        assert said in error
        assert len(error.splitlines()) == 1
    assert not Path("a.avi").exists()


def test_an_animation_has_its_limit(
    run: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encode, "MAX_GIF_FRAMES", 3)
    assert main(["video", str(run), "--out", str(tmp_path / "a.gif")]) == 2
    assert re.search(r"\d+ pictures are too many for a GIF", capsys.readouterr().err)
    assert not (tmp_path / "a.gif").exists()


def test_a_film_without_its_library_is_refused_before_anything_is_played(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    assert main(["video", str(tmp_path / "no run"), "--out", str(tmp_path / "a.mp4")]) == 2
    assert "MP4 needs PyAV: install lookfurther[video]" in capsys.readouterr().err


def test_a_page_watches_one_episode_after_another(run: Path, monkeypatch: Any) -> None:
    """Frames flow, a pause holds them, another speed skips some, and the next pair begins."""
    pytest.importorskip("starlette", reason="the page is an extra: lookfurther[record]")
    pytest.importorskip("pygame", reason="CartPole is drawn with pygame")
    from lookfurther.recorder import watch
    from lookfurther.recorder.protocol import PageMessage

    monkeypatch.setattr(watch, "END_PAUSE_SECONDS", 0.0)
    source = watch.WatchSession(Agent.load(run), [ExpertEpisode("", e) for e in experts(1)], 0, 640)
    assert source.hello_message()["mode"] == "watch"
    told: list[dict[str, Any]] = []

    class Page:
        """Takes all at once, pauses after five pictures and goes on at a higher speed."""

        async def frame(self, picture: np.ndarray) -> None:
            assert picture.shape == (360, 640, 3)

        async def say(self, kind: str, **facts: Any) -> None:
            assert kind == "status"
            told.append(facts | {"expert": source._side_by_side.playbacks[1].frame_count})
            if len(told) == 5:
                source.on_message(PageMessage("pause"))
                asyncio.get_running_loop().call_later(
                    0.01, source.on_message, PageMessage("speed", speed=4.0)
                )
                asyncio.get_running_loop().call_later(
                    0.02, source.on_message, PageMessage("resume")
                )
            if len(told) > 6 and told[-1]["expert"] == 0:
                raise EOFError

        def late(self) -> float:
            return -1.0

    with pytest.raises(EOFError):
        asyncio.run(source.stream_to(Page()))  # type: ignore[arg-type]
    assert [t["expert"] for t in told[:6]] == [0, 2, 4, 6, 8, 8]
    assert [t["state"] for t in told[:6]] == [*["watching"] * 5, "paused"]
    assert told[-3]["expert"] - told[-4]["expert"] == 7
    assert told[-2]["expert"] == len(experts(1)[0])
    assert told[-2]["score"] == told[-2]["steps"] > 0
    assert told[-1]["score"] == 0
