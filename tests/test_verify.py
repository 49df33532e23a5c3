"""Verification: a replay is equal in every plane and reward, or its audit names a difference."""

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


def test_episode_from_log_verifies(game: Episode) -> None:
    audit = verify_episode(game, BREAKOUT, EnvConfig())
    assert (audit.verified, audit.mismatch) == (True, "")
    assert audit.compared == len(game) + 1
    assert audit.recorded == audit.replayed == game.score > 0
    assert 0 < audit.ambiguous <= len(game)


def with_value(array: np.ndarray, index: int, value: float) -> np.ndarray:
    array = array.copy()
    array[index] = value
    return array


def flip_one_pixel(planes: np.ndarray) -> np.ndarray:
    planes = planes.copy()
    planes[100, 0, 40, 40] ^= 1
    return planes


def drop_last_step(e: Episode) -> Episode:
    return replace(e, planes=e.planes[:-1], actions=e.actions[:-1], rewards=e.rewards[:-1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda e: replace(e, planes=flip_one_pixel(e.planes)),
            "step 100: 1 of 7056 values of the plane differ",
        ),
        (
            lambda e: replace(e, rewards=with_value(e.rewards, 49, 7)),
            "step 50: the reward is 0, recorded 7",
        ),
        (lambda e: replace(e, terminal=False), "the replay ends there"),
        (
            lambda e: replace(e, actions=with_value(e.actions, 3, (e.actions[3] + 1) % 18)),
            "its actions are not those of its input log",
        ),
        (drop_last_step, "its actions are not those of its input log"),
        (
            lambda e: replace(
                e, input_log=replace(e.input_log, ram_writes=np.array([[200, 99, 9]], np.int32))
            ),
            "step 51: ",
        ),
    ],
)
def test_audit_names_first_difference(game: Episode, change: Callable, message: str) -> None:
    audit = verify_episode(change(game), BREAKOUT, EnvConfig())
    assert not audit.verified
    assert message in audit.mismatch


def test_changed_lives_give_other_score(game: Episode) -> None:
    """The audit has the recorded score and the score of the replay."""
    assert game.input_log is not None
    fewer_lives = replace(game.input_log, ram_writes=np.array([[8, 57, 1]], np.int32))
    audit = verify_episode(replace(game, input_log=fewer_lives), BREAKOUT, EnvConfig())
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


def test_planes_use_rounding_of_this_processor(
    game: Episode, roundings: dict[bool, np.ndarray]
) -> None:
    assert np.array_equal(game.planes, roundings[FUSED_MULTIPLY_ADD])
    assert not np.array_equal(game.planes, roundings[not FUSED_MULTIPLY_ADD])


@pytest.mark.parametrize("fused", [True, False])
def test_either_plane_rounding_verifies(
    game: Episode, roundings: dict[bool, np.ndarray], fused: bool
) -> None:
    """Some pixels are exactly between two grey values, and processors round them differently."""
    assert verify_episode(replace(game, planes=roundings[fused]), BREAKOUT, EnvConfig()).verified


@pytest.mark.parametrize("fused", [True, False])
def test_pixel_beyond_both_roundings_is_a_difference(
    game: Episode, roundings: dict[bool, np.ndarray], fused: bool
) -> None:
    planes, others = roundings[fused].copy(), roundings[not fused]
    index = tuple(np.argwhere(planes != others)[0])
    planes[index] += np.sign(
        int(planes[index]) - int(others[index])
    )  # away from the other rounding
    audit = verify_episode(replace(game, planes=planes), BREAKOUT, EnvConfig())
    assert audit.mismatch == f"step {index[0]}: 1 of 7056 values of the plane differ"


def balance(env: gymnasium.Env) -> Callable[[], int]:
    return lambda: int(env.unwrapped.state[2] > 0)  # type: ignore[attr-defined]


def test_gymnasium_episode_verifies_from_seed() -> None:
    (episode,), spec = collect_episodes("CartPole-v1", EnvConfig(), balance, [4])
    audit = verify_episode(episode, spec, EnvConfig())
    assert (audit.verified, audit.compared) == (True, len(episode) + 1)
    assert audit.recorded == audit.replayed == len(episode)
    other = verify_episode(replace(episode, seed=5), spec, EnvConfig())
    assert not other.verified
    assert other.mismatch == "step 0: 4 of 4 values of the plane differ"
    unknown = verify_episode(replace(episode, seed=None), spec, EnvConfig())
    assert (unknown.verified, unknown.replayed) == (False, None)
    assert "neither a seed nor an input log" in unknown.mismatch
    cut = drop_last_step(episode)
    assert verify_episode(replace(cut, terminal=False), spec, EnvConfig()).verified
    long = replace(
        episode,
        planes=np.concatenate([episode.planes, episode.planes[:1]]),
        actions=np.append(episode.actions, 0),
        rewards=np.append(episode.rewards, np.float32(1)),
    )
    fault = verify_episode(long, spec, EnvConfig()).mismatch
    assert fault == f"step {len(episode)}: the replay ends there"


def test_other_plane_shape_is_an_error() -> None:
    (episode,), spec = collect_episodes("CartPole-v1", EnvConfig(), balance, [4])
    wide = spec._replace(plane=(5,))
    with pytest.raises(DemonstrationError, match=r"shows planes \(4,\) here, the recording \(5,\)"):
        verify_episode(replace(episode, planes=np.zeros((len(episode) + 1, 5))), wide, EnvConfig())
