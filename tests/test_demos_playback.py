"""Tapes: the action of a step is its frames' majority, and nothing of a tape is lost."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookfurther.config import Environment
from lookfurther.demos.collect import Policy, collect
from lookfurther.demos.episode import Tape, check
from lookfurther.demos.playback import PAD, GameOver, blocks, cut, majority, unroll
from lookfurther.demos.storage import append, describe, load, names, save
from lookfurther.demos.verify import verify
from lookfurther.envs import make_envs
from lookfurther.envs.emulator import MEANINGS, Emulator, rom_digest
from lookfurther.errors import DemonstrationError
from lookfurther.types import Spec

pytest.importorskip("ale_py")

PONG = "ALE/Pong-v5"
SPEC = Spec(PONG, (1, 84, 84), 4, "uint8", 18, 255.0)


def held(steps: int, repeat: int = 4, seed: int = 0) -> np.ndarray:
    """Frames of actions that last a step each."""
    return np.repeat(np.random.default_rng(seed).integers(0, 18, steps), repeat).astype(np.uint8)


def test_majorities_by_hand() -> None:
    frames = np.array([3, 3, 3, 3, 1, 2, 2, 1, 5, 6, 6, 6, 7, 8, 9, 9, 4, 2], np.uint8)
    rows = blocks(frames, 4)
    assert rows[-1].tolist() == [4, 2, PAD, PAD]
    actions, ambiguous = majority(rows)
    assert actions.tolist() == [3, 1, 6, 9, 4]
    assert ambiguous == 4


@given(st.lists(st.integers(0, 17), min_size=1, max_size=40), st.integers(1, 6))
def test_the_majority_is_the_most_common_and_then_the_earliest(played: list, repeat: int) -> None:
    actions, ambiguous = majority(blocks(np.array(played, np.uint8), repeat))
    parts = [played[i : i + repeat] for i in range(0, len(played), repeat)]
    assert actions.tolist() == [Counter(part).most_common(1)[0][0] for part in parts]
    assert ambiguous == sum(len(set(part)) > 1 for part in parts)


@pytest.mark.parametrize("repeat", [1, 3, 4])
def test_a_tape_of_held_actions_is_the_steps_themselves(repeat: int) -> None:
    frames = held(30, repeat)
    episode = unroll(Tape(frames), PONG, repeat)
    emulator = Emulator(PONG, repeat)
    assert np.array_equal(episode.planes[0], emulator.plane())
    for t, action in enumerate(frames[::repeat].tolist()):
        plane, reward, _ = emulator.step(action)
        assert np.array_equal(episode.planes[t + 1], plane)
        assert (episode.actions[t], episode.rewards[t]) == (action, reward)
    assert (len(episode), episode.terminal) == (30, False)
    check([episode], SPEC, "a tape")


def test_the_last_partial_step_is_kept() -> None:
    """Its frames count, even if there is but one of them."""
    emulator, frames = Emulator("ALE/Breakout-v5", 1), []
    score, tries = 0.0, np.random.default_rng(1).integers(0, 4, 600)
    while not score:
        frames.append((0, 1, 3, 4)[tries[len(frames)]])
        score += emulator.frame(frames[-1])
    for repeat in (4, len(frames) - 1, len(frames)):
        episode = unroll(Tape(np.array(frames, np.uint8)), "ALE/Breakout-v5", repeat)
        assert len(episode) == -(-len(frames) // repeat)
        assert episode.rewards[-1] == episode.score == score


def test_writes_come_just_before_their_frame() -> None:
    """As a hand-made replay with the same writes; without them the game takes another way."""
    writes = np.array([(40, 49, 120), (40, 54, 90), (90, 49, 30)], np.int32)
    tape = Tape(held(40), writes)
    emulator = Emulator(PONG)
    for i, action in enumerate(tape.frames.tolist()):
        for _, address, value in writes[writes[:, 0] == i].tolist():
            emulator.write(address, value)
        emulator.frame(action)
    played = unroll(tape, PONG)
    assert np.array_equal(played.planes[-1], emulator.plane())
    plain = unroll(Tape(tape.frames), PONG)
    assert np.array_equal(played.planes[:11], plain.planes[:11])
    assert not np.array_equal(played.planes[11:], plain.planes[11:])
    assert cut(tape, 50).writes.tolist() == [[40, 49, 120], [40, 54, 90]]


def test_a_tape_that_goes_on_after_the_game_is_refused() -> None:
    frames = np.full(6000, 1, np.uint8)
    with pytest.raises(GameOver, match=r"^the game is over at frame \d+ of 6000$") as caught:
        unroll(Tape(frames), "ALE/Breakout-v5")
    whole = unroll(Tape(frames[: caught.value.frames]), "ALE/Breakout-v5")
    assert whole.terminal


@pytest.mark.parametrize(
    ("frames", "writes", "seed"),
    [
        (np.array([18], np.uint8), [], 0),
        (np.array([1], np.int64), [], 0),
        (np.zeros((2, 2), np.uint8), [], 0),
        (np.zeros(2, np.uint8), [(2, 0, 0)], 0),
        (np.zeros(2, np.uint8), [(0, 128, 0)], 0),
        (np.zeros(2, np.uint8), [(0, 0, 256)], 0),
        (np.zeros(2, np.uint8), [(0, -1, 0)], 0),
        (np.zeros(2, np.uint8), [(1, 0, 0), (0, 0, 0)], 0),
        (np.zeros(2, np.uint8), [], 2**31),
    ],
)
def test_a_tape_that_cannot_be_played_cannot_be_made(frames, writes, seed) -> None:
    with pytest.raises(DemonstrationError, match=r"^a tape's "):
        Tape(frames, np.array(writes, np.int32).reshape(-1, 3), seed)


# In the store


def test_a_set_of_tapes_comes_back_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames, writes, seed and audit; Minari reads the rest and shows the frames as infos."""
    import minari

    tape = Tape(held(20)[:-3], np.array([(7, 49, 120)], np.int32), seed=5)
    episode = unroll(tape, PONG)
    audit = verify(episode, SPEC, Environment())
    assert audit.verified
    episodes = [episode, unroll(Tape(held(9)), PONG)]
    episodes[0] = type(episode)(**{**episode.__dict__, "audit": audit})
    save("pong/mine-v0", episodes, SPEC, "me", tmp_path)
    one, two = load("pong/mine-v0", SPEC, tmp_path)
    for found, kept in zip((one, two), episodes, strict=True):
        assert found.planes.tobytes() == kept.planes.tobytes()
        assert found.tape is not None
        assert kept.tape is not None
        assert found.tape.frames.tolist() == kept.tape.frames.tolist()
        assert found.tape.writes.tolist() == kept.tape.writes.tolist()
        assert (found.tape.seed, found.audit) == (kept.tape.seed, kept.audit)
        assert verify(found, SPEC, Environment()).verified
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    theirs = minari.load_dataset("pong/mine-v0")[0]
    assert (
        theirs.infos["frames"][1:].reshape(-1)[: len(tape.frames)].tolist() == tape.frames.tolist()
    )
    assert (theirs.infos["frames"][0] == PAD).all()


def test_a_set_says_what_a_replay_needs(tmp_path: Path) -> None:
    environment = Environment(repeat=3, sticky=0.25)
    episode = unroll(Tape(held(6, 3), seed=11), PONG, 3, 0.25)
    save("mine-v0", [episode], SPEC, "me", tmp_path, environment)
    described = describe("mine-v0", tmp_path)
    how = described.origin
    assert (how.game, how.repeat, how.sticky) == ("pong", 3, 0.25)
    assert (how.meanings, how.rom) == (MEANINGS, rom_digest("pong"))
    assert how.library.startswith("ale-py ")
    (facts,) = described.episodes
    assert (facts.steps, facts.score, facts.verified) == (6, episode.score, False)
    assert facts.reel is not None
    assert (facts.reel.length, facts.reel.seed) == (18, 11)
    assert len(load("mine-v0", SPEC, tmp_path, environment)) == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"repeat": 2}, "made with action repeat 4, the training environment has 2"),
        ({"sticky": 0.25}, "made with sticky probability 0, the training environment has 0.25"),
    ],
)
def test_another_way_of_playing_is_refused_naming_both(tmp_path, settings, words) -> None:
    save("mine-v0", [unroll(Tape(held(3)), PONG)], SPEC, "me", tmp_path)
    with pytest.raises(DemonstrationError, match=f"^mine-v0 was {words}$"):
        load("mine-v0", SPEC, tmp_path, Environment(**settings))


def test_sets_grow_and_are_found(tmp_path: Path) -> None:
    episodes = [unroll(Tape(held(3 + i, seed=i)), PONG) for i in range(4)]
    append("aa/one-v0", episodes[:1], SPEC, "me", tmp_path)
    append("aa/one-v0", episodes[1:3], SPEC, "me", tmp_path)
    save("two-v0", episodes[3:], SPEC, "me", tmp_path)
    (tmp_path / "broken-v0" / "data").mkdir(parents=True)
    assert names(tmp_path) == ["aa/one-v0", "two-v0"]
    for found, kept in zip(load("aa/one-v0", SPEC, tmp_path), episodes[:3], strict=True):
        assert found.planes.tobytes() == kept.planes.tobytes()
        assert found.actions.tolist() == kept.actions.tolist()
    assert [s.steps for s in describe("aa/one-v0", tmp_path).episodes] == [3, 4, 5]


def test_only_what_was_made_in_the_same_way_is_joined(tmp_path: Path) -> None:
    episode = unroll(Tape(held(3, 2)), PONG, 2)
    save("two-v0", [episode], SPEC, "me", tmp_path, Environment(repeat=2))
    save("four-v0", [unroll(Tape(held(3)), PONG)], SPEC, "me", tmp_path)
    with pytest.raises(DemonstrationError, match=r"^four-v0 has repeat 4, the others 2$"):
        append("four-v0", [episode], SPEC, "me", tmp_path, Environment(repeat=2))
    assert len(load("four-v0", SPEC, tmp_path)) == 1
    assert names(tmp_path) == ["four-v0", "two-v0"]


def test_an_episode_that_was_never_finished_does_not_harm_a_set(tmp_path: Path) -> None:
    """Killed between arrays and metadata, an append has added nothing; the next one does."""
    episodes = [unroll(Tape(held(3 + i, seed=i)), PONG) for i in range(3)]
    data = save("mine-v0", episodes[:1], SPEC, "me", tmp_path) / "data"
    before = (data / "metadata.json").read_bytes()
    append("mine-v0", episodes[1:2], SPEC, "me", tmp_path)
    (data / "metadata.json").write_bytes(before)
    assert [len(e) for e in load("mine-v0", SPEC, tmp_path)] == [3]
    append("mine-v0", episodes[2:], SPEC, "me", tmp_path)
    assert [len(e) for e in load("mine-v0", SPEC, tmp_path)] == [3, 5]
    assert {p.name for p in data.iterdir()} == {"metadata.json", "main_data.hdf5"}


# Collected


def test_an_agents_games_are_collected_with_their_tapes() -> None:
    """No-op steps first, then the policy on what it sees; the result is verified."""
    seen = []

    def serve(observation: np.ndarray) -> int:
        seen.append(observation.copy())
        return len(seen) % 18

    environment = Environment(noops=30, cap=12, sticky=0.25)
    episodes, spec = collect(PONG, environment, Policy(serve), range(3))
    assert spec == SPEC
    idle = [
        len(e) - n for e, n in zip(episodes, np.diff([0, *_starts(seen), len(seen)]), strict=True)
    ]
    assert max(idle) > 0
    assert all(0 <= n <= 7 for n in idle)
    for episode, lead in zip(episodes, idle, strict=True):
        assert len(episode) == 12
        assert not episode.terminal
        assert (episode.actions[:lead] == 0).all()
        assert verify(episode, spec, environment).verified
    stack = np.concatenate([np.zeros((3, 84, 84), np.uint8), episodes[0].planes[:, 0]])
    assert np.array_equal(seen[0], stack[idle[0] : idle[0] + 4])


def _starts(seen: list[np.ndarray]) -> list[int]:
    """Where, in all that a policy saw, the second and later episodes begin."""
    follows = [np.array_equal(a[1:], b[:-1]) for a, b in pairwise(seen)]
    return [i + 1 for i, on in enumerate(follows) if not on]


def test_a_collected_game_may_end() -> None:
    (episode,), spec = collect("ALE/Breakout-v5", Environment(), lambda _: lambda: 1, [0])
    assert episode.terminal
    assert verify(episode, spec, Environment()).verified


def test_a_game_without_a_button_has_nine_actions(tmp_path: Path) -> None:
    """There the environment's number of an action is not the emulator's."""
    env, environment = "ALE/Skiing-v5", Environment(noops=0, cap=12)
    (episode,), spec = collect(env, environment, Policy(lambda _: 8), [0])
    assert spec.actions == 9
    assert episode.tape is not None
    assert (set(episode.actions), set(episode.tape.frames)) == ({8}, {9})
    assert unroll(episode.tape, env).actions.tolist() == episode.actions.tolist()
    assert verify(episode, spec, environment).verified
    save("mine-v0", [episode], spec, "me", tmp_path)
    meanings = describe("mine-v0", tmp_path).origin.meanings
    assert (len(meanings), meanings[1], meanings[8]) == (9, "UP", "DOWNLEFT")
    envs = make_envs(env, environment, 1, 0, 1)
    envs.reset()
    for plane in episode.planes[1:-1]:  # at the cap, the vector environment does not look
        envs.send(np.array([8]))
        assert np.array_equal(envs.recv().observation[0, -1:], plane)
    envs.close()
    with pytest.raises(DemonstrationError, match="the tape has actions that skiing does not know"):
        unroll(Tape(np.ones(4, np.uint8)), env)


def test_fewer_actions_are_not_collected() -> None:
    with pytest.raises(DemonstrationError, match=r"leave environment\.full_actions on"):
        collect(PONG, Environment(full_actions=False), Policy(lambda _: 0), [0])
