"""The phase of recordings whose actions were held for a step, but not from the first frame on."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookfurther.cli.main import main
from lookfurther.config import EnvConfig
from lookfurther.demos import align, catalog, storage
from lookfurther.demos.catalog import DemoSet
from lookfurther.demos.episode import Episode, InputLog
from lookfurther.demos.importers import ImportedDemos, import_demos
from lookfurther.demos.metadata import DemoSetDescription, describe_episode, make_origin
from lookfurther.demos.playback import (
    PAD_ACTION,
    count_ambiguous_steps,
    episode_from_log,
    frames_by_step,
    make_emulator,
    play_log,
    step_ends,
    with_best_phase,
    with_step_actions,
)
from lookfurther.demos.verify import verify_episode
from lookfurther.envs import get_spec
from lookfurther.envs.emulator import Emulator, resize_by_area
from lookfurther.envs.human_starts import HumanStartEnv
from lookfurther.errors import DemonstrationError
from lookfurther.evaluation.evaluate import draw_human_starts
from lookfurther.evaluation.results import ReturnCurve

pytest.importorskip("ale_py")

BOXING = "ALE/Boxing-v5"
STEPS = 40


def held_trace(noops: int, steps: int = STEPS, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Actions and rewards per frame of Boxing, in steps of 4 frames after some no-ops."""
    rng, emulator = np.random.default_rng(seed), Emulator(BOXING, 1)
    actions = rng.integers(1, 18, steps).astype(np.uint8)
    frames = np.concatenate([np.zeros(noops, np.uint8), np.repeat(actions, 4)])
    return frames, np.array(list(play_log(InputLog(frames), emulator)))


def write_sequence(path: Path, frames: np.ndarray, rewards: np.ndarray) -> Path:
    np.savez(path, rom="boxing", ale_actions=frames, score=rewards.sum(), rewards=rewards)
    return path


def only_episode(imported: ImportedDemos) -> Episode:
    (episode,) = imported.episodes
    return episode


def agent_score(episode: Episode) -> float:
    """The score of an agent that begins after the short first step and takes each action."""
    input_log = episode.input_log
    assert input_log is not None
    emulator = Emulator(BOXING, phase=input_log.phase)
    lead = input_log.frame_actions[: input_log.phase].tolist()
    score = sum(emulator.step_frame(action) for action in lead)
    for action in episode.actions[bool(lead) :].tolist():
        score += emulator.step(emulator.legal_actions[action])[1]
    return score


@pytest.mark.parametrize("noops", [0, 1, 3, 30])
def test_import_finds_phase_of_held_actions(tmp_path: Path, noops: int) -> None:
    frames, rewards = held_trace(noops)
    assert rewards.any()
    imported = import_demos(write_sequence(tmp_path / "boxing.npz", frames, rewards))
    episode = only_episode(imported)
    assert episode.input_log is not None
    assert episode.audit is not None
    assert (episode.input_log.phase, episode.audit.ambiguous) == (noops % 4, 0)
    assert episode.audit.verified
    assert verify_episode(episode, imported.spec, imported.env_config).verified
    assert agent_score(episode) == episode.score == rewards.sum()
    assert align.imitation_score(episode, BOXING, 4) == episode.score


def test_wrong_phase_changes_imitation_score() -> None:
    frames, rewards = held_trace(1)
    shifted = episode_from_log(InputLog(frames), BOXING)
    assert shifted.input_log is not None
    assert count_ambiguous_steps(shifted.input_log, 4) > STEPS / 2
    assert shifted.score == rewards.sum() != align.imitation_score(shifted, BOXING, 4)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 5), st.integers(0, 4))
def test_steps_are_frames_in_order(actions: list[int], repeat: int, phase: int) -> None:
    """Each step has `repeat` frames, except the first with `phase` frames, and the last."""
    phase %= repeat
    input_log = InputLog(np.array(actions, np.uint8), phase=phase)
    ends, rows = (
        step_ends(input_log, repeat).tolist(),
        frames_by_step(input_log.frame_actions, repeat, phase),
    )
    parts = [actions[a:b] for a, b in pairwise(ends)]
    assert [row[row != PAD_ACTION].tolist() for row in rows] == parts
    assert [action for part in parts for action in part] == actions
    lengths = [len(part) for part in parts]
    assert lengths[0] == min(phase or repeat, len(actions))
    assert set(lengths[1:-1]) <= {repeat}
    assert with_step_actions(
        input_log, np.arange(len(parts)) % 18, repeat
    ).frame_actions.tolist() == [i % 18 for i, part in enumerate(parts) for _ in part]


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.integers(1, 5))
def test_best_phase_is_smallest_with_fewest_ambiguous_steps(
    actions: list[int], repeat: int
) -> None:
    input_log = InputLog(np.array(actions, np.uint8))
    counts = [count_ambiguous_steps(replace(input_log, phase=p), repeat) for p in range(repeat)]
    assert with_best_phase(input_log, repeat).phase == counts.index(min(counts))


def test_short_first_step_max_pools_last_two_frames() -> None:
    """The vector environment does this at the end of every step."""
    frames, _ = held_trace(3)
    planes = episode_from_log(InputLog(frames, phase=3), BOXING).planes
    emulator, single = Emulator(BOXING, 1), []
    for action in frames.tolist():
        emulator.step_frame(action)
        single.append(emulator._pooled_frame)
    for step, end in enumerate((3, 7, 11), 1):
        both = np.maximum(single[end - 2], single[end - 1])
        assert np.array_equal(planes[step, 0], resize_by_area(both))


@pytest.fixture(scope="module")
def demo_set() -> DemoSet:
    """A set in memory with one episode, whose first step has 3 frames."""
    frames, _ = held_trace(3)
    episode = episode_from_log(InputLog(frames, phase=3), BOXING)
    spec = get_spec(BOXING, EnvConfig())
    description = DemoSetDescription(
        spec, "me", make_origin(spec, EnvConfig()), (describe_episode(episode, {}),)
    )
    return DemoSet("mine", description, [episode])


def test_saved_set_keeps_phase(tmp_path: Path, demo_set: DemoSet) -> None:
    _, description, episodes = demo_set
    storage.save_episodes("mine-v0", episodes, description.spec, "me", tmp_path)
    (loaded,) = storage.load_episodes("mine-v0", description.spec, tmp_path)
    assert loaded.input_log is not None
    assert loaded.input_log.phase == 3
    assert loaded.input_log.frame_actions.tolist() == episodes[0].input_log.frame_actions.tolist()  # type: ignore[union-attr]
    assert loaded.planes.tobytes() == episodes[0].planes.tobytes()
    assert verify_episode(loaded, description.spec, EnvConfig()).verified


def test_invalid_stored_phase_is_an_error(tmp_path: Path, demo_set: DemoSet) -> None:
    _, description, episodes = demo_set
    data = storage.save_episodes("mine-v0", episodes, description.spec, "me", tmp_path) / "data"
    text = (data / "metadata.json").read_text()
    assert text.count(r"\"phase\": 3") == 1
    for wrong in ("4", "-1", "2"):
        (data / "metadata.json").write_text(text.replace(r"\"phase\": 3", rf"\"phase\": {wrong}"))
        with pytest.raises(DemonstrationError, match="mine-v0 is not a readable demonstration set"):
            storage.load_episodes("mine-v0", description.spec, tmp_path)


def test_human_starts_are_step_ends(demo_set: DemoSet) -> None:
    starts = draw_human_starts(BOXING, [demo_set], EnvConfig(), 0, count=10**6)
    episode = demo_set.episodes[0]
    assert len(starts) == len(episode)
    emulator = Emulator(BOXING)
    for t, start in enumerate(starts):
        emulator.restore_state(start.state)
        assert emulator.frame_number == max(4 * t - 1, 0)
        assert np.array_equal(emulator.current_plane(), episode.planes[t])
    env = HumanStartEnv(BOXING, starts[5:6], EnvConfig())
    env.reset(seed=0)
    for t in range(5, 9):  # the steps after a start have the same phase
        plane, reward, *_ = env.step(int(episode.actions[t]))
        assert np.array_equal(plane, episode.planes[t + 1, 0])
        assert reward == episode.rewards[t]


def test_return_curve_frames_follow_phase() -> None:
    assert ReturnCurve.from_rewards(np.array([1.0, 1.0, 1.0]), 4, 3).frames.tolist() == [
        0,
        3,
        7,
        11,
    ]
    assert ReturnCurve.from_rewards(np.array([1.0, 1.0]), 4).frames.tolist() == [0, 4, 8]


def test_alignment_keeps_phase(demo_set: DemoSet) -> None:
    input_log = demo_set.episodes[0].input_log
    assert input_log is not None
    short_log = replace(input_log, frame_actions=input_log.frame_actions[:43])
    aligned = align.search_alignment(short_log, BOXING, 4)
    assert aligned.phase == 3
    assert count_ambiguous_steps(aligned, 4) == 0
    assert aligned.frame_actions.tolist() == input_log.frame_actions[:43].tolist()


def test_demo_commands_use_same_phase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    frames, rewards = held_trace(1)
    path = write_sequence(tmp_path / "boxing.npz", frames, rewards)
    assert main(["demos", "import", str(path), "--name", "boxing"]) == 0
    before = count_ambiguous_steps(InputLog(frames), 4)
    line = f"41 steps, phase 1; equal: score, 161 rewards; {before} ambiguous steps at phase 0\n"
    assert line in capsys.readouterr().out
    assert main(["demos", "show", "boxing"]) == 0
    head, row = capsys.readouterr().out.split("\n\n")[2].splitlines()
    assert row.split()[head.split().index("phase")] == "1"
    assert main(["demos", "play", "boxing", str(tmp_path / "a.gif"), "--end", "3"]) == 0
    capsys.readouterr()
    assert main(["demos", "verify", "boxing"]) == 0
    assert "equal: 41 rewards, end, 42 observations" in capsys.readouterr().out
    assert main(["demos", "export", "boxing", str(tmp_path / "again.npz")]) == 0
    with np.load(tmp_path / "again.npz") as members:
        assert members["rewards"].tolist() == rewards.tolist()
        assert members["phase"] == 1
    again = only_episode(import_demos(tmp_path / "again.npz"))
    assert again.planes.tobytes() == catalog.open_set("boxing").episodes[0].planes.tobytes()


def test_rendered_frames_are_step_ends(demo_set: DemoSet) -> None:
    from lookfurther.cli.demos.render import render_frames

    episode = demo_set.episodes[0]
    assert episode.input_log is not None
    audit = verify_episode(episode, demo_set.description.spec, EnvConfig())
    frames = render_frames(
        replace(episode, audit=audit), demo_set.description.spec, EnvConfig(), [1, 5]
    )
    emulator, screens = make_emulator(episode.input_log, BOXING, 4), []
    for _ in play_log(episode.input_log, emulator):
        screens.append(emulator.rgb_screen())
    for frame, end in zip(frames, (3, 19), strict=True):
        assert np.array_equal(frame, np.maximum(screens[end - 2], screens[end - 1]))
