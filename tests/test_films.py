"""What a run leaves in its replay is what happened: fresh emulators show the same films again."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.gpu import check_replay_contents
from lookfurther.config import Config
from lookfurther.presets import preset
from lookfurther.replay.prioritized import PrioritizedReplay
from lookfurther.types import Chunk


@pytest.fixture
def breakout() -> Config:
    return preset(
        "apex-dqn",
        "small",
        env="ALE/Breakout-v5",
        environment__max_episode_length=90,
        actor__lanes=6,
        replay__capacity=6 * 500,
        replay__learning_starts=500,
        network__convolutions=(4, 4, 4),
        network__hidden=(8,),
        learner__agent_items=8,
        learner__samples_per_insert=0.5,
        run__device="cpu",
        run__precision="float32",
    )


def test_the_films_of_a_run_replay_in_fresh_emulators(breakout: Config) -> None:
    assert list(check_replay_contents(breakout, turns=400).values()) == [0, 0]


def test_actions_of_other_lanes_would_be_noticed(
    breakout: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = PrioritizedReplay.write_slots

    def slipped(self: PrioritizedReplay, chunk: Chunk, first: int) -> None:
        write(self, chunk._replace(action=np.roll(chunk.action, 1, -1)), first)

    monkeypatch.setattr(PrioritizedReplay, "write_slots", slipped)
    astray, at_odds = check_replay_contents(breakout, turns=100).values()
    assert astray > 100
    assert at_odds == 0
