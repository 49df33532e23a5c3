"""Parts of the recorder: keys, messages, journal and episode log."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookfurther.config import EnvConfig
from lookfurther.envs.emulator import ACTION_MEANINGS
from lookfurther.errors import ConfigError, DemonstrationError, RunLocked
from lookfurther.recorder.episode_log import (
    EpisodeLog,
    RecordedStep,
    actions_per_frame,
    compress_plane,
    decompress_plane,
)
from lookfurther.recorder.journal import Journal
from lookfurther.recorder.keys import (
    JOYSTICK_BUTTONS,
    KEY_CODES,
    RESERVED_KEYS,
    assign_keys,
    joystick_action,
)
from lookfurther.recorder.protocol import (
    EPISODE_KINDS,
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


WORDS = st.sampled_from(
    [*SIMPLE_KINDS, *EPISODE_KINDS, "0" * 16, "keys", "seen", "rewind", "speed", "kind"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=3) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
)
FIELDS = st.sampled_from(["kind", "number", "held", "on", "speed", "wait", "episode"])


@given(st.dictionaries(FIELDS, VALUES, max_size=6))
def test_arbitrary_object_parses_or_raises_message_error(data: dict) -> None:
    try:
        message = parse_message(json.dumps(data), NAMES)
    except MessageError:
        return
    assert message.kind == data["kind"]
    assert message.held_buttons <= NAMES
    assert message.speed in PLAY_SPEEDS
    assert message.episode in ("", "0" * 16)


def test_valid_messages_are_parsed() -> None:
    assert parse_message('{"kind": "pause"}', NAMES) == PageMessage("pause")
    assert parse_message('{"kind": "rewind", "on": true}', NAMES) == PageMessage(
        "rewind", is_held=True
    )
    assert parse_message('{"kind": "speed", "speed": 2}', NAMES) == PageMessage("speed", speed=2.0)
    keys = parse_message('{"kind": "keys", "number": 7, "held": ["up", "fire"]}', NAMES)
    assert keys == PageMessage("keys", 7, frozenset({"up", "fire"}))
    delete = parse_message('{"kind": "delete", "episode": "0123456789abcdef"}', NAMES)
    assert delete == PageMessage("delete", episode="0123456789abcdef")
    for name in ('""', '"../../x"', '"0123456789ABCDEF"', "7", "null"):
        with pytest.raises(MessageError, match="episode must be the id of an episode"):
            parse_message(f'{{"kind": "replay", "episode": {name}}}', NAMES)
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
