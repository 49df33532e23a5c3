"""Alignment from the starts of an evaluation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lookfurther.cli.demos import align as align_command
from lookfurther.cli.main import main
from lookfurther.config import EnvConfig
from lookfurther.demos import align, catalog, storage
from lookfurther.demos.alignment_search import AlignmentLost
from lookfurther.demos.delayed_log import delay_start
from lookfurther.demos.episode import Episode, InputLog
from lookfurther.demos.playback import episode_from_log
from lookfurther.demos.policy_trace import PolicyTable
from lookfurther.envs import get_spec
from lookfurther.envs.emulator import Emulator
from lookfurther.errors import DemonstrationError
from lookfurther.system import processes

pytest.importorskip("ale_py")

FREEWAY, FRAMES = "ALE/Freeway-v5", 102


@pytest.fixture(scope="module")
def recorded() -> Episode:
    """A player who waits for ten frames, then walks up. One RAM byte is written."""
    frames = np.full(FRAMES, 2, np.uint8)
    frames[:10], frames[70:75] = 0, 5
    return episode_from_log(InputLog(frames, np.array([[20, 100, 1]], np.int32)), FREEWAY)


def log_of(episode: Episode) -> InputLog:
    assert episode.input_log is not None
    return episode.input_log


def test_start_log_waits_for_thirty_frames_and_writes_no_ram(recorded: Episode) -> None:
    human = log_of(recorded)
    start, human_frames = delay_start(human, 3)
    assert (start.frame_actions[:30] == 0).all()
    assert np.array_equal(start.frame_actions[20:], human.frame_actions)
    assert len(start.ram_writes) == 0
    assert start.phase == 3
    assert human_frames.tolist() == [0] * 20 + list(range(len(human.frame_actions) + 1))


def test_start_log_of_late_player_adds_no_frames() -> None:
    late = InputLog(np.repeat(np.array([0, 2], np.uint8), 100))
    assert np.array_equal(delay_start(late, 0).input_log.frame_actions, late.frame_actions)


@pytest.mark.parametrize("phase", [0, 1, 2, 3])
def test_aligned_game_is_suffix_of_every_start_of_its_phase(recorded: Episode, phase: int) -> None:
    """An agent that starts after k no-op frames can play the rest of the same game."""
    aligned = align.align_from_start(recorded, FREEWAY, 4, phase, PolicyTable())
    assert aligned.audit is not None
    assert aligned.audit.verified
    assert len(log_of(aligned).frame_actions) == FRAMES + 20
    for start in range(phase, 31, 4):
        emulator = Emulator(FREEWAY, 4, phase=phase)
        for _ in range(start):
            emulator.step_frame(0)
        skipped = -(-start // 4)
        for action, plane in zip(aligned.actions[skipped:], aligned.planes[skipped:], strict=False):
            assert np.array_equal(emulator.current_plane(), plane)
            emulator.step(emulator.legal_actions[action])


@pytest.fixture
def saved(recorded: Episode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    storage.save_episodes("freeway-v0", [recorded], get_spec(FREEWAY, EnvConfig()), "a test")
    return "freeway-v0"


def test_align_starts_saves_game_of_each_start(
    saved: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["demos", "align", saved, "--name", "starts", "--starts"]) == 0
    episodes = catalog.open_set("starts").episodes
    assert [log_of(episode).phase for episode in episodes] == [0, 1, 2, 3]
    out = capfd.readouterr().out
    for phase, episode in enumerate(episodes):
        line = f"freeway-v0, episode 0, start {phase}: return {episode.score:.0f}"
        assert line in out
    assert main(["demos", "verify", "starts"]) == 0


def test_starts_that_the_clock_shows_are_aligned_each_alone(
    saved: str, recorded: Episode, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["demos", "align", saved, "--name", "starts", "--starts", "--clock-unit", "frames"]
    assert main(words) == 0
    aligned = catalog.open_set("starts").episodes
    alone = [align.align_from_start(recorded, FREEWAY, 4, phase) for phase in range(4)]
    assert [e.actions.tolist() for e in aligned] == [e.actions.tolist() for e in alone]
    assert [log_of(e).phase for e in aligned] == [0, 1, 2, 3]
    out = capfd.readouterr().out
    assert f"freeway-v0, episode 0, start 3: return {aligned[3].score:.0f}" in out
    assert "contradict" not in out


def test_align_takes_the_first_steps_only(saved: str) -> None:
    """Twelve steps of the human's game, after twenty frames of waiting: five steps."""
    words = ["demos", "align", saved, "--name", "short", "--starts", "--steps", "12"]
    assert main(words) == 0
    aligned, recorded = catalog.open_set("short").episodes, catalog.open_set(saved).episodes[0]
    assert [len(episode) for episode in aligned] == [17, 18, 18, 18]
    frames = [len(log_of(episode).frame_actions) for episode in aligned]
    assert frames == [48 + 20] * 4
    assert len(recorded) > 12
    assert main(["demos", "verify", "short"]) == 0


def test_align_starts_leaves_out_lost_games(
    saved: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def lose_game(*_: object) -> Episode:
        raise AlignmentLost(50)

    monkeypatch.setattr(align, "align_from_start", lose_game)
    monkeypatch.setattr(processes, "count_cores", lambda: 1)  # other processes are not patched
    with pytest.raises(DemonstrationError, match="no episode of freeway-v0 could be aligned"):
        align_command.align_set(align_command.AlignOptions(saved, "starts", starts=True))
    out = capfd.readouterr().out
    assert "start 2: no actions follow the human's game after step 50, left out\n" in out
