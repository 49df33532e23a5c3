"""Transitions of the expert replay with lengths of their own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lookfurther import preset
from lookfurther.demos.episode import Episode
from lookfurther.errors import ConfigError
from lookfurther.training.build import build_mixture
from lookfurther.types import Spec
from lookfurther.validation import validate

SPEC = Spec("x", (2,), 1, "float32", 3, 1.0)
CPU = torch.device("cpu")


def random_episode(steps: int) -> Episode:
    rng = np.random.default_rng(0)
    planes = rng.normal(size=(steps + 1, 2)).astype(np.float32)
    rewards = rng.normal(size=steps).astype(np.float32)
    return Episode(planes, rng.integers(3, size=steps), rewards, terminal=True)


@pytest.mark.parametrize("horizons", [(10, 100), (1, 7, 30), ()])
def test_expert_items_have_the_returns_of_their_horizons(horizons: tuple[int, ...]) -> None:
    """Against a plain loop; the agent's replay keeps its own horizons."""
    config = preset(
        "apex-dqfd",
        env="x",
        replay__expert_horizons=horizons,
        replay__capacity=4000,
        actor__lanes=2,
    )
    episode, gamma = random_episode(150), config.learner.gamma
    mixture = build_mixture(config, SPEC, [episode], CPU)
    assert mixture.agent.horizons.tolist() == list(config.replay.horizons)
    expert = mixture.expert
    assert expert is not None
    used = horizons or config.replay.horizons
    assert expert.horizons.tolist() == list(used)
    seen = set()
    for batch in expert.iter_items(64):
        for item, r, discount in zip(batch.item.tolist(), batch.r, batch.discount, strict=True):
            t, n = item // len(used), used[item % len(used)]
            rewards = episode.rewards[t : t + n].astype(np.float64)
            expected = sum(gamma**k * reward for k, reward in enumerate(rewards))
            assert float(r) == pytest.approx(expected, abs=1e-5)
            ends = t + n >= len(episode)
            assert float(discount) == pytest.approx(0.0 if ends else gamma**n, abs=1e-6)
            seen.add((t, n))
    assert seen == {(t, n) for t in range(len(episode)) for n in used}


@pytest.mark.parametrize("horizons", [(0, 10), (10, 10)])
def test_impossible_expert_horizons_are_refused(horizons: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"replay\.expert_horizons"):
        validate(preset("apex-dqfd", env="x", replay__expert_horizons=horizons))
