"""The replay of a run agrees with new emulators that repeat its actions."""

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


def test_new_emulators_reproduce_replay_contents(breakout: Config) -> None:
    assert list(check_replay_contents(breakout, iterations=400).values()) == [0, 0]


def test_actions_of_wrong_lanes_are_detected(
    breakout: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = PrioritizedReplay.write_slots

    def write_shifted(self: PrioritizedReplay, chunk: Chunk, first: int) -> None:
        write(self, chunk._replace(action=np.roll(chunk.action, 1, -1)), first)

    monkeypatch.setattr(PrioritizedReplay, "write_slots", write_shifted)
    wrong_slots, disagreements = check_replay_contents(breakout, iterations=100).values()
    assert wrong_slots > 100
    assert disagreements == 0
