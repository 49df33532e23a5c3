"""Demonstrations as they look after the no-op frames of a start."""

from __future__ import annotations

from dataclasses import replace as replace_fields

import numpy as np
import pytest
import torch

from lookfurther.config import EnvConfig, replace
from lookfurther.demos.episode import Episode, InputLog
from lookfurther.demos.noop_starts import (
    cut_episode,
    episode_from_start,
    find_noop_starts,
    first_steps,
)
from lookfurther.presets import preset
from lookfurther.training.expert_replay import build_expert_replay
from lookfurther.types import FIRST, Spec


def episode_of(frames: list[int], phase: int = 0, **log: object) -> Episode:
    """An episode with an input log of these frames; steps are numbered by their rewards."""
    steps = 1 + -(-(len(frames) - (phase or 4)) // 4)
    actions = np.array([frames[max(0, (phase or 4) - 4 + 4 * i)] for i in range(steps)])
    input_log = InputLog(np.array(frames, np.uint8), phase=phase, **log)  # type: ignore[arg-type]
    planes = np.zeros((steps + 1, 1, 84, 84), np.uint8)
    return Episode(planes, actions, np.arange(steps, dtype=np.float32), True, input_log=input_log)


def test_demo_after_no_op_frames_by_hand() -> None:
    """Steps of phase 0: frames 0-3, 4-7 are no-ops; then action 3, then action 5."""
    episode = episode_of([0] * 8 + [3] * 4 + [5] * 4)
    for noop_frames, actions in ((0, [0, 0, 3, 5]), (4, [0, 3, 5]), (8, [3, 5])):
        demo = episode_from_start(episode, noop_frames, 4)
        assert demo is not None
        assert demo.actions.tolist() == actions
        assert demo.rewards.tolist() == list(range(4 - len(actions), 4))


def test_demo_of_another_phase_by_hand() -> None:
    """A first step of two frames: starts 2 and 6 are steps of this game, 0 and 4 are not."""
    episode = episode_of([0] * 6 + [3] * 4 + [5] * 4, phase=2)
    assert episode_from_start(episode, 0, 4) is None
    assert episode_from_start(episode, 4, 4) is None
    for noop_frames, actions in ((2, [0, 3, 5]), (6, [3, 5])):
        demo = episode_from_start(episode, noop_frames, 4)
        assert demo is not None
        assert demo.actions.tolist() == actions


def test_demo_that_no_agent_can_play_is_refused() -> None:
    frames = [0] * 8 + [3] * 4 + [5] * 4
    assert episode_from_start(episode_of(frames), 12, 4) is None  # frame 8 is no no-op
    writes = np.array([[1, 2, 3]], np.int32)
    assert episode_from_start(episode_of(frames, ram_writes=writes), 0, 4) is None
    assert episode_from_start(episode_of([0] * 8 + [3, 3, 4, 3] + [5] * 4), 0, 4) is None
    without_log = replace_fields(episode_of(frames), input_log=None)
    assert episode_from_start(without_log, 0, 4) is None


def test_short_last_step_can_be_played() -> None:
    demo = episode_from_start(episode_of([0] * 4 + [3] * 4 + [5] * 2), 0, 4)
    assert demo is not None
    assert demo.actions.tolist() == [0, 3, 5]


def test_best_demonstration_of_each_start_is_taken() -> None:
    worse, better = episode_of([0] * 4 + [3] * 4), episode_of([0] * 4 + [5] * 12)
    other = episode_of([0] * 6 + [7] * 4, phase=2)
    starts = find_noop_starts(EnvConfig(noop_max=6), [worse, better, other])
    assert {k: demo.actions.tolist() for k, demo in starts.items()} == {
        0: [0, 5, 5, 5],
        2: [0, 7],
        4: [5, 5, 5],
        6: [7],
    }


def test_demonstrations_that_no_agent_can_play_have_no_starts() -> None:
    assert find_noop_starts(EnvConfig(noop_max=0), [episode_of([1] * 8, phase=2)]) == {}


def test_cut_episode_is_truncated_unless_it_has_the_end() -> None:
    episode = episode_of([0] * 8 + [3] * 4 + [5] * 4)
    part = cut_episode(episode, 1, 3)
    assert part.actions.tolist() == [0, 3]
    assert part.rewards.tolist() == [1, 2]
    assert len(part.planes) == 3
    assert not part.terminal
    assert cut_episode(episode, 1, 4).terminal


def test_expert_replay_holds_first_observations_of_every_start() -> None:
    """After 4 no-op frames the stack is (0, 0, 0, plane 1), then (0, 0, plane 1, plane 2)."""
    spec = Spec("ALE/Pong-v5", (1, 84, 84), 4, "uint8", 18, 255.0)
    episode = episode_of([0] * 8 + [3] * 4 * 40)
    planes = np.arange(len(episode) + 1, dtype=np.uint8)[:, None, None, None]
    episode = replace_fields(episode, planes=np.broadcast_to(planes, episode.planes.shape).copy())
    config = replace(
        preset("apex-dqfd"),
        env=spec.env,
        demos=("pong",),
        learner__imitated_episodes="all",
        replay__expert_noop_starts=True,
        environment__noop_max=8,
    )
    replay = build_expert_replay(config, spec, [episode], torch.device("cpu"), 0)
    seen = set()
    for batch in replay.iter_items(64):
        stacks = batch.x_both[0, :, :, 0, 0].tolist()
        seen |= {(tuple(x), int(a)) for x, a in zip(stacks, batch.a, strict=True)}
        assert (batch.e == 1).all()
    for stack, action in (
        ((0, 0, 0, 1), 0),
        ((0, 0, 1, 2), 3),
        ((0, 0, 0, 2), 3),
        ((0, 0, 2, 3), 3),
        ((1, 2, 3, 4), 3),
    ):
        assert (stack, action) in seen
    assert int((replay.marks & FIRST != 0).sum()) == 1 + 3  # the game, and starts 0, 4 and 8


def test_first_steps_of_a_start_have_the_return_of_the_whole_game() -> None:
    """Not that of the few steps that are stored again."""
    spec = Spec("ALE/Pong-v5", (1, 84, 84), 4, "uint8", 18, 255.0)
    episode = episode_of([0] * 8 + [3] * 4 * 40)
    config = replace(
        preset("apex-dqfd"),
        replay__expert_noop_starts=True,
        learner__value_floor="return",
        environment__noop_max=8,
    )
    replay = build_expert_replay(config, spec, [episode], torch.device("cpu"), 0)
    begins = (replay.marks & FIRST != 0).nonzero().view(-1).tolist()
    assert len(begins) == 4
    for begin, step in zip(begins, (0, 0, 1, 2), strict=True):
        expected = sum(0.999**k * float(r) for k, r in enumerate(episode.rewards[step:]))
        assert float(replay.value_floors[begin]) == pytest.approx(expected, rel=1e-5)


def test_first_steps_bootstrap_from_their_last_observation() -> None:
    starts = find_noop_starts(EnvConfig(noop_max=4), [episode_of([0] * 8 + [3] * 40)])
    parts = list(first_steps(starts, 6))
    assert [len(part) for part in parts] == [6, 6]
    assert not any(part.terminal for part in parts)
