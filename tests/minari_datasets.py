"""Minari datasets as other tools write them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.sample_recordings import GAME

SEED, STEPS = 7, 60


def make_minari_dataset(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    env: gymnasium.Env,
    transform: Callable[[Any], Any] = lambda x: x,
    seed: int | None = SEED,
    noops: int = 0,
    **options: Any,
) -> Path:
    """Let Minari write a dataset of random steps after `noops` no-ops."""
    import minari
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(root))
    rng = np.random.default_rng(0)
    first, _ = env.reset(seed=SEED)
    for _ in range(noops):
        first, *_ = env.step(0)
    observations, actions, rewards, ends = [transform(first)], [], [], []
    while len(actions) < STEPS and not any(ends):
        actions.append(1 if len(actions) % 9 == 0 else int(rng.integers(env.action_space.n)))  # type: ignore[attr-defined]
        observation, reward, terminal, _, _ = env.step(actions[-1])
        observations.append(transform(observation))
        rewards.append(float(reward))
        ends.append(bool(terminal))
    make_buffer: Any = EpisodeBuffer  # its annotations allow no arrays
    buffer = make_buffer(
        id=0,
        seed=seed,
        observations=np.array(observations),
        actions=np.array(actions),
        rewards=np.array(rewards),
        terminations=np.array(ends),
        truncations=np.zeros(len(ends), bool),
        infos={},
    )
    space = options.pop("observation_space", env.observation_space)
    minari.create_dataset_from_buffers(
        "theirs-v0", [buffer], env=env, observation_space=space, **options
    )
    env.close()
    return root / "theirs-v0"


def make_atari_env(**options: Any) -> gymnasium.Env:
    settings = {"repeat_action_probability": 0.0, "frameskip": 4} | options
    return gymnasium.make(GAME, **settings)


ignore_user_warnings = pytest.mark.filterwarnings("ignore::UserWarning")
