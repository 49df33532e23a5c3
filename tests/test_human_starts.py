"""Human starts: games taken up in their midst, seen bit for bit as the vector environment shows."""

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
PLAIN = EnvConfig(noop_max=0, frame_stack=4)


def actions(count: int, seed: int = 0) -> list[int]:
    """Random ones, with the fire button often enough for games that wait for it."""
    chosen = np.random.default_rng(seed).integers(0, 18, count).tolist()
    return [FIRE if t % 3 == 0 else action for t, action in enumerate(chosen)]


def moment(env: str, chosen: list[int]) -> HumanStart:
    """Where a game has come to after some steps."""
    emulator = Emulator(env, REPEAT)
    for action in chosen:
        emulator.step(action)
    return HumanStart(emulator.clone_state(), chosen[-1])


def lanes_of(
    env: str, starts: list[HumanStart], environment: EnvConfig, count: int = 1
) -> SyncEnvs:
    blueprint = EnvFactory(partial(HumanStartEnv, env, starts, environment), environment)
    return SyncEnvs(blueprint, range(count), seed=0)


def turn(envs: Any, action: int) -> Step:
    envs.send(np.full(envs.lanes, action))
    return envs.recv()


def expected(observation: np.ndarray, since: int) -> np.ndarray:
    """A stack of which only the planes since the start are known."""
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
def test_a_game_goes_on_as_in_the_vector_environment(game: str, before: int, after: int) -> None:
    env = f"ALE/{game}-v5"
    chosen = actions(before + after)
    start = moment(env, chosen[:before])
    whole, taken = make_envs(env, PLAIN, 1, 0, 1), lanes_of(env, [start], PLAIN)
    with closing(whole), closing(taken):
        assert taken.spec == whole.spec
        there = whole.reset()
        for action in chosen[:before]:
            there = turn(whole, action)
            assert not there.terminal[0]
        here = taken.reset()
        opening = expected(there.observation[0], 0)
        assert np.array_equal(here.observation[0], opening)
        assert here.first[0]
        for t, action in enumerate(chosen[before:], 1):
            there, here = turn(whole, action), turn(taken, action)
            assert np.array_equal(here.observation[0], expected(there.observation[0], t)), t
            for name in ("reward", "terminal", "truncated", "first"):
                assert getattr(here, name)[0] == getattr(there, name)[0], (t, name)
            if here.terminal[0]:
                break
        assert here.terminal[0] == (game == "Breakout")
        if here.terminal[0]:
            again = turn(taken, 0)
            assert np.array_equal(again.observation[0], opening)
            assert (again.first[0], again.reward[0]) == (True, 0)


@pytest.mark.parametrize("rest", [40, 42])
def test_the_cap_includes_what_was_played_before_the_start(rest: int) -> None:
    """At a step's end, and in its midst, as in the vector environment."""
    env, chosen = "ALE/Pong-v5", actions(111)
    settings = EnvConfig(
        noop_max=0,
        frame_stack=4,
        max_episode_length=100 * REPEAT + rest,
        episode_length_unit="frames",
    )
    assert max_episode_frames(settings) == 400 + rest
    whole = make_envs(env, settings, 1, 0, 1)
    taken = lanes_of(env, [moment(env, chosen[:100])], settings)
    with closing(whole), closing(taken):
        there, here, ends = whole.reset(), taken.reset(), []
        for action in chosen[:100]:
            turn(whole, action)
        for action in chosen[100 : 100 + -(-rest // REPEAT)]:
            there, here = turn(whole, action), turn(taken, action)
            assert here.truncated[0] == there.truncated[0]
            ends.append(bool(here.truncated[0]))
        assert ends == [False] * (len(ends) - 1) + [True]
        assert not here.terminal[0]
        assert np.array_equal(here.observation[0], there.observation[0])


def test_frames_of_steps() -> None:
    assert (
        max_episode_frames(
            EnvConfig(max_episode_length=10, episode_length_unit="steps", action_repeat=3)
        )
        == 30
    )


def test_processes_change_nothing_and_every_start_is_taken() -> None:
    env, chosen = "ALE/Breakout-v5", actions(120)
    starts = [moment(env, chosen[:n]) for n in (3, 20, 41)]
    settings = EnvConfig(
        frame_stack=4,
        sticky_prob=0.25,
        max_episode_length=200,
        episode_length_unit="frames",
        processes=2,
    )
    here = lanes_of(env, starts, settings, count=3)
    there = make_human_start_envs(env, starts, settings, lanes=3, seed=0)
    opened = set()
    with closing(here), closing(there):
        ours, theirs = here.reset(), there.reset()
        for action in [0, *chosen]:
            for a, b in zip(ours, theirs, strict=True):
                assert np.array_equal(a, b)
            opened |= {x.tobytes() for x in ours.observation[ours.first]}
            ours, theirs = turn(here, action), turn(there, action)
    assert len(opened) == len(starts)


class FakeEmulator:
    """In the place of an emulator: notes the action of each frame."""

    is_over, frame_number = False, 0

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
def reel(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """The frames of steps of 1 and 2 in turn, after a start that held 3."""
    monkeypatch.setattr("lookfurther.envs.human_starts.Emulator", lambda *_: FakeEmulator())

    def frames(sticky: float, seed: int, steps: int = 2000) -> list[int]:
        game = HumanStartEnv("ALE/Pong-v5", [HumanStart(b"", 3)], EnvConfig(sticky_prob=sticky))
        game.reset(seed=seed)
        for t in range(steps):
            assert game.step(1 + t % 2)[1] == REPEAT
        return game._emulator.played  # type: ignore[attr-defined]

    return frames


def test_sticky_actions_repeat_each_frame_with_their_probability(
    reel: Callable[..., list[int]],
) -> None:
    """Frame k of a step still has the step before's action with probability p^k."""
    asked = np.tile(np.repeat([1, 2], REPEAT), 1000)
    assert np.array_equal(reel(0.0, 0), asked)
    kept = (np.array(reel(0.25, 0)) != asked).reshape(-1, REPEAT).mean(0)
    chance = 0.25 ** np.arange(1, REPEAT + 1)
    assert (np.abs(kept - chance) < 4 * np.sqrt(chance / 2000)).all()
    assert reel(0.25, 1) == reel(0.25, 1) != reel(0.25, 2)
    held = [reel(0.5, seed, steps=1)[0] for seed in range(60)]
    assert set(held) == {1, 3}  # the frame before the start can be repeated too


def test_the_games_own_actions_have_their_meanings() -> None:
    """Pong's third is RIGHT, number 3 of all 18."""
    chosen = [0, 1, 2, 3, 4, 5]
    env, start = "ALE/Pong-v5", moment("ALE/Pong-v5", actions(30))
    few, all18 = (
        HumanStartEnv(env, [start], EnvConfig(full_actions=full)) for full in (False, True)
    )
    assert (few.action_space, all18.action_space) == (Discrete(6), Discrete(18))
    few.reset(seed=0)
    all18.reset(seed=0)
    for action in chosen * 3:
        ours, theirs = few.step(action), all18.step((0, 1, 3, 4, 11, 12)[action])
        assert np.array_equal(ours[0], theirs[0])
        assert ours[1:] == theirs[1:]


def test_a_game_whose_states_do_not_travel_is_refused() -> None:
    check_restorable("ALE/Pong-v5", REPEAT)
    with pytest.raises(
        EnvironmentFault, match=r"^ALE/Qbert-v5 cannot be taken up .* no-op starts$"
    ):
        check_restorable("ALE/Qbert-v5", REPEAT)
