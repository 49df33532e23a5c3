"""analysis.moments: whoever does as the human did never leaves, and scores as the human did."""

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
    """Does what the human did, up to step `until` of the episode, and then nothing."""

    def __init__(self, episode: Episode, spec: Spec, until: int) -> None:
        self.spec, self.config, self.calls = spec, Config(), 0
        self.actions = [*episode.actions[:until].tolist(), *[0] * (len(episode) + STEPS)]

    def q_values(self, seen: np.ndarray) -> np.ndarray:
        q = np.zeros((len(seen), self.spec.actions), np.float32)
        for i, row in enumerate(q):
            row[self.actions[i * EVERY + self.calls]] = 1.0
        self.calls += 1
        return q


@pytest.fixture(scope="module")
def shown() -> tuple[Episode, Spec]:
    held = catalog.open_set("shipped/venture")  # found by search: one action in every step
    return held.episodes[best_episode_index(held.episodes)], held.description.spec


def played(shown: tuple[Episode, Spec], until: int) -> list[moments.GreedyRollout]:
    agent: Any = Imitator(*shown, until)
    return moments.play_from_moments(agent, shown[0], EVERY, STEPS)


def test_an_imitator_stays_on_the_way(shown: tuple[Episode, Spec]) -> None:
    episode, _ = shown
    games = played(shown, len(episode))
    assert [game.start for game in games] == list(range(0, len(episode), EVERY))
    for game in games[:-2]:
        found = moments.rollout_row(game, episode, STEPS)
        assert found["parting"] is None
        assert found["agent"] == found["human"]
        assert found["human"] == episode.rewards[game.start : game.start + STEPS].sum()
    assert sum(game.score for game in games) > 0


def test_one_who_knows_nothing_leaves_at_the_first_other_action(
    shown: tuple[Episode, Spec],
) -> None:
    episode, _ = shown
    for game in played(shown, 0):
        others = np.flatnonzero(episode.actions[game.start : game.start + STEPS])
        if len(others):
            assert game.divergence == (game.start + others[0], 1.0, 0.0, True)
        else:
            assert game.divergence is None


def test_a_run_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["moments", "shipped/venture", str(tmp_path)])
    with pytest.raises(SystemExit, match="holds no checkpoint"):
        moments.main()


def test_demonstrations_of_another_game_are_named(
    monkeypatch: pytest.MonkeyPatch, shown: tuple[Episode, Spec]
) -> None:
    stranger = Imitator(shown[0], shown[1]._replace(env="ALE/Pong-v5"), 0)
    monkeypatch.setattr(moments.Agent, "load", lambda run: stranger)
    monkeypatch.setattr(sys, "argv", ["moments", "shipped/venture", "anywhere"])
    with pytest.raises(SystemExit, match=r"ALE/Venture-v5.*ALE/Pong-v5"):
        moments.main()
