"""A replay is equal in every plane and reward, or the first difference has a name (F28)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import gymnasium
import numpy as np
import pytest

from lookfurther.config import EnvConfig
from lookfurther.demos.collect import collect_episodes
from lookfurther.demos.episode import Episode, InputLog
from lookfurther.demos.playback import episode_from_log
from lookfurther.demos.verify import verify_episode
from lookfurther.envs.emulator import FUSED_MULTIPLY_ADD, Emulator
from lookfurther.errors import DemonstrationError
from lookfurther.types import Spec

BREAKOUT = Spec("ALE/Breakout-v5", (1, 84, 84), 4, "uint8", 18, 255.0)


@pytest.fixture(scope="module")
def game() -> Episode:
    """A whole game of Breakout."""
    pytest.importorskip("ale_py")
    emulator, frames = Emulator(BREAKOUT.env), []
    rng, action = np.random.default_rng(0), 0
    while not emulator.is_over:
        if emulator.frame_number % 7 == 0:
            action = int(rng.integers(18))
        frames.append(1 if emulator.frame_number % 30 == 0 else action)
        emulator.step_frame(frames[-1])
    return episode_from_log(InputLog(np.array(frames, np.uint8)), BREAKOUT.env)


def test_what_was_unrolled_is_equal(game: Episode) -> None:
    audit = verify_episode(game, BREAKOUT, EnvConfig())
    assert (audit.verified, audit.mismatch) == (True, "")
    assert audit.compared == len(game) + 1
    assert audit.recorded == audit.replayed == game.score > 0
    assert 0 < audit.ambiguous <= len(game)


def changed(array: np.ndarray, place: int, value: float) -> np.ndarray:
    array = array.copy()
    array[place] = value
    return array


def one_pixel(planes: np.ndarray) -> np.ndarray:
    planes = planes.copy()
    planes[100, 0, 40, 40] ^= 1
    return planes


def shorter(e: Episode) -> Episode:
    return replace(e, planes=e.planes[:-1], actions=e.actions[:-1], rewards=e.rewards[:-1])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda e: replace(e, planes=one_pixel(e.planes)),
            "step 100: 1 of 7056 values of the plane differ",
        ),
        (
            lambda e: replace(e, rewards=changed(e.rewards, 49, 7)),
            "step 50: the reward is 0, recorded 7",
        ),
        (lambda e: replace(e, terminal=False), "the replay ends there"),
        (
            lambda e: replace(e, actions=changed(e.actions, 3, (e.actions[3] + 1) % 18)),
            "its actions are not those of its tape's frames",
        ),
        (shorter, "its actions are not those of its tape's frames"),
        (
            lambda e: replace(
                e, input_log=replace(e.input_log, ram_writes=np.array([[200, 99, 9]], np.int32))
            ),
            "step 51: ",
        ),
    ],
)
def test_what_was_altered_is_named(game: Episode, change: Callable, words: str) -> None:
    audit = verify_episode(change(game), BREAKOUT, EnvConfig())
    assert not audit.verified
    assert words in audit.mismatch


def test_another_number_of_lives_ends_elsewhere(game: Episode) -> None:
    """The replay's score is told beside the recorded one."""
    assert game.input_log is not None
    lives = replace(game.input_log, ram_writes=np.array([[8, 57, 1]], np.int32))
    audit = verify_episode(replace(game, input_log=lives), BREAKOUT, EnvConfig())
    assert not audit.verified
    assert audit.recorded == game.score
    assert audit.replayed is not None
    assert audit.compared < len(game)


@pytest.fixture(scope="module")
def roundings(game: Episode) -> dict[bool, np.ndarray]:
    """The planes of the game as processors with and without fused multiply-add round them."""
    assert game.input_log is not None
    emulator = Emulator(BREAKOUT.env)
    planes = {fused: game.planes.copy() for fused in (True, False)}
    for i, action in enumerate(game.input_log.frame_actions.tolist(), 1):
        emulator.step_frame(action)
        if i % 4 == 0:
            for fused in planes:
                planes[fused][i // 4] = emulator.current_plane(fused)
    return planes


def test_planes_are_rounded_as_this_processor_rounds(
    game: Episode, roundings: dict[bool, np.ndarray]
) -> None:
    assert np.array_equal(game.planes, roundings[FUSED_MULTIPLY_ADD])
    assert not np.array_equal(game.planes, roundings[not FUSED_MULTIPLY_ADD])


@pytest.mark.parametrize("fused", [True, False])
def test_either_rounding_of_the_planes_is_verified(
    game: Episode, roundings: dict[bool, np.ndarray], fused: bool
) -> None:
    """Some pixels lie exactly between two grey values, and processors disagree about them."""
    assert verify_episode(replace(game, planes=roundings[fused]), BREAKOUT, EnvConfig()).verified


@pytest.mark.parametrize("fused", [True, False])
def test_a_pixel_beyond_both_roundings_is_a_difference(
    game: Episode, roundings: dict[bool, np.ndarray], fused: bool
) -> None:
    planes, others = roundings[fused].copy(), roundings[not fused]
    place = tuple(np.argwhere(planes != others)[0])
    planes[place] += np.sign(int(planes[place]) - int(others[place]))  # away from the other
    audit = verify_episode(replace(game, planes=planes), BREAKOUT, EnvConfig())
    assert audit.mismatch == f"step {place[0]}: 1 of 7056 values of the plane differ"


def balance(env: gymnasium.Env) -> Callable[[], int]:
    return lambda: int(env.unwrapped.state[2] > 0)  # type: ignore[attr-defined]


def test_gymnasium_episodes_are_played_from_their_seeds() -> None:
    (episode,), spec = collect_episodes("CartPole-v1", EnvConfig(), balance, [4])
    audit = verify_episode(episode, spec, EnvConfig())
    assert (audit.verified, audit.compared) == (True, len(episode) + 1)
    assert audit.recorded == audit.replayed == len(episode)
    other = verify_episode(replace(episode, seed=5), spec, EnvConfig())
    assert not other.verified
    assert other.mismatch == "step 0: 4 of 4 values of the plane differ"
    unknown = verify_episode(replace(episode, seed=None), spec, EnvConfig())
    assert (unknown.verified, unknown.replayed) == (False, None)
    assert "neither a seed nor a tape" in unknown.mismatch
    cut = shorter(episode)
    assert verify_episode(replace(cut, terminal=False), spec, EnvConfig()).verified
    long = replace(
        episode,
        planes=np.concatenate([episode.planes, episode.planes[:1]]),
        actions=np.append(episode.actions, 0),
        rewards=np.append(episode.rewards, np.float32(1)),
    )
    fault = verify_episode(long, spec, EnvConfig()).mismatch
    assert fault == f"step {len(episode)}: the replay ends there"


def test_other_planes_are_refused() -> None:
    (episode,), spec = collect_episodes("CartPole-v1", EnvConfig(), balance, [4])
    wide = spec._replace(plane=(5,))
    with pytest.raises(DemonstrationError, match=r"shows planes \(4,\) here, the recording \(5,\)"):
        verify_episode(replace(episode, planes=np.zeros((len(episode) + 1, 5))), wide, EnvConfig())
