"""Alignment: one action per step, with the score and the RAM writes of the human's game."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from lookfurther.cli.demos import align as align_command
from lookfurther.cli.main import main
from lookfurther.config import EnvConfig
from lookfurther.demos import align, alignment_search, catalog, storage
from lookfurther.demos.beam_search import BeamSearch, BeamSettings, record_reference
from lookfurther.demos.delayed_log import without_delay
from lookfurther.demos.episode import Episode, InputLog
from lookfurther.demos.playback import block_majority, episode_from_log, frames_by_step
from lookfurther.envs import get_spec
from lookfurther.errors import DemonstrationError
from lookfurther.system import processes

pytest.importorskip("ale_py")

PACMAN = "ALE/MsPacman-v5"


def human_log(frames: int, seed: int = 1) -> InputLog:
    """Buttons of Ms. Pac-Man, each held for 5 to 24 frames, and one RAM write."""
    rng, buttons = np.random.default_rng(seed), []
    while len(buttons) < frames:
        buttons += [int(rng.integers(2, 6))] * int(rng.integers(5, 25))
    return InputLog(np.array(buttons[:frames], np.uint8), np.array([[333, 100, 7]], np.int32))


def count_ambiguous(input_log: InputLog) -> int:
    return block_majority(frames_by_step(input_log.frame_actions, 4))[1]


def log_of(episode: Episode) -> InputLog:
    assert episode.input_log is not None
    return episode.input_log


def imitate(episode: Episode) -> Episode:
    """The episode of an agent that takes the action of the episode in every step."""
    assert episode.input_log is not None
    frames = np.repeat(episode.actions.astype(np.uint8), 4)[: len(log_of(episode).frame_actions)]
    return episode_from_log(dataclasses.replace(log_of(episode), frame_actions=frames), PACMAN)


@pytest.fixture(scope="module")
def recorded() -> Episode:
    return episode_from_log(human_log(502), PACMAN)


@pytest.fixture(scope="module")
def aligned(recorded: Episode) -> Episode:
    return align.align_episode(recorded, PACMAN, 4)


def test_aligned_demo_reproduces_score(recorded: Episode, aligned: Episode) -> None:
    assert count_ambiguous(log_of(recorded)) > 10
    assert imitate(recorded).score == align.imitation_score(recorded, PACMAN, 4) != recorded.score
    assert count_ambiguous(log_of(aligned)) == 0
    assert (
        imitate(aligned).score
        == align.imitation_score(aligned, PACMAN, 4)
        == aligned.score
        == recorded.score
    )
    assert np.array_equal(imitate(aligned).planes, aligned.planes)


def test_alignment_keeps_length_and_ram_writes(recorded: Episode, aligned: Episode) -> None:
    assert len(log_of(aligned).frame_actions) == len(log_of(recorded).frame_actions) == 502
    assert np.array_equal(log_of(aligned).ram_writes, log_of(recorded).ram_writes)
    assert aligned.audit is not None
    assert aligned.audit == dataclasses.replace(
        aligned.audit, verified=True, recorded=recorded.score, replayed=recorded.score, ambiguous=0
    )


def test_aligning_aligned_demo_changes_nothing(aligned: Episode) -> None:
    again = align.align_episode(aligned, PACMAN, 4)
    assert np.array_equal(again.rewards, aligned.rewards)
    assert np.array_equal(again.planes, aligned.planes)


def make_search(episode: Episode) -> BeamSearch:
    human_log = log_of(episode)
    reference = record_reference(human_log, PACMAN, 4)
    return BeamSearch(reference, without_delay(human_log), PACMAN, 4)


def test_extend_returns_nearest_distinct_candidates(recorded: Episode) -> None:
    search = make_search(recorded)
    candidates = search.extend([search.initial_candidate()], 0, 110, BeamSettings(20, 2, 0))
    wide_beam = search.extend(candidates, 110, 111, BeamSettings(1000, 2, 0))
    narrow_beam = search.extend(candidates, 110, 111, BeamSettings(2, 2, 0))
    distances = [candidate.distance for candidate in wide_beam]
    assert len(wide_beam) > 2
    assert distances == sorted(distances)
    assert [candidate.distance for candidate in narrow_beam] == distances[:2]
    sequences = [candidate.action_sequence() for candidate in wide_beam]
    assert len({sequence.tobytes() for sequence in sequences}) == len(wide_beam)
    assert all(len(sequence) == 111 for sequence in sequences)


def test_lost_segment_backtracks_with_wider_beam(
    recorded: Episode, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[int, int, BeamSettings]] = []
    extend = BeamSearch.extend

    def record_call(self, candidates, begin, end, settings):
        calls.append((begin, end, settings))
        extended = extend(self, candidates, begin, end, settings)
        if settings.backtrack_segments == 0 and end == 75:  # the first settings fail here
            lost = alignment_search.MAX_SEGMENT_DRIFT + 1000
            return [candidate._replace(distance=lost) for candidate in extended]
        return extended

    settings = (BeamSettings(8, 1, 0), BeamSettings(16, 2, 2))
    monkeypatch.setattr(alignment_search, "BEAM_SETTINGS", settings)
    monkeypatch.setattr(alignment_search, "SEGMENT_STEPS", 25)
    monkeypatch.setattr(BeamSearch, "extend", record_call)
    align.search_alignment(log_of(recorded), PACMAN, 4)
    narrow, wide = settings
    assert calls[:6] == [
        (0, 25, narrow),
        (25, 50, narrow),
        (50, 75, narrow),
        (0, 25, wide),
        (25, 50, wide),
        (50, 75, wide),
    ]
    assert calls[6] == (75, 100, narrow)


def test_too_many_lost_segments_raise(recorded: Episode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment_search, "BEAM_SETTINGS", (BeamSettings(2, 1, 0),))
    monkeypatch.setattr(alignment_search, "SEGMENT_STEPS", 25)
    monkeypatch.setattr(alignment_search, "MAX_SEGMENT_DRIFT", -1000)
    monkeypatch.setattr(alignment_search, "MAX_LOST_SEGMENTS", 3)
    with pytest.raises(
        alignment_search.AlignmentLost, match="no actions follow the human's game after step 75"
    ):
        align.search_alignment(log_of(recorded), PACMAN, 4)
    monkeypatch.setattr(alignment_search, "MAX_LOST_SEGMENTS", 1000)  # more than there are segments
    assert count_ambiguous(align.search_alignment(log_of(recorded), PACMAN, 4)) == 0


@pytest.fixture
def saved(recorded: Episode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    monkeypatch.setattr(processes, "count_cores", lambda: 1)
    storage.save_episodes("pacman-v0", [recorded], get_spec(PACMAN, EnvConfig()), "a test")
    return "pacman-v0"


def test_align_skips_search_if_own_actions_suffice(
    aligned: Episode,
    saved: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The last frame has another action, after the score is reached."""
    assert aligned.input_log is not None
    frames = log_of(aligned).frame_actions.copy()
    frames[-1] = 2 if frames[-1] != 2 else 3
    late = episode_from_log(dataclasses.replace(log_of(aligned), frame_actions=frames), PACMAN)
    assert count_ambiguous(log_of(late)) == 1
    storage.save_episodes("late-v0", [late], get_spec(PACMAN, EnvConfig()), "a test")
    monkeypatch.setattr(align, "search_alignment", None)
    assert main(["demos", "align", "late", "--name", "own"]) == 0
    message = f"late-v0, episode 0: its own actions, one per step, give {late.score:.0f}\n"
    assert message in capsys.readouterr().out
    (own,) = catalog.open_set("own").episodes
    assert own.audit is not None
    assert (own.audit.verified, own.audit.ambiguous, own.score) == (True, 0, late.score)
    assert own.audit.checks == {"rewards": 126, "end": 1, "observations": 127}


def test_align_prints_progress(
    recorded: Episode, aligned: Episode, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    def report_progress(
        episode: Episode, env: str, action_repeat: int, on_progress: align.ProgressCallback
    ) -> Episode:
        for step in range(50, 501, 50):
            on_progress(step, 510)
        on_progress(510, 510)
        return aligned

    monkeypatch.setattr(align, "align_episode", report_progress)
    align_command.try_align("a", PACMAN, 4, (0, recorded))
    first, *steps, _ = capsys.readouterr().out.splitlines()
    count = count_ambiguous(log_of(recorded))
    search = f"{count} ambiguous steps, whose actions give 140: searching"
    assert first == f"a, episode 0: return {recorded.score:.0f}, 126 steps; {search}"
    assert steps == [f"a, episode 0: step {n} of 510" for n in (200, 400, 510)]


def test_align_command_saves_verified_set(
    saved: str,
    aligned: Episode,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(align, "align_episode", lambda *_: aligned)
    monkeypatch.setattr(align, "imitation_score", lambda *_: 0.0)
    assert main(["demos", "align", saved, "--name", "aligned"]) == 0
    out = capsys.readouterr().out
    before = count_ambiguous(log_of(catalog.open_set(saved).episodes[0]))
    score = f"{aligned.score:.0f}"
    assert f"episode 0: return {score}, 126 steps, of {score}; {before} ambiguous steps" in out
    assert "several actions" not in out
    assert catalog.describe_set("aligned").author == "aligned from pacman-v0"
    assert main(["demos", "verify", "aligned"]) == 0
    with pytest.raises(DemonstrationError, match="aligned-v0 has one action in every step"):
        align_command.align_set(align_command.AlignOptions("aligned", "twice"))


def test_align_saves_nothing_if_no_episode_aligns(
    saved: str,
    aligned: Episode,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def align_poorly(*_: object) -> Episode:
        return dataclasses.replace(aligned, rewards=np.zeros_like(aligned.rewards))

    def fail_to_align(*_: object) -> Episode:
        raise alignment_search.AlignmentLost(50)

    for replacement, reason in (
        (align_poorly, "its own actions give 140, aligned ones 0"),
        (fail_to_align, "no actions follow the human's game after step 50"),
    ):
        monkeypatch.setattr(align, "align_episode", replacement)
        with pytest.raises(DemonstrationError, match="no episode of pacman-v0 could be aligned"):
            align_command.align_set(align_command.AlignOptions(saved, "aligned"))
        assert f"pacman-v0, episode 0: {reason}" in capsys.readouterr().out
    assert not catalog.set_path("aligned-v0").exists()


@pytest.mark.usefixtures("saved")
def test_align_rejects_sets_with_sticky_actions(recorded: Episode) -> None:
    env_config = EnvConfig(sticky_prob=0.25)
    spec = get_spec(PACMAN, env_config)
    storage.save_episodes("sticky-v0", [recorded], spec, "a test", env_config=env_config)
    with pytest.raises(DemonstrationError, match="sticky-v0 has sticky actions"):
        align_command.align_set(align_command.AlignOptions("sticky", "new"))


def test_parallel_align_keeps_episode_order(
    recorded: Episode, aligned: Episode, saved: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = episode_from_log(human_log(402, seed=3), PACMAN)
    storage.save_episodes("both-v0", [aligned, short], get_spec(PACMAN, EnvConfig()), "a test")
    monkeypatch.setattr(processes, "count_cores", lambda: 2)
    monkeypatch.setattr(align_command, "try_align", align_second_only)
    assert align_command.align_set(align_command.AlignOptions("both", "new")) == 0
    first, second = catalog.open_set("new").episodes
    assert np.array_equal(first.planes, aligned.planes)
    assert np.array_equal(second.actions, short.actions[:40])


def align_second_only(
    label: str, env: str, action_repeat: int, numbered: tuple[int, Episode]
) -> Episode | None:
    """Keep the first episode; cut the others to forty steps with one action each."""
    i, episode = numbered
    if i == 0 or episode.input_log is None:
        return None
    return episode_from_log(
        InputLog(np.repeat(episode.actions[:40].astype(np.uint8), action_repeat)),
        env,
        action_repeat,
    )


def test_import_of_ambiguous_demo_suggests_align(
    saved: str, recorded: Episode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demos", "export", saved, str(tmp_path / "game.npz")]) == 0
    assert main(["demos", "import", str(tmp_path / "game.npz"), "--name", "again"]) == 0
    fix = "which an agent cannot do; run lookfurther demos align again-v0 --name NEW"
    count = count_ambiguous(log_of(recorded))
    message = f"{count} ambiguous steps: they mix several actions, {fix}"
    assert message in capsys.readouterr().out
