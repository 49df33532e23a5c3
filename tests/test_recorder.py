"""The recorder's parts: keys, messages, the journal, takes, and games that can be rewound."""

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


def test_the_stick_reaches_all_18_actions() -> None:
    """Every position has a name of the emulator's, and opposite directions cancel out."""
    sets = [set(s) for n in range(6) for s in itertools.combinations(sorted(NAMES), n)]
    assert {joystick_action(held) for held in sets} == set(ACTION_MEANINGS)
    for held in sets:
        assert joystick_action(held | {"left", "right"}) == joystick_action(
            held - {"left", "right"}
        )
        assert joystick_action(held | {"up", "down"}) == joystick_action(held - {"up", "down"})
    assert joystick_action({"up", "right", "fire"}) == "UPRIGHTFIRE"


@given(st.integers(1, 33), st.data())
def test_every_action_has_a_key_of_its_own(count: int, data: st.DataObject) -> None:
    names = [str(i) for i in range(count)]
    free = sorted(set(KEY_CODES) - set(RESERVED_KEYS))
    number, key = data.draw(st.integers(0, count - 1)), data.draw(st.sampled_from(free))
    buttons = assign_keys(names, [f"{number}={key}"])
    codes = [code for button in buttons for code in button.key_codes]
    assert [button.name for button in buttons] == names
    assert buttons[number].key_codes == (KEY_CODES[key],)
    assert len(set(codes)) == count
    assert not {KEY_CODES[key] for key in RESERVED_KEYS} & set(codes)


def test_actions_with_common_names_have_their_common_keys() -> None:
    names = ["left", "right", "forward", "pickup", "drop", "toggle", "done"]
    codes = [button.key_codes[0] for button in assign_keys(names, ["drop=x"])]
    arrows = ["ArrowLeft", "ArrowRight", "ArrowUp"]
    assert codes == [*arrows, "Digit1", "KeyX", "Space", "Digit2"]


@pytest.mark.parametrize("words", ["9=up", "jump=up", "0=enter", "0", "0=p", "-1=a", "=a", "²=a"])
def test_keys_that_make_no_sense_are_named(words: str) -> None:
    with pytest.raises(ConfigError, match=f"--keys {words}"):
        assign_keys(["0", "1"], [words])


def test_keys_asked_for_twice_are_named() -> None:
    with pytest.raises(ConfigError, match="one key for two actions"):
        assign_keys(["0", "1"], ["0=a", "1=a"])


# Messages


@given(st.text() | st.none())
def test_any_text_is_a_message_or_our_own_error(text: str | None) -> None:
    with pytest.raises(MessageError):
        parse_message(text, NAMES)


WORDS = st.sampled_from([*SIMPLE_KINDS, "keys", "seen", "rewind", "speed", "kind"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=3) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
)
FIELDS = st.sampled_from(["kind", "number", "held", "on", "speed", "wait"])


@given(st.dictionaries(FIELDS, VALUES, max_size=6))
def test_any_object_is_a_message_or_our_own_error(data: dict) -> None:
    try:
        message = parse_message(json.dumps(data), NAMES)
    except MessageError:
        return
    assert message.kind == data["kind"]
    assert message.held <= NAMES
    assert message.speed in PLAY_SPEEDS


def test_messages_are_read() -> None:
    assert parse_message('{"kind": "pause"}', NAMES) == PageMessage("pause")
    assert parse_message('{"kind": "rewind", "on": true}', NAMES) == PageMessage("rewind", on=True)
    assert parse_message('{"kind": "speed", "speed": 2}', NAMES) == PageMessage("speed", speed=2.0)
    keys = parse_message('{"kind": "keys", "number": 7, "held": ["up", "fire"]}', NAMES)
    assert keys == PageMessage("keys", 7, frozenset({"up", "fire"}))
    with pytest.raises(MessageError, match="no such button: 'jump'"):
        parse_message('{"kind": "keys", "number": 7, "held": ["jump"]}', NAMES)


# The journal


@given(st.data())
def test_a_journal_cut_anywhere_gives_back_its_whole_lines(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Killed in the middle of a write, one loses that line alone, and can go on writing."""
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


def test_a_journal_has_one_writer(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    with pytest.raises(RunLocked, match="another recorder holds"):
        Journal(tmp_path / "j")
    journal.close()
    Journal(tmp_path / "j").close()


@pytest.mark.parametrize("content", [b"no JSON\n", b"[1]\n", b'{"a": 1}\n\xff\n{"b": 2}\n'])
def test_what_is_no_journal_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "j"
    path.write_bytes(content)
    journal = Journal(path)
    with pytest.raises(DemonstrationError, match="not a journal of ours: move it away"):
        journal.read_lines()
    assert path.read_bytes() == content
    journal.close()


# Takes


MOMENTS = st.builds(
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


@given(st.lists(MOMENTS | st.integers(0, 10), max_size=12))
def test_a_take_is_recovered_as_it_stood(
    tmp_path_factory: pytest.TempPathFactory, events: list[RecordedStep | int]
) -> None:
    """Steps and cuts in any order: a plain list is the oracle, the journal alone gives it back."""
    path = tmp_path_factory.mktemp("take") / "j"
    journal = Journal(path)
    take, oracle = EpisodeLog.start(journal, SPEC, EnvConfig(), 7, PLANE), []
    for event in events:
        if isinstance(event, RecordedStep):
            take.add(event)
            oracle.append(event)
        else:
            take.truncate(event)
            oracle = oracle[:event]
    journal.close()
    journal = Journal(path)
    again = EpisodeLog.recover(journal, SPEC, EnvConfig())
    journal.close()
    if not oracle:
        assert again is None
        return
    assert again is not None
    for one in (take, again):
        assert one.steps == oracle
        assert one.score == pytest.approx(sum(m.reward for m in oracle))
        assert one.frames == sum(m.frames for m in oracle) == len(actions_per_frame(oracle))
        assert one.is_over == bool(oracle[-1].end)
    episode = again.to_episode(None)
    assert (episode.planes[0] == PLANE).all()
    assert [compress_plane(plane) for plane in episode.planes[1:]] == [m.plane for m in oracle]
    assert episode.actions.tolist() == [m.action for m in oracle]
    assert episode.terminal == (oracle[-1].end == TERMINAL)
    assert episode.seed == 7


def test_a_take_of_another_environment_is_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    take = EpisodeLog.start(journal, SPEC, EnvConfig(), 0, PLANE)
    take.add(RecordedStep(0, 0.0, 4, 0, take.first_plane))
    for spec, environment in (
        (SPEC._replace(env="Other-v0"), EnvConfig()),
        (SPEC, EnvConfig(action_repeat=3)),
    ):
        with pytest.raises(DemonstrationError, match="unfinished episode of Toy-v0"):
            EpisodeLog.recover(journal, spec, environment)
    journal.close()


def test_a_plane_cannot_grow_when_unpacked() -> None:
    bomb = compress_plane(np.zeros(10_000_000, np.uint8))
    assert decompress_plane(bomb, SPEC).nbytes == 6


@pytest.mark.parametrize(
    "line",
    [{"action": 1}, {"cut": "x"}, {"action": 1, "reward": 0, "frames": 1, "end": 0, "plane": "!"}],
)
def test_a_journal_of_nonsense_is_refused(tmp_path: Path, line: dict) -> None:
    journal = Journal(tmp_path / "j")
    EpisodeLog.start(journal, SPEC, EnvConfig(), 0, PLANE)
    journal.append(line)
    with pytest.raises(DemonstrationError, match="not a journal of ours"):
        EpisodeLog.recover(journal, SPEC, EnvConfig())
    journal.close()


# Games


def play_actions(
    game: PlayableGame, seed: int, chosen: list[int]
) -> tuple[StepSequence, list[np.ndarray]]:
    """Steps of a game as the session plays them, and the screen after each."""
    game.reset(seed)
    opening, moments, screens = compress_plane(game.get_plane()), [], [game.render().copy()]
    for action in chosen:
        frames, reward = 0, 0.0
        while frames < game.action_repeat and not game.end_flag:
            reward += game.step_frame(action)
            frames += 1
        moments.append(
            RecordedStep(action, reward, frames, game.end_flag, compress_plane(game.get_plane()))
        )
        screens.append(game.render().copy())
        game.save_state(len(moments))
    return StepSequence(seed, opening, moments), screens


def truncate_sequence(sequence: StepSequence, length: int) -> StepSequence:
    return sequence._replace(moments=sequence.moments[:length])


@pytest.fixture(params=["ALE/Breakout-v5", "sticky", "CartPole-v1", "MiniGrid-DoorKey-5x5-v0"])
def game(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> PlayableGame:
    """Atari with few states kept, so that most of them must be played again."""
    monkeypatch.setattr(atari, "RECENT", 8)
    monkeypatch.setattr(atari, "SPARSE", 7)
    environment = EnvConfig()
    name = request.param
    if name == "sticky":
        name, environment = "ALE/Breakout-v5", EnvConfig(sticky_prob=0.25)
    if name.startswith("MiniGrid"):
        environment = EnvConfig(wrappers=("lookfurther.envs.minigrid:OneHotGrid",))
    return make_game(name, environment, (), False, 0)


def test_rewinding_leads_to_what_was_seen(game: PlayableGame) -> None:
    """After a seek to any step the screen and plane are those of then, and the future is open."""
    rng = np.random.default_rng(0)
    chosen = np.repeat(rng.integers(0, min(game.spec.actions, 5), 15), 2).tolist()
    script, screens = play_actions(game, 3, chosen)
    length = next((i + 1 for i, m in enumerate(script.moments) if m.end), len(chosen))
    script = truncate_sequence(script, length)
    for steps in (length, length - 1, length // 2, 2, 0):
        assert game.restore_steps(truncate_sequence(script, steps))
        assert (game.render() == screens[steps]).all()
        expected = script.moments[steps - 1].plane if steps else script.opening
        assert compress_plane(game.get_plane()) == expected
    again, _ = play_actions(game, 3, chosen[:length])
    assert again == script
    game.close()


def test_old_states_are_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atari, "RECENT", 8)
    monkeypatch.setattr(atari, "SPARSE", 7)
    game = AtariGame("ALE/Pong-v5", EnvConfig())
    play_actions(game, 0, [0] * 40)
    assert sorted(game._saved_states) == [0, 7, 14, 21, 28, *range(33, 41)]


def test_a_game_that_is_over_early_ends_its_step_early() -> None:
    """The cap cuts an Atari game off: the last observation has a value."""
    game = AtariGame("ALE/Pong-v5", EnvConfig(max_episode_length=6, episode_length_unit="frames"))
    script, _ = play_actions(game, 0, [0, 3])
    assert [m.frames for m in script.moments] == [4, 2]
    assert script.moments[-1].end == TRUNCATED
    assert game.make_input_log(script).frame_actions.tolist() == [0, 0, 0, 0, 3, 3]


class Unseen(gymnasium.Env):
    """Neither draws itself nor shows images."""

    observation_space = Box(-1, 1, (3,), np.float32)
    action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        return np.zeros(3, np.float32), {}

    def step(self, action: int):
        return np.zeros(3, np.float32), 0.0, False, False, {}


class Forgetful(gymnasium.Env):
    """An image environment without drawings of its own, that repeats itself only if told to."""

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


gymnasium.register("lookfurther/Forgetful-v0", Forgetful)
gymnasium.register("lookfurther/Unseen-v0", Unseen)


def test_what_does_not_repeat_itself_is_not_rewound_and_goes_on() -> None:
    game = GymGame("lookfurther/Forgetful-v0", EnvConfig(), (), False, 0)
    assert not game.is_rewindable
    script, screens = play_actions(game, 0, [0, 1, 0])
    assert not game.restore_steps(truncate_sequence(script, 2))
    assert (game.render() == screens[-1]).all()
    assert compress_plane(game.get_plane()) == script.moments[-1].plane


def test_images_are_shown_where_nothing_is_drawn() -> None:
    game = make_game("lookfurther/Forgetful-v0", EnvConfig(), (), True, 1)
    game.reset(0)
    assert (game.render() == game.get_plane().transpose(1, 2, 0)).all()
    assert game.action_from_buttons(set()) == 1
    assert not game.is_turn_based


@pytest.mark.parametrize(
    ("env", "keys", "idle", "message"),
    [
        ("ALE/Pong-v5", ("0=a",), 0, "--keys is for other environments"),
        ("CartPole-v1", (), 2, "--idle 2: the actions are 0 to 1"),
        ("CartPole-v1", ("2=a",), 0, "no such action"),
        ("Pendulum-v1", (), 0, "only Discrete"),
        ("lookfurther/Unseen-v0", (), 0, "Unseen-v0 cannot be shown"),
    ],
)
def test_games_that_cannot_be_are_named(
    env: str, keys: tuple[str, ...], idle: int, message: str
) -> None:
    with pytest.raises(LookFurtherError, match=message):
        make_game(env, EnvConfig(), keys, False, idle)


def test_titles() -> None:
    assert short_env_title("ALE/MontezumaRevenge-v5") == "Montezuma's Revenge"
    assert short_env_title("MiniGrid-DoorKey-6x6-v0") == "MiniGrid-DoorKey-6x6"
