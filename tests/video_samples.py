"""Demonstrations and environments for the tests of videos."""

from __future__ import annotations

from typing import Any

import numpy as np

from lookfurther.config import Config, EnvConfig
from lookfurther.config import replace as change
from lookfurther.demos.collect import ObservationPolicy, collect_episodes
from lookfurther.demos.episode import Episode
from lookfurther.envs import get_spec
from lookfurther.video.playback import (
    EnvView,
)

CART, PONG = "CartPole-v1", "ALE/Pong-v5"


def push_towards_lean(observation: np.ndarray) -> int:
    """A poor player of CartPole: it pushes in the direction in which the pole leans."""
    return int(observation[2] > 0)


def expert_episodes(count: int = 2) -> list[Episode]:
    return collect_episodes(CART, EnvConfig(), ObservationPolicy(push_towards_lean), range(count))[
        0
    ]


def make_env_view(env: str, **settings: Any) -> EnvView:
    env_config = EnvConfig(**settings)
    config = change(Config(), env=env, environment=env_config)
    return EnvView.from_config(config, get_spec(env, env_config))
