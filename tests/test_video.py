"""Videos show what was played, in step, and mark env_view the agent overtakes the expert."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookfurther.config import EnvConfig
from lookfurther.demos.episode import InputLog
from lookfurther.demos.playback import episode_from_log
from lookfurther.envs import get_spec
from lookfurther.envs.naming import short_env_title
from lookfurther.errors import DemonstrationError
from lookfurther.system.formatting import format_number
from lookfurther.video import MAX_EPISODE_SECONDS, growing_axes, playback_pace
from lookfurther.video.chart import ChartAxes, PlayerCurve, axis_ticks
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
from tests.video_samples import CART, PONG, expert_episodes, make_env_view, push_towards_lean

returns = st.lists(st.integers(-3, 3), min_size=1, max_size=12).map(lambda r: np.array(r, float))


# Overtaking


@given(returns, returns)
def test_overtaking_is_the_first_lasting_lead(agent: np.ndarray, expert: np.ndarray) -> None:
    frames = range(max(len(agent), len(expert)))
    lead = [agent[min(t, len(agent) - 1)] - expert[min(t, len(expert) - 1)] for t in frames]
    lasting = [t for t in frames if lead[t] > 0 and all(later >= 0 for later in lead[t:])]
    assert find_overtaking(agent, expert) == (lasting[0] if lasting else None)


@given(returns, returns)
def test_at_most_one_player_overtakes(a: np.ndarray, b: np.ndarray) -> None:
    assert find_overtaking(a, a) is None
    assert find_overtaking(a, b) is None or find_overtaking(b, a) is None


def test_overtaking_matches_hand_example() -> None:
    """Ahead at 1, behind at 2, ahead from 4 on; the expert's return lasts beyond its end at 3."""
    assert find_overtaking(np.array([0, 2, 2, 2, 5, 5.0]), np.array([0, 1, 3, 4.0])) == 4


# Playback


def grey_frames(rewards: Sequence[float]) -> Iterator[Frame]:
    """An episode with the n-th picture in grey of value n."""
    for n, reward in enumerate([0.0, *rewards]):
        yield Frame(reward, lambda n=n: np.full((2, 2, 3), n, np.uint8), n == len(rewards))


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=20), st.lists(st.integers(0, 25)))
def test_playback_shows_requested_or_last_frame(rewards: list[int], requested: list[int]) -> None:
    playback = Playback(grey_frames([float(r) for r in rewards]))
    for frame in sorted(requested):
        current = min(frame, len(rewards))
        assert (playback.picture_at(frame) == current).all()
        assert playback.frame_count == current
        assert playback.returns.tolist() == [sum(rewards[:n]) for n in range(current + 1)]
        assert playback.is_over == (current == len(rewards))


def test_replayed_demonstration_has_recorded_rewards() -> None:
    env_view = make_env_view(CART)
    for episode in expert_episodes():
        returns = cumulative_returns(replay_demonstration(episode, env_view, "it"))
        assert np.diff(returns).tolist() == episode.rewards.tolist()


def test_demonstration_that_replays_differently_is_an_error() -> None:
    altered = replace(expert_episodes(1)[0], rewards=np.full(3, 9, np.float32))
    with pytest.raises(DemonstrationError, match=r"it replays to \d+, not to its 27"):
        cumulative_returns(replay_demonstration(altered, make_env_view(CART), "it"))
    unknown = replace(expert_episodes(1)[0], seed=None)
    with pytest.raises(DemonstrationError, match="it has neither an input log nor a seed"):
        cumulative_returns(replay_demonstration(unknown, make_env_view(CART), "it"))


def test_policy_gets_stacked_planes_as_in_training() -> None:
    """The policy gets stacks of planes; the episode is that of the demonstration."""
    observations: list[np.ndarray] = []

    def policy(batch: np.ndarray) -> np.ndarray:
        observations.append(batch[0].copy())
        return np.array([push_towards_lean(batch[0][-4:])])

    env_view = make_env_view(CART, frame_stack=2)
    episode = expert_episodes(1)[0]
    returns = cumulative_returns(play_policy(policy, env_view, 5, 0))
    assert returns[-1] == episode.score
    assert np.array_equal([x[4:] for x in observations], episode.planes[:-1])
    assert (observations[0][:4] == 0).all()
    assert np.array_equal(observations[1][:4], observations[0][4:])


def test_atari_playback_matches_emulator_with_noop_start() -> None:
    """An emulator with the same actions shows the same picture; the length limit ends it."""
    pytest.importorskip("ale_py")
    env_view = make_env_view(PONG, max_episode_length=40, noop_max=30)
    random = np.random.default_rng(0)
    actions: list[int] = []

    def policy(_: np.ndarray) -> np.ndarray:
        actions.append(int(random.integers(18)))
        return np.array(actions[-1:])

    playback = Playback(play_policy(policy, env_view, 3, 0))
    picture = playback.picture_at(1000)
    assert playback.frame_count == 160
    assert playback.is_over
    noops = int(np.random.default_rng(3).integers(8))
    assert noops > 0
    actions[:noops] = [0] * noops
    screens: list[np.ndarray] = []
    input_log = InputLog(np.repeat(np.array(actions, np.uint8), 4))
    episode = episode_from_log(
        input_log, PONG, on_frame=lambda emulator, _: screens.append(emulator.rgb_screen())
    )
    assert np.array_equal(picture, np.maximum(screens[-2], screens[-1]))
    assert np.array_equal(
        cumulative_returns(replay_demonstration(episode, env_view, "it")), playback.returns
    )


# Layout


def make_panel(value: float, is_over: bool = False, colour: str = "#ff0000") -> PlayerPanel:
    picture = np.full((20, 30, 3), 200, np.uint8)
    return PlayerPanel("Agent", "", PlayerCurve(colour, np.array([0, value]), is_over), picture)


def test_frame_is_drawn_at_any_width() -> None:
    for width in (1280, 960, 640):
        layout = VideoLayout("CartPole", make_env_view(CART), width)
        drawn = layout.draw_frame(1, [make_panel(1.0), make_panel(2.0)], ChartAxes(4, 0, 2))
        assert drawn.shape == (width * 9 // 16, width, 3)
        assert drawn.dtype == np.uint8


def test_overtaking_mark_appears_only_when_ahead() -> None:
    """Only the mark is green."""
    layout = VideoLayout("CartPole", make_env_view(CART), 1280)

    def count_green(*returns: float) -> int:
        drawn = layout.draw_frame(1, [make_panel(r) for r in returns], ChartAxes(4, 0, 2)).astype(
            int
        )
        return int(np.count_nonzero((drawn == (0x6F, 0xCF, 0x97)).all(-1)))

    assert count_green(2.0, 1.0) > 100
    assert count_green(1.0, 2.0) == count_green(1.0, 1.0) == count_green(1.0) == 0


def test_curve_ends_at_current_frame_and_return() -> None:
    """Half the time and the full return: the dot is in the middle of the box, at its top."""
    layout = VideoLayout("CartPole", make_env_view(CART), 1280)
    drawn = layout.draw_frame(
        2,
        [make_panel(1.0)._replace(curve=PlayerCurve("#ff0000", np.array([0, 1, 1.0]), False))],
        ChartAxes(4, 0, 1),
    )
    red = (drawn == (255, 0, 0)).all(-1)
    y, x = np.nonzero(red[530:700])
    left, right = 92, 1280 - 44
    assert abs(x.max() - (left + right) / 2) <= 6
    assert abs(y.min() + 530 - 556) <= 6
    assert abs(x.min() - left) <= 2


def test_integer_enlargement_is_sharp() -> None:
    """Each pixel of an Atari screen becomes three by two pixels of the same colour."""
    picture = np.random.default_rng(0).integers(0, 255, (210, 160, 3), np.uint8)
    layout = VideoLayout(
        "Pong",
        EnvView(PONG, get_spec(CART, EnvConfig())._replace(env=PONG), EnvConfig(), 60),
        1280,
    )
    panel = make_panel(0.0)._replace(picture=picture)
    drawn = layout.draw_frame(0, [panel, panel], ChartAxes(4, 0, 1))
    left = 32 + (596 - 480) // 2
    assert np.array_equal(
        drawn[92 : 92 + 420, left : left + 480], picture.repeat(2, 0).repeat(3, 1)
    )


@given(st.floats(-1e6, 1e6), st.floats(0.01, 1e6), st.integers(2, 8))
def test_ticks_are_within_the_axis(low: float, width: float, count: int) -> None:
    ticks = axis_ticks(low, low + width, count)
    assert all(low <= x <= low + width for x in ticks)
    assert len(ticks) <= count + 1


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.8125, "0.812"), (0.75, "0.75"), (71500.0, "71,500"), (-21.0, "-21"), (99.99999, "100")],
)
def test_returns_are_formatted(value: float, text: str) -> None:
    assert format_number(value) == text


@given(st.floats(1, 120), st.integers(1, 10**6), st.sampled_from([0.0, 0.25, 1.0, 4.0, 100.0]))
def test_playback_pace_matches_requested_speed(rate: float, frames: int, speed: float) -> None:
    stride, fps = playback_pace(rate, frames, speed)
    assert fps <= MAX_FPS
    assert stride >= 1
    if speed:
        assert stride * fps == pytest.approx(rate * speed)
    else:
        assert frames / (stride * fps) <= MAX_EPISODE_SECONDS * 1.001


@given(st.integers(1, 10**6))
def test_growing_axes_contain_the_curve_with_bounded_slack(frames: int) -> None:
    axes = growing_axes([np.zeros(frames + 1)])
    assert frames <= axes.frames <= max(97, 1.5 * frames + 2)
    assert (axes.low, axes.high) == (0, 1)


def test_env_titles_are_short() -> None:
    assert short_env_title("ALE/MontezumaRevenge-v5") == "Montezuma's Revenge"
    assert short_env_title("lookfurther/UnlockPickup-v0") == "UnlockPickup"
