"""Parts of the recorder: keys, messages, journal, episode log and rewindable games."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given
from hypothesis import strategies as st

from lookfurther.config import EnvConfig
from lookfurther.envs.emulator import ACTION_MEANINGS
from lookfurther.envs.naming import short_env_title
from lookfurther.errors import ConfigError, DemonstrationError, LookFurtherError, RunLocked
from lookfurther.recorder import atari
from lookfurther.recorder.atari import AtariGame
from lookfurther.recorder.episode_log import (
    EpisodeLog,
    RecordedStep,
    StepSequence,
    actions_per_frame,
    compress_plane,
    decompress_plane,
)
from lookfurther.recorder.games import PlayableGame, make_game
from lookfurther.recorder.gym import GymGame
from lookfurther.recorder.journal import Journal
from lookfurther.recorder.keys import (
    JOYSTICK_BUTTONS,
    KEY_CODES,
    RESERVED_KEYS,
    assign_keys,
    joystick_action,
)
from lookfurther.recorder.protocol import (
    PLAY_SPEEDS,
    SIMPLE_KINDS,
    MessageError,
    PageMessage,
    parse_message,
)
from lookfurther.types import TERMINAL, TRUNCATED, Spec

SPEC = Spec("Toy-v0", (1, 3, 2), 1, "uint8", 5, 255.0)
NAMES = frozenset(button.name for button in JOYSTICK_BUTTONS)

# Keys


def test_joystick_reaches_all_18_actions() -> None:
    """Every position is an emulator action, and opposite directions cancel out."""
    sets = [set(s) for n in range(6) for s in itertools.combinations(sorted(NAMES), n)]
    assert {joystick_action(held) for held in sets} == set(ACTION_MEANINGS)
    for held in sets:
        assert joystick_action(held | {"left", "right"}) == joystick_action(
            held - {"left", "right"}
        )
        assert joystick_action(held | {"up", "down"}) == joystick_action(held - {"up", "down"})
    assert joystick_action({"up", "right", "fire"}) == "UPRIGHTFIRE"


@given(st.integers(1, 33), st.data())
def test_each_action_has_a_unique_key(count: int, data: st.DataObject) -> None:
    names = [str(i) for i in range(count)]
    free = sorted(set(KEY_CODES) - set(RESERVED_KEYS))
    number, key = data.draw(st.integers(0, count - 1)), data.draw(st.sampled_from(free))
    buttons = assign_keys(names, [f"{number}={key}"])
    codes = [code for button in buttons for code in button.key_codes]
    assert [button.name for button in buttons] == names
    assert buttons[number].key_codes == (KEY_CODES[key],)
    assert len(set(codes)) == count
    assert not {KEY_CODES[key] for key in RESERVED_KEYS} & set(codes)


def test_common_action_names_have_default_keys() -> None:
    names = ["left", "right", "forward", "pickup", "drop", "toggle", "done"]
    codes = [button.key_codes[0] for button in assign_keys(names, ["drop=x"])]
    arrows = ["ArrowLeft", "ArrowRight", "ArrowUp"]
    assert codes == [*arrows, "Digit1", "KeyX", "Space", "Digit2"]


@pytest.mark.parametrize("option", ["9=up", "jump=up", "0=enter", "0", "0=p", "-1=a", "=a", "²=a"])
def test_invalid_key_option_is_rejected(option: str) -> None:
    with pytest.raises(ConfigError, match=f"--keys {option}"):
        assign_keys(["0", "1"], [option])


def test_duplicate_key_is_rejected() -> None:
    with pytest.raises(ConfigError, match="two actions have the same key"):
        assign_keys(["0", "1"], ["0=a", "1=a"])


# Messages


@given(st.text() | st.none())
def test_arbitrary_text_raises_message_error(text: str | None) -> None:
    with pytest.raises(MessageError):
        parse_message(text, NAMES)


WORDS = st.sampled_from([*SIMPLE_KINDS, "keys", "seen", "rewind", "speed", "kind"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=3) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
)
FIELDS = st.sampled_from(["kind", "number", "held", "on", "speed", "wait"])


@given(st.dictionaries(FIELDS, VALUES, max_size=6))
def test_arbitrary_object_parses_or_raises_message_error(data: dict) -> None:
    try:
        message = parse_message(json.dumps(data), NAMES)
    except MessageError:
        return
    assert message.kind == data["kind"]
    assert message.held_buttons <= NAMES
    assert message.speed in PLAY_SPEEDS


def test_valid_messages_are_parsed() -> None:
    assert parse_message('{"kind": "pause"}', NAMES) == PageMessage("pause")
    assert parse_message('{"kind": "rewind", "on": true}', NAMES) == PageMessage(
        "rewind", is_held=True
    )
    assert parse_message('{"kind": "speed", "speed": 2}', NAMES) == PageMessage("speed", speed=2.0)
    keys = parse_message('{"kind": "keys", "number": 7, "held": ["up", "fire"]}', NAMES)
    assert keys == PageMessage("keys", 7, frozenset({"up", "fire"}))
    with pytest.raises(MessageError, match="no such button: 'jump'"):
        parse_message('{"kind": "keys", "number": 7, "held": ["jump"]}', NAMES)


# Journal


@given(st.data())
def test_truncated_journal_keeps_complete_lines(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """A process killed during a write loses only that line, and the journal stays writable."""
    path = tmp_path_factory.mktemp("journal") / "set" / "unfinished.jsonl"
    lines = [{"line": i, "text": "é" * i} for i in range(4)]
    journal = Journal(path)
    for line in lines:
        journal.append(line)
    journal.close()
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    journal = Journal(path)
    kept = whole[:cut].count(b"\n")
    assert journal.read_lines() == lines[:kept]
    journal.append({"more": True})
    assert journal.read_lines() == [*lines[:kept], {"more": True}]
    journal.close()


def test_journal_has_one_writer(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    with pytest.raises(RunLocked, match="another recorder uses"):
        Journal(tmp_path / "j")
    journal.close()
    Journal(tmp_path / "j").close()


@pytest.mark.parametrize("content", [b"no JSON\n", b"[1]\n", b'{"a": 1}\n\xff\n{"b": 2}\n'])
def test_invalid_journal_is_not_modified(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "j"
    path.write_bytes(content)
    journal = Journal(path)
    with pytest.raises(DemonstrationError, match="not a recorder journal: move it away"):
        journal.read_lines()
    assert path.read_bytes() == content
    journal.close()


# Episode log


STEPS = st.builds(
    RecordedStep,
    action=st.integers(0, 4),
    reward=st.sampled_from([0.0, 1.0, -0.1]),
    frames=st.integers(1, 4),
    end=st.sampled_from([0, 0, 0, TERMINAL, TRUNCATED]),
    plane=st.builds(
        lambda i: compress_plane(np.full(SPEC.plane, i, np.uint8)), st.integers(0, 255)
    ),
)
PLANE = np.arange(6, dtype=np.uint8).reshape(SPEC.plane)


@given(st.lists(STEPS | st.integers(0, 10), max_size=12))
def test_episode_log_recovers_from_journal(
    tmp_path_factory: pytest.TempPathFactory, events: list[RecordedStep | int]
) -> None:
    """After steps and truncations in any order, the journal gives the same list of steps."""
    path = tmp_path_factory.mktemp("take") / "j"
    journal = Journal(path)
    log, expected = EpisodeLog.start(journal, SPEC, EnvConfig(), 7, PLANE), []
    for event in events:
        if isinstance(event, RecordedStep):
            log.add(event)
            expected.append(event)
        else:
            log.truncate(event)
            expected = expected[:event]
    journal.close()
    journal = Journal(path)
    recovered = EpisodeLog.recover(journal, SPEC, EnvConfig())
    journal.close()
    if not expected:
        assert recovered is None
        return
    assert recovered is not None
    for one in (log, recovered):
        assert one.steps == expected
        assert one.score == pytest.approx(sum(m.reward for m in expected))
        assert one.frames == sum(m.frames for m in expected) == len(actions_per_frame(expected))
        assert one.is_over == bool(expected[-1].end)
    episode = recovered.to_episode(None)
    assert (episode.planes[0] == PLANE).all()
    assert [compress_plane(plane) for plane in episode.planes[1:]] == [m.plane for m in expected]
    assert episode.actions.tolist() == [m.action for m in expected]
    assert episode.terminal == (expected[-1].end == TERMINAL)
    assert episode.seed == 7


def test_episode_log_of_other_environment_is_rejected(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    log = EpisodeLog.start(journal, SPEC, EnvConfig(), 0, PLANE)
    log.add(RecordedStep(0, 0.0, 4, 0, log.first_plane))
    for spec, environment in (
        (SPEC._replace(env="Other-v0"), EnvConfig()),
        (SPEC, EnvConfig(action_repeat=3)),
    ):
        with pytest.raises(DemonstrationError, match="unfinished episode of Toy-v0"):
            EpisodeLog.recover(journal, spec, environment)
    journal.close()


def test_decompressed_plane_size_is_bounded() -> None:
    bomb = compress_plane(np.zeros(10_000_000, np.uint8))
    assert decompress_plane(bomb, SPEC).nbytes == 6


@pytest.mark.parametrize(
    "line",
    [{"action": 1}, {"cut": "x"}, {"action": 1, "reward": 0, "frames": 1, "end": 0, "plane": "!"}],
)
def test_malformed_journal_line_is_rejected(tmp_path: Path, line: dict) -> None:
    journal = Journal(tmp_path / "j")
    EpisodeLog.start(journal, SPEC, EnvConfig(), 0, PLANE)
    journal.append(line)
    with pytest.raises(DemonstrationError, match="not a recorder journal"):
        EpisodeLog.recover(journal, SPEC, EnvConfig())
    journal.close()


# Games


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


class UnrenderableEnv(gymnasium.Env):
    """Has no render mode and no image observations."""

    observation_space = Box(-1, 1, (3,), np.float32)
    action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        return np.zeros(3, np.float32), {}

    def step(self, action: int):
        return np.zeros(3, np.float32), 0.0, False, False, {}


class NondeterministicEnv(gymnasium.Env):
    """An image environment without a render mode, deterministic only if `repeats`."""

    observation_space = Box(0, 255, (4, 4, 3), np.uint8)
    action_space = Discrete(2)

    def __init__(self, repeats: bool = False, breaks: int = 1000) -> None:
        self.repeats, self.breaks = repeats, breaks

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        self.rng = np.random.default_rng(seed if self.repeats else None)
        self.steps = 0
        return self._observe(), {}

    def step(self, action: int):
        self.steps += 1
        if self.steps == self.breaks:
            raise RuntimeError("out of order")
        return self._observe(), 1.0, False, False, {}

    def _observe(self) -> np.ndarray:
        return self.rng.integers(0, 256, (4, 4, 3), np.uint8)


gymnasium.register("lookfurther/Nondeterministic-v0", NondeterministicEnv)
gymnasium.register("lookfurther/Unrenderable-v0", UnrenderableEnv)


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


def test_titles() -> None:
    assert short_env_title("ALE/MontezumaRevenge-v5") == "Montezuma's Revenge"
    assert short_env_title("MiniGrid-DoorKey-6x6-v0") == "MiniGrid-DoorKey-6x6"
