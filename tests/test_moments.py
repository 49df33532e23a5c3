"""analysis.moments: an agent that imitates the human never diverges and has the same score."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis import moments
from lookfurther.config import Config
from lookfurther.demos import catalog
from lookfurther.demos.episode import Episode, best_episode_index
from lookfurther.types import Spec

pytest.importorskip("ale_py")

STEPS, EVERY = 60, 50


class Imitator:
    """Repeats the human's actions up to step `until` of the episode, then does nothing."""

    def __init__(self, episode: Episode, spec: Spec, until: int) -> None:
        self.spec, self.config, self.calls = spec, Config(), 0
        self.actions = [*episode.actions[:until].tolist(), *[0] * (len(episode) + STEPS)]

    def q_values(self, observations: np.ndarray) -> np.ndarray:
        q = np.zeros((len(observations), self.spec.actions), np.float32)
        for i, row in enumerate(q):
            row[self.actions[i * EVERY + self.calls]] = 1.0
        self.calls += 1
        return q


@pytest.fixture(scope="module")
def demo() -> tuple[Episode, Spec]:
    demo_set = catalog.open_set("shipped/venture")  # a Go-Explore result: one action per step
    return demo_set.episodes[best_episode_index(demo_set.episodes)], demo_set.description.spec


def play_rollouts(demo: tuple[Episode, Spec], until: int) -> list[moments.GreedyRollout]:
    agent: Any = Imitator(*demo, until)
    return moments.play_from_moments(agent, demo[0], EVERY, STEPS)


def test_imitator_never_diverges(demo: tuple[Episode, Spec]) -> None:
    episode, _ = demo
    rollouts = play_rollouts(demo, len(episode))
    assert [rollout.start for rollout in rollouts] == list(range(0, len(episode), EVERY))
    for rollout in rollouts[:-2]:
        row = moments.rollout_row(rollout, episode, STEPS)
        assert row["parting"] is None
        assert row["agent"] == row["human"]
        assert row["human"] == episode.rewards[rollout.start : rollout.start + STEPS].sum()
    assert sum(rollout.score for rollout in rollouts) > 0


def test_noop_agent_diverges_at_first_other_action(
    demo: tuple[Episode, Spec],
) -> None:
    episode, _ = demo
    for rollout in play_rollouts(demo, 0):
        other_steps = np.flatnonzero(episode.actions[rollout.start : rollout.start + STEPS])
        if len(other_steps):
            assert rollout.divergence == (rollout.start + other_steps[0], 1.0, 0.0, True)
        else:
            assert rollout.divergence is None


def test_folder_without_checkpoint_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["moments", "shipped/venture", str(tmp_path)])
    with pytest.raises(SystemExit, match="holds no checkpoint"):
        moments.main()


def test_demos_of_another_game_are_reported(
    monkeypatch: pytest.MonkeyPatch, demo: tuple[Episode, Spec]
) -> None:
    other_agent = Imitator(demo[0], demo[1]._replace(env="ALE/Pong-v5"), 0)
    monkeypatch.setattr(moments.Agent, "load", lambda run: other_agent)
    monkeypatch.setattr(sys, "argv", ["moments", "shipped/venture", "anywhere"])
    with pytest.raises(SystemExit, match=r"ALE/Venture-v5.*ALE/Pong-v5"):
        moments.main()
