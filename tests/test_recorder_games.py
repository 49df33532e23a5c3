"""Games of the recorder: restoring steps, rendering and invalid options."""

from __future__ import annotations

import numpy as np
import pytest

from lookfurther.config import EnvConfig
from lookfurther.envs.naming import short_env_title
from lookfurther.errors import LookFurtherError
from lookfurther.recorder import atari
from lookfurther.recorder.atari import AtariGame
from lookfurther.recorder.episode_log import (
    RecordedStep,
    StepSequence,
    compress_plane,
)
from lookfurther.recorder.games import PlayableGame, make_game
from lookfurther.recorder.gym import GymGame
from lookfurther.types import TRUNCATED
from tests import recorder_envs

assert recorder_envs  # registers its environments


def play_actions(
    game: PlayableGame, seed: int, chosen: list[int]
) -> tuple[StepSequence, list[np.ndarray]]:
    """Play steps as the session does; return them and the screen after each."""
    game.reset(seed)
    first_plane, steps, screens = compress_plane(game.get_plane()), [], [game.render().copy()]
    for action in chosen:
        frames, reward = 0, 0.0
        while frames < game.action_repeat and not game.end_flag:
            reward += game.step_frame(action)
            frames += 1
        steps.append(
            RecordedStep(action, reward, frames, game.end_flag, compress_plane(game.get_plane()))
        )
        screens.append(game.render().copy())
        game.save_state(len(steps))
    return StepSequence(seed, first_plane, steps), screens


def truncate_sequence(sequence: StepSequence, length: int) -> StepSequence:
    return sequence._replace(steps=sequence.steps[:length])


@pytest.fixture(params=["ALE/Breakout-v5", "sticky", "CartPole-v1", "MiniGrid-DoorKey-5x5-v0"])
def game(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> PlayableGame:
    """Games; Atari saves few states, so that most of them must be replayed."""
    monkeypatch.setattr(atari, "RECENT_STATES", 8)
    monkeypatch.setattr(atari, "OLD_STATE_PERIOD", 7)
    environment = EnvConfig()
    name = request.param
    if name == "sticky":
        name, environment = "ALE/Breakout-v5", EnvConfig(sticky_prob=0.25)
    if name.startswith("MiniGrid"):
        environment = EnvConfig(wrappers=("lookfurther.envs.minigrid:OneHotGrid",))
    return make_game(name, environment, (), False, 0)


def test_restore_reproduces_screens_and_planes(game: PlayableGame) -> None:
    """Restoring any step gives its screen and plane, and play can continue from there."""
    rng = np.random.default_rng(0)
    chosen = np.repeat(rng.integers(0, min(game.spec.actions, 5), 15), 2).tolist()
    sequence, screens = play_actions(game, 3, chosen)
    length = next((i + 1 for i, m in enumerate(sequence.steps) if m.end), len(chosen))
    sequence = truncate_sequence(sequence, length)
    for steps in (length, length - 1, length // 2, 2, 0):
        assert game.restore_steps(truncate_sequence(sequence, steps))
        assert (game.render() == screens[steps]).all()
        expected = sequence.steps[steps - 1].plane if steps else sequence.first_plane
        assert compress_plane(game.get_plane()) == expected
    again, _ = play_actions(game, 3, chosen[:length])
    assert again == sequence
    game.close()


def test_old_states_are_saved_sparsely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atari, "RECENT_STATES", 8)
    monkeypatch.setattr(atari, "OLD_STATE_PERIOD", 7)
    game = AtariGame("ALE/Pong-v5", EnvConfig())
    play_actions(game, 0, [0] * 40)
    assert sorted(game._saved_states) == [0, 7, 14, 21, 28, *range(33, 41)]


def test_frame_limit_ends_step_early() -> None:
    """The frame limit truncates an Atari game: the last observation keeps its value."""
    game = AtariGame("ALE/Pong-v5", EnvConfig(max_episode_length=6, episode_length_unit="frames"))
    sequence, _ = play_actions(game, 0, [0, 3])
    assert [m.frames for m in sequence.steps] == [4, 2]
    assert sequence.steps[-1].end == TRUNCATED
    assert game.make_input_log(sequence).frame_actions.tolist() == [0, 0, 0, 0, 3, 3]


def test_nondeterministic_game_is_not_rewound() -> None:
    game = GymGame("lookfurther/Nondeterministic-v0", EnvConfig(), (), False, 0)
    assert not game.is_rewindable
    sequence, screens = play_actions(game, 0, [0, 1, 0])
    assert not game.restore_steps(truncate_sequence(sequence, 2))
    assert (game.render() == screens[-1]).all()
    assert compress_plane(game.get_plane()) == sequence.steps[-1].plane


def test_unrendered_images_show_the_observation() -> None:
    game = make_game("lookfurther/Nondeterministic-v0", EnvConfig(), (), True, 1)
    game.reset(0)
    assert (game.render() == game.get_plane().transpose(1, 2, 0)).all()
    assert game.action_from_buttons(set()) == 1
    assert not game.is_turn_based


@pytest.mark.parametrize(
    ("env", "keys", "idle", "message"),
    [
        ("ALE/Pong-v5", ("0=a",), 0, "--keys does not apply to Atari"),
        ("CartPole-v1", (), 2, "--idle 2: the actions are 0 to 1"),
        ("CartPole-v1", ("2=a",), 0, "no such action"),
        ("Pendulum-v1", (), 0, "only Discrete"),
        ("lookfurther/Unrenderable-v0", (), 0, "Unrenderable-v0 cannot be rendered"),
    ],
)
def test_invalid_game_options_are_rejected(
    env: str, keys: tuple[str, ...], idle: int, message: str
) -> None:
    with pytest.raises(LookFurtherError, match=message):
        make_game(env, EnvConfig(), keys, False, idle)


def test_short_env_title() -> None:
    assert short_env_title("ALE/MontezumaRevenge-v5") == "Montezuma's Revenge"
    assert short_env_title("MiniGrid-DoorKey-6x6-v0") == "MiniGrid-DoorKey-6x6"
