"""Human starts: games continue from a saved state bit-equal to the vector environment."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Discrete

from lookfurther.config import EnvConfig
from lookfurther.envs import make_envs
from lookfurther.envs.atari import max_episode_frames
from lookfurther.envs.emulator import Emulator
from lookfurther.envs.factory import EnvFactory
from lookfurther.envs.human_starts import (
    HumanStart,
    HumanStartEnv,
    check_restorable,
    make_human_start_envs,
)
from lookfurther.envs.sync import SyncEnvs
from lookfurther.errors import EnvironmentFault
from lookfurther.types import Step

pytest.importorskip("ale_py")

FIRE, REPEAT = 1, 4
ENV_CONFIG = EnvConfig(noop_max=0, frame_stack=4)


def random_actions(count: int, seed: int = 0) -> list[int]:
    """Random actions, with fire often enough for games that wait for it."""
    actions = np.random.default_rng(seed).integers(0, 18, count).tolist()
    return [FIRE if t % 3 == 0 else action for t, action in enumerate(actions)]


def play_to_start(env: str, actions: list[int]) -> HumanStart:
    """The state of a game after some steps."""
    emulator = Emulator(env, REPEAT)
    for action in actions:
        emulator.step(action)
    return HumanStart(emulator.clone_state(), actions[-1])


def make_sync_lanes(
    env: str, starts: list[HumanStart], env_config: EnvConfig, count: int = 1
) -> SyncEnvs:
    factory = EnvFactory(partial(HumanStartEnv, env, starts, env_config), env_config)
    return SyncEnvs(factory, range(count), seed=0)


def step_all(envs: Any, action: int) -> Step:
    envs.send(np.full(envs.lanes, action))
    return envs.recv()


def mask_planes_before_start(observation: np.ndarray, since: int) -> np.ndarray:
    """A stack with zeros for the planes before the start."""
    stack = observation.copy()
    stack[: max(0, 4 - 1 - since)] = 0
    return stack


@pytest.mark.parametrize(
    ("game", "before", "after"),
    [
        ("Breakout", 60, 900),  # to the end of the game, mostly in mid-step
        ("MontezumaRevenge", 150, 120),
        ("Pong", 203, 120),
        ("SpaceInvaders", 77, 120),
        ("PrivateEye", 90, 60),
    ],
)
def test_started_game_matches_vector_environment(game: str, before: int, after: int) -> None:
    env = f"ALE/{game}-v5"
    actions = random_actions(before + after)
    start = play_to_start(env, actions[:before])
    vector_envs = make_envs(env, ENV_CONFIG, 1, 0, 1)
    started_envs = make_sync_lanes(env, [start], ENV_CONFIG)
    with closing(vector_envs), closing(started_envs):
        assert started_envs.spec == vector_envs.spec
        original = vector_envs.reset()
        for action in actions[:before]:
            original = step_all(vector_envs, action)
            assert not original.terminal[0]
        started = started_envs.reset()
        opening = mask_planes_before_start(original.observation[0], 0)
        assert np.array_equal(started.observation[0], opening)
        assert started.first[0]
        for t, action in enumerate(actions[before:], 1):
            original, started = step_all(vector_envs, action), step_all(started_envs, action)
            masked = mask_planes_before_start(original.observation[0], t)
            assert np.array_equal(started.observation[0], masked), t
            for name in ("reward", "terminal", "truncated", "first"):
                assert getattr(started, name)[0] == getattr(original, name)[0], (t, name)
            if started.terminal[0]:
                break
        assert started.terminal[0] == (game == "Breakout")
        if started.terminal[0]:
            again = step_all(started_envs, 0)
            assert np.array_equal(again.observation[0], opening)
            assert (again.first[0], again.reward[0]) == (True, 0)


@pytest.mark.parametrize("rest", [40, 42])
def test_max_episode_length_includes_frames_before_start(rest: int) -> None:
    """At the end and in the middle of a step, as in the vector environment."""
    env, actions = "ALE/Pong-v5", random_actions(111)
    settings = EnvConfig(
        noop_max=0,
        frame_stack=4,
        max_episode_length=100 * REPEAT + rest,
        episode_length_unit="frames",
    )
    assert max_episode_frames(settings) == 400 + rest
    vector_envs = make_envs(env, settings, 1, 0, 1)
    started_envs = make_sync_lanes(env, [play_to_start(env, actions[:100])], settings)
    with closing(vector_envs), closing(started_envs):
        original, started, ends = vector_envs.reset(), started_envs.reset(), []
        for action in actions[:100]:
            step_all(vector_envs, action)
        for action in actions[100 : 100 + -(-rest // REPEAT)]:
            original, started = step_all(vector_envs, action), step_all(started_envs, action)
            assert started.truncated[0] == original.truncated[0]
            ends.append(bool(started.truncated[0]))
        assert ends == [False] * (len(ends) - 1) + [True]
        assert not started.terminal[0]
        assert np.array_equal(started.observation[0], original.observation[0])


def test_max_episode_frames_of_steps() -> None:
    settings = EnvConfig(max_episode_length=10, episode_length_unit="steps", action_repeat=3)
    assert max_episode_frames(settings) == 30


def test_human_start_envs_match_sync_and_use_every_start() -> None:
    env, actions = "ALE/Breakout-v5", random_actions(120)
    starts = [play_to_start(env, actions[:n]) for n in (3, 20, 41)]
    settings = EnvConfig(
        frame_stack=4,
        sticky_prob=0.25,
        max_episode_length=200,
        episode_length_unit="frames",
        processes=2,
    )
    sync_envs = make_sync_lanes(env, starts, settings, count=3)
    subproc_envs = make_human_start_envs(env, starts, settings, lanes=3, seed=0)
    openings = set()
    with closing(sync_envs), closing(subproc_envs):
        step, other = sync_envs.reset(), subproc_envs.reset()
        for action in [0, *actions]:
            for a, b in zip(step, other, strict=True):
                assert np.array_equal(a, b)
            openings |= {observation.tobytes() for observation in step.observation[step.first]}
            step, other = step_all(sync_envs, action), step_all(subproc_envs, action)
    assert len(openings) == len(starts)


class FakeEmulator:
    """An emulator that only records the action of each frame."""

    is_over, frame_number, frames_to_step_end = False, 0, 4

    def __init__(self) -> None:
        self.played: list[int] = []

    def restore_state(self, state: bytes) -> None:
        self.played.clear()

    def current_plane(self) -> np.ndarray:
        return np.zeros((1, 84, 84), np.uint8)

    def step_frame(self, action: int) -> float:
        self.played.append(action)
        return 1.0


@pytest.fixture
def frame_actions(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """The actions of all frames, for steps with actions 1, 2, 1, 2, ... after a start with 3."""
    monkeypatch.setattr("lookfurther.envs.human_starts.Emulator", lambda *_, **__: FakeEmulator())

    def frames(sticky: float, seed: int, steps: int = 2000) -> list[int]:
        game = HumanStartEnv("ALE/Pong-v5", [HumanStart(b"", 3)], EnvConfig(sticky_prob=sticky))
        game.reset(seed=seed)
        for t in range(steps):
            assert game.step(1 + t % 2)[1] == REPEAT
        return game._emulator.played  # type: ignore[attr-defined]

    return frames


def test_sticky_actions_repeat_with_their_probability(
    frame_actions: Callable[..., list[int]],
) -> None:
    """Frame k of a step still has the previous step's action with probability p^k."""
    requested = np.tile(np.repeat([1, 2], REPEAT), 1000)
    assert np.array_equal(frame_actions(0.0, 0), requested)
    repeated = (np.array(frame_actions(0.25, 0)) != requested).reshape(-1, REPEAT).mean(0)
    probability = 0.25 ** np.arange(1, REPEAT + 1)
    assert (np.abs(repeated - probability) < 4 * np.sqrt(probability / 2000)).all()
    assert frame_actions(0.25, 1) == frame_actions(0.25, 1) != frame_actions(0.25, 2)
    first_actions = [frame_actions(0.5, seed, steps=1)[0] for seed in range(60)]
    assert set(first_actions) == {1, 3}  # the action before the start can be repeated too


def test_minimal_actions_map_to_their_meanings() -> None:
    """Pong's third action is RIGHT, number 3 of all 18."""
    env, start = "ALE/Pong-v5", play_to_start("ALE/Pong-v5", random_actions(30))
    minimal, full = (
        HumanStartEnv(env, [start], EnvConfig(full_actions=is_full)) for is_full in (False, True)
    )
    assert (minimal.action_space, full.action_space) == (Discrete(6), Discrete(18))
    minimal.reset(seed=0)
    full.reset(seed=0)
    for action in [0, 1, 2, 3, 4, 5] * 3:
        result, expected = minimal.step(action), full.step((0, 1, 3, 4, 11, 12)[action])
        assert np.array_equal(result[0], expected[0])
        assert result[1:] == expected[1:]


def test_unrestorable_game_raises() -> None:
    check_restorable("ALE/Pong-v5", REPEAT)
    with pytest.raises(
        EnvironmentFault, match=r"^ALE/Qbert-v5 cannot restore a state .* no-op starts$"
    ):
        check_restorable("ALE/Qbert-v5", REPEAT)
