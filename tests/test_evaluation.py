"""Evaluations: starts from demonstrations, and repeatable scores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from lookfurther import Agent, Spec, preset
from lookfurther.config import EnvConfig
from lookfurther.demos.catalog import DemoSet
from lookfurther.demos.episode import Episode
from lookfurther.envs.emulator import Emulator
from lookfurther.errors import DemonstrationError
from lookfurther.evaluation import evaluate as evaluation
from lookfurther.evaluation.evaluate import draw_human_starts, evaluation_env_config, run_evaluation
from lookfurther.evaluation.results import EvaluationConditions

pytest.importorskip("ale_py")
from tests.evaluation_samples import GAME, MeanPixelNetwork


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Agent:
    """An agent on Breakout, with episodes of at most 100 steps."""
    monkeypatch.setattr(evaluation, "MAX_EPISODE_FRAMES", 400)
    spec = Spec(GAME, (1, 84, 84), 4, "uint8", 18, 255.0)
    return Agent(MeanPixelNetwork(), spec, preset("apex-dqfd", env=GAME, demos=("mine",)))


# Human starts


def input_logs(demo_set: DemoSet) -> list:
    return [episode.input_log for episode in demo_set.episodes]


def test_all_starts_cover_every_step_once(breakout_demos: DemoSet) -> None:
    """All steps are equally likely; each state has the plane of the demonstration."""
    lengths = [len(log.frame_actions) // 4 for log in input_logs(breakout_demos)]
    starts = draw_human_starts(GAME, [breakout_demos], EnvConfig(), 0, count=sum(lengths))
    emulator, frames = Emulator(GAME), []
    for start in starts:
        emulator.restore_state(start.state)
        frames.append(emulator.frame_number)
        assert not emulator.is_over
    assert frames == [4 * i for length in lengths for i in range(length)]
    bounds = np.cumsum([0, *lengths])
    for i, episode in enumerate(breakout_demos.episodes):
        for t, start in enumerate(starts[bounds[i] : bounds[i + 1]]):
            emulator.restore_state(start.state)
            assert np.array_equal(emulator.current_plane(), episode.planes[t])
            assert start.last_action == (episode.actions[t - 1] if t else 0)
    more = draw_human_starts(GAME, [breakout_demos], EnvConfig(), 0, count=10**6)
    assert [s.state for s in more] == [s.state for s in starts]


def test_starts_depend_on_seed_and_respect_max_length(breakout_demos: DemoSet) -> None:
    settings = EnvConfig(max_episode_length=80, episode_length_unit="frames")
    first, again, other = (
        draw_human_starts(GAME, [breakout_demos], settings, s, count=9) for s in (1, 1, 2)
    )
    assert first == again != other
    assert len({start.state for start in first}) == 9
    emulator = Emulator(GAME)
    for start in first + other:
        emulator.restore_state(start.state)
        assert emulator.frame_number < 80


def test_starts_leave_out_games_with_steps_of_an_agent(breakout_demos: DemoSet) -> None:
    """Recoveries and perturbed games are not what the human played."""
    first, *others = breakout_demos.episodes
    kept = breakout_demos._replace(episodes=others)
    for own_steps in ({"first_imitated_step": 3}, {"random_steps": (3,)}):
        added = breakout_demos._replace(episodes=[replace(first, **own_steps)])
        starts = draw_human_starts(GAME, [added, kept], EnvConfig(), 0, count=10**6)
        assert starts == draw_human_starts(GAME, [kept], EnvConfig(), 0, count=10**6)
        with pytest.raises(DemonstrationError, match="need demonstrations"):
            draw_human_starts(GAME, [added], EnvConfig(), 0)


def test_demos_without_starts_raise(breakout_demos: DemoSet) -> None:
    bare = [Episode(e.planes, e.actions, e.rewards, e.terminal) for e in breakout_demos.episodes]
    for env, demo_sets, reason in (
        (GAME, [], f"human starts of {GAME} need demonstrations: give --demos SET"),
        ("ALE/Pong-v5", [breakout_demos], f"mine contains {GAME}, but the agent plays ALE/Pong-v5"),
        (GAME, [breakout_demos._replace(episodes=bare)], "mine has no input logs to replay"),
    ):
        with pytest.raises(DemonstrationError, match=f"^{reason}"):
            draw_human_starts(env, demo_sets, EnvConfig(), 0)


# Scores


@pytest.mark.parametrize("starts", ["noop", pytest.param("human", marks=pytest.mark.slow)])
def test_same_conditions_give_same_scores(
    agent: Agent, breakout_demos: DemoSet, starts: Any
) -> None:
    evaluations = [
        run_evaluation(
            agent,
            EvaluationConditions(GAME, starts, 0.25, 0.5, seed=seed),
            [breakout_demos],
            episodes=5,
            lanes=2,
        )
        for seed in (3, 3, 4)
    ]
    outcomes = [(e.scores.tolist(), e.steps.tolist()) for e in evaluations]
    assert outcomes[0] == outcomes[1] != outcomes[2]
    assert all(len(e.scores) == 5 for e in evaluations)
    first = evaluations[0]
    assert first.best_curves["agent"].returns[-1] == first.scores.max()
    assert ("expert" in first.best_curves) == (starts == "noop")
    if starts == "noop":
        assert first.expert_score() == max(e.score for e in breakout_demos.episodes)


def test_evaluation_env_config_replaces_training_settings() -> None:
    training = EnvConfig(
        noop_max=0,
        max_episode_length=77,
        processes=3,
        sticky_prob=0.25,
        action_repeat=2,
        full_actions=False,
    )
    expected = replace(
        training,
        noop_max=30,
        max_episode_length=108_000,
        episode_length_unit="frames",
        processes=0,
    )
    assert evaluation_env_config(training) == expected
    assert evaluation_env_config(training, 0.0) == replace(expected, sticky_prob=0.0)


@pytest.mark.parametrize(
    ("episodes", "lanes", "device", "count"),
    [
        (200, None, "cpu", 20),
        (7, None, "cpu", 7),
        (200, None, "cuda", 200),
        (1000, None, "cuda:1", 256),
        (200, 8, "cpu", 8),
        (200, 8, "cuda", 8),
        (4, 8, "cuda", 4),
    ],
)
def test_gpu_has_one_lane_per_episode(
    episodes: int, lanes: int | None, device: str, count: int
) -> None:
    assert evaluation.count_lanes(episodes, lanes, torch.device(device)) == count
