"""Random play on Breakout as demonstrations, and a network for it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lookfurther.config import EnvConfig
from lookfurther.demos.catalog import DemoSet
from lookfurther.demos.collect import ObservationPolicy, collect_episodes
from lookfurther.demos.metadata import DemoSetDescription, make_origin

pytest.importorskip("ale_py")


GAME = "ALE/Breakout-v5"
SHORT = EnvConfig(max_episode_length=60)


class MeanPixelNetwork(nn.Module):
    """A network whose best action depends on the mean of each plane."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 18, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: Tensor) -> Tensor:
        return x.float().mean((-2, -1)) @ self.weight


def random_play(seed: int, env: str = GAME) -> DemoSet:
    """Two short demonstrations, of 60 steps each unless the game ends earlier."""
    random = np.random.default_rng(seed)
    policy = ObservationPolicy(lambda _: random.integers(18))
    episodes, spec = collect_episodes(env, SHORT, policy, seeds=range(2))
    return DemoSet("mine", DemoSetDescription(spec, "", make_origin(spec, SHORT), ()), episodes)
