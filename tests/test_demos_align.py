"""Alignment: the human's game, its score and its RAM writes, with one action in every step."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookfurther.cli.demos import playback
from lookfurther.cli.main import main
from lookfurther.config import EnvConfig
from lookfurther.demos import align, catalog, storage
from lookfurther.demos.align import BeamSearch, BeamSettings, compute_byte_limits, ram_distance
from lookfurther.demos.episode import Episode, InputLog
from lookfurther.demos.playback import block_majority, episode_from_log, frames_by_step
from lookfurther.envs import get_spec
from lookfurther.errors import DemonstrationError
from lookfurther.system import processes

pytest.importorskip("ale_py")

PACMAN = "ALE/MsPacman-v5"
RAM = st.binary(min_size=128, max_size=128).map(lambda x: np.frombuffer(x, np.uint8))


def human(frames: int, seed: int = 1) -> InputLog:
    """Buttons of Ms. Pac-Man, each held for 5 to 24 frames, and one byte of RAM written."""
    rng, held = np.random.default_rng(seed), []
    while len(held) < frames:
        held += [int(rng.integers(2, 6))] * int(rng.integers(5, 25))
    return InputLog(np.array(held[:frames], np.uint8), np.array([[333, 100, 7]], np.int32))


def several(tape: InputLog) -> int:
    return block_majority(frames_by_step(tape.frame_actions, 4))[1]


def imitated(episode: Episode) -> Episode:
    """What an agent comes to that does at every step what the episode says."""
    assert episode.input_log is not None
    frames = np.repeat(episode.actions.astype(np.uint8), 4)[: len(episode.input_log.frame_actions)]
    return episode_from_log(dataclasses.replace(episode.input_log, frame_actions=frames), PACMAN)


@pytest.fixture(scope="module")
def recorded() -> Episode:
    return episode_from_log(human(502), PACMAN)


@pytest.fixture(scope="module")
def found(recorded: Episode) -> Episode:
    return align.align_episode(recorded, PACMAN, 4)


@given(RAM, RAM, st.integers(0, 64))
def test_the_distance_of_memories(a: np.ndarray, b: np.ndarray, most: int) -> None:
    gaps = [abs(x - y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    plain = sum(min(gap, 256 - gap, most) for gap in gaps)
    caps = np.full(128, most)
    assert (
        ram_distance(a, b.astype(np.int16), caps)
        == plain
        == ram_distance(b, a.astype(np.int16), caps)
    )
    assert ram_distance(a, a.astype(np.int16), caps) == 0


def test_what_seldom_changes_counts_most() -> None:
    ram = np.zeros((101, 128), np.int16)
    ram[::2, 0] = 1  # in every step
    ram[::20, 1] = 1  # in a tenth of them
    ram[50:, 2] = 1  # once
    assert compute_byte_limits(ram)[:4].tolist() == [2, 20, 64, 64]


def test_imitating_what_was_recorded_leads_elsewhere_and_what_is_aligned_does_not(
    recorded: Episode, found: Episode
) -> None:
    assert several(recorded.input_log) > 10
    assert imitated(recorded).score == align.imitation_score(recorded, PACMAN, 4) != recorded.score
    assert several(found.input_log) == 0
    assert (
        imitated(found).score
        == align.imitation_score(found, PACMAN, 4)
        == found.score
        == recorded.score
    )
    assert np.array_equal(imitated(found).planes, found.planes)


def test_length_and_writes_are_kept_and_the_audit_says_so(
    recorded: Episode, found: Episode
) -> None:
    assert len(found.input_log.frame_actions) == len(recorded.input_log.frame_actions) == 502
    assert np.array_equal(found.input_log.ram_writes, recorded.input_log.ram_writes)
    assert found.audit == dataclasses.replace(
        found.audit, verified=True, recorded=recorded.score, replayed=recorded.score, ambiguous=0
    )


def test_a_game_with_one_action_a_step_is_found_exactly(found: Episode) -> None:
    again = align.align_episode(found, PACMAN, 4)
    assert np.array_equal(again.rewards, found.rewards)
    assert np.array_equal(again.planes, found.planes)


def test_the_ways_of_a_step_are_the_nearest_and_different(recorded: Episode) -> None:
    follower = BeamSearch(recorded.input_log, PACMAN, 4)
    ways = follower.extend([follower.initial_candidate()], 0, 110, BeamSettings(20, 2, 0))
    every = follower.extend(ways, 110, 111, BeamSettings(1000, 2, 0))
    few = follower.extend(ways, 110, 111, BeamSettings(2, 2, 0))
    apart = [way.distance for way in every]
    assert len(every) > 2
    assert apart == sorted(apart)
    assert [way.distance for way in few] == apart[:2]
    assert len({way.action_sequence().tobytes() for way in every}) == len(every)
    assert all(len(way.action_sequence()) == 111 for way in every)


def test_where_all_is_lost_it_goes_back_and_tries_harder(
    recorded: Episode, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[tuple[int, int, BeamSettings]] = []
    follow = BeamSearch.extend

    def watched(self, ways, begin, end, effort):
        tried.append((begin, end, effort))
        found = follow(self, ways, begin, end, effort)
        if effort.backtrack_segments == 0 and end == 75:  # the first effort loses the way there
            return [way._replace(distance=align.MAX_SEGMENT_DRIFT + 1000) for way in found]
        return found

    efforts = (BeamSettings(8, 1, 0), BeamSettings(16, 2, 2))
    monkeypatch.setattr(align, "BEAM_SETTINGS", efforts)
    monkeypatch.setattr(align, "SEGMENT_STEPS", 25)
    monkeypatch.setattr(BeamSearch, "extend", watched)
    align.search_alignment(recorded.input_log, PACMAN, 4)
    first, harder = efforts
    assert tried[:6] == [
        (0, 25, first),
        (25, 50, first),
        (50, 75, first),
        (0, 25, harder),
        (25, 50, harder),
        (50, 75, harder),
    ]
    assert tried[6] == (75, 100, first)


def test_whoever_stays_lost_is_given_up(recorded: Episode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(align, "BEAM_SETTINGS", (BeamSettings(2, 1, 0),))
    monkeypatch.setattr(align, "SEGMENT_STEPS", 25)
    monkeypatch.setattr(align, "MAX_SEGMENT_DRIFT", -1000)
    monkeypatch.setattr(align, "MAX_LOST_SEGMENTS", 3)
    with pytest.raises(align.AlignmentLost, match="lost at step 75"):
        align.search_alignment(recorded.input_log, PACMAN, 4)
    monkeypatch.setattr(align, "MAX_LOST_SEGMENTS", 1000)  # as a whole it is shorter
    assert several(align.search_alignment(recorded.input_log, PACMAN, 4)) == 0


@pytest.fixture
def saved(recorded: Episode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    monkeypatch.setattr(processes, "count_cores", lambda: 1)
    storage.save_episodes("pacman-v0", [recorded], get_spec(PACMAN, EnvConfig()), "a test")
    return "pacman-v0"


def test_own_actions_that_give_the_score_are_not_searched_for(
    found: Episode, saved: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One frame of another action at the very end, when the score has been reached."""
    assert found.input_log is not None
    frames = found.input_log.frame_actions.copy()
    frames[-1] = 2 if frames[-1] != 2 else 3
    late = episode_from_log(dataclasses.replace(found.input_log, frame_actions=frames), PACMAN)
    assert several(late.input_log) == 1
    storage.save_episodes("late-v0", [late], get_spec(PACMAN, EnvConfig()), "a test")
    monkeypatch.setattr(align, "search_alignment", None)
    assert main(["demos", "align", "late", "--name", "own"]) == 0
    said = f"late-v0, episode 0: its own actions, one in every step, give {late.score:.0f}\n"
    assert said in capsys.readouterr().out
    (own,) = catalog.open_set("own").episodes
    assert own.audit is not None
    assert (own.audit.verified, own.audit.ambiguous, own.score) == (True, 0, late.score)
    assert own.audit.checks == {"rewards": 126, "end": 1, "observations": 127}


def test_a_search_for_actions_shows_how_far_it_is(
    recorded: Episode, found: Episode, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    def searched(
        episode: Episode, env: str, repeat: int, report: align.ProgressCallback
    ) -> Episode:
        for step in range(50, 501, 50):
            report(step, 510)
        report(510, 510)
        return found

    monkeypatch.setattr(align, "align_episode", searched)
    playback.try_align("a", PACMAN, 4, (0, recorded))
    first, *steps, _ = capsys.readouterr().out.splitlines()
    count = several(recorded.input_log)
    gave = f"{count} ambiguous blocks, whose actions give 140: searching"
    assert first == f"a, episode 0: return {recorded.score:.0f}, 126 steps; {gave}"
    assert steps == [f"a, episode 0: step {n} of 510" for n in (200, 400, 510)]


def test_the_command_saves_a_set_that_verifies(
    saved: str, found: Episode, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(align, "align_episode", lambda *_: found)
    monkeypatch.setattr(align, "imitation_score", lambda *_: 0.0)
    assert main(["demos", "align", saved, "--name", "aligned"]) == 0
    out = capsys.readouterr().out
    before = several(catalog.open_set(saved).episodes[0].input_log)
    score = f"{found.score:.0f}"
    assert f"episode 0: return {score}, 126 steps, of {score}; {before} ambiguous blocks" in out
    assert "several actions" not in out
    assert catalog.describe_set("aligned").author == "aligned from pacman-v0"
    assert main(["demos", "verify", "aligned"]) == 0
    with pytest.raises(DemonstrationError, match="aligned-v0 has one action in every step"):
        playback.align_set(playback.AlignOptions("aligned", "twice"))


def test_what_cannot_be_aligned_is_kept_and_nothing_is_saved_where_that_is_all(
    saved: str, found: Episode, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def poor(*_: object) -> Episode:
        return dataclasses.replace(found, rewards=np.zeros_like(found.rewards))

    def lost(*_: object) -> Episode:
        raise align.AlignmentLost(50)

    for answer, reason in (
        (poor, "its own actions give 140, aligned ones 0"),
        (lost, "the human's way is lost at step 50"),
    ):
        monkeypatch.setattr(align, "align_episode", answer)
        with pytest.raises(DemonstrationError, match="no episode of pacman-v0 could be aligned"):
            playback.align_set(playback.AlignOptions(saved, "aligned"))
        assert f"pacman-v0, episode 0: {reason}" in capsys.readouterr().out
    assert not catalog.set_path("aligned-v0").exists()


def test_a_set_of_several_is_worked_on_by_several_and_keeps_its_order(
    recorded: Episode, found: Episode, saved: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = episode_from_log(human(402, seed=3), PACMAN)
    storage.save_episodes("both-v0", [found, short], get_spec(PACMAN, EnvConfig()), "a test")
    monkeypatch.setattr(processes, "count_cores", lambda: 2)
    monkeypatch.setattr(playback, "try_align", half)
    assert playback.align_set(playback.AlignOptions("both", "new")) == 0
    first, second = catalog.open_set("new").episodes
    assert np.array_equal(first.planes, found.planes)
    assert np.array_equal(second.actions, short.actions[:40])


def half(label: str, env: str, repeat: int, numbered: tuple[int, Episode]) -> Episode | None:
    """Keeps what comes first; of the rest the first forty steps, each with one action."""
    i, episode = numbered
    if i == 0 or episode.input_log is None:
        return None
    return episode_from_log(
        InputLog(np.repeat(episode.actions[:40].astype(np.uint8), repeat)), env, repeat
    )


def test_an_import_of_what_no_agent_can_do_names_the_mend(
    saved: str, recorded: Episode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demos", "export", saved, str(tmp_path / "game.npz")]) == 0
    assert main(["demos", "import", str(tmp_path / "game.npz"), "--name", "again"]) == 0
    mend = "lookfurther demos align again-v0 --name NEW"
    count = several(recorded.input_log)
    assert f"{count} steps with several actions, as no agent has them: {mend}" in (
        capsys.readouterr().out
    )
