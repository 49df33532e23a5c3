"""Demonstrations of scripted experts and policies."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from lookfurther.config import EnvConfig
from lookfurther.demos.collect import ObservationPolicy, babyai_bot, collect_episodes
from lookfurther.demos.episode import check_episodes
from lookfurther.demos.storage import load_episodes, save_episodes
from lookfurther.envs import get_spec
from lookfurther.errors import DemonstrationError
from tests.sample_episodes import episodes_equal

UNLOCK = "lookfurther.envs.minigrid:lookfurther/UnlockPickup-v0"


def unlock() -> gymnasium.Env:
    pytest.importorskip("minigrid")
    return gymnasium.make(UNLOCK)


def test_bot_episodes_succeed_and_replay_equal() -> None:
    env = unlock()
    episodes, spec = collect_episodes(UNLOCK, EnvConfig(), babyai_bot, range(4))
    assert spec == get_spec(UNLOCK, EnvConfig())
    check_episodes(episodes, spec, "bot")
    assert [e.seed for e in episodes] == [0, 1, 2, 3]
    for demo in episodes:
        assert demo.terminal
        assert (demo.rewards[:-1] == 0).all()
        assert 0 < demo.rewards[-1] <= 1
        x, _ = env.reset(seed=demo.seed)
        planes, rewards, terminal = [x.transpose(2, 0, 1)], [], False
        for action in demo.actions:
            x, reward, terminal, truncated, _ = env.step(int(action))
            planes.append(x.transpose(2, 0, 1))
            rewards.append(reward)
            assert not truncated
        assert terminal
        assert np.array_equal(np.array(planes), demo.planes)
        assert np.array_equal(np.array(rewards, np.float32), demo.rewards)
    env.close()


def test_scripted_expert_receives_env_after_each_reset() -> None:
    """Two episodes of an expert that counts its own calls."""
    first_states = []

    def alternate(env: gymnasium.Env) -> Callable[[], int]:
        state: Any = env.unwrapped
        first_states.append(np.float32(state.state))
        calls = iter(range(1000))
        return lambda: next(calls) % 2

    episodes, spec = collect_episodes("CartPole-v1", EnvConfig(), alternate, [5, 6])
    assert (spec.env, spec.plane, spec.actions) == ("CartPole-v1", (4,), 2)
    for demo, first in zip(episodes, first_states, strict=True):
        assert np.array_equal(demo.planes[0], first)
        assert demo.actions.tolist() == [t % 2 for t in range(len(demo))]
        assert demo.terminal
        assert demo.score == len(demo)


def test_policy_receives_stacked_observations() -> None:
    """Blank planes before the start, and the newest plane last."""
    observations = []

    def lean(observation: np.ndarray) -> int:
        observations.append(observation.copy())
        return int(observation[-2] > 0)

    (demo,), spec = collect_episodes(
        "CartPole-v1", EnvConfig(frame_stack=3), ObservationPolicy(lean), [5]
    )
    assert spec.observation_shape == (12,)
    assert len(observations) == len(demo)
    padded = np.concatenate([np.zeros((2, 4), np.float32), demo.planes])
    for t, observation in enumerate(observations):
        assert observation.tolist() == padded[t : t + 3].reshape(-1).tolist()
        assert demo.actions[t] == int(demo.planes[t, 2] > 0)


def test_one_hot_planes_match_minigrid_encoding() -> None:
    pytest.importorskip("minigrid")
    from minigrid.wrappers import FullyObsWrapper

    from lookfurther.envs.minigrid import NUM_COLOURS, NUM_OBJECTS, NUM_STATES, OneHotGrid

    level = gymnasium.make("BabyAI-UnlockPickup-v0")
    full, one_hot = FullyObsWrapper(level), OneHotGrid(level)
    rng = np.random.default_rng(0)
    cells = set()
    for seed in range(3):
        raw, _ = level.reset(seed=seed)
        for _ in range(60):
            image = full.observation(raw)["image"]
            planes = one_hot.observation(raw)
            assert one_hot.observation_space.contains(planes)
            groups = np.split(
                planes, np.cumsum([NUM_OBJECTS, NUM_COLOURS, NUM_STATES])[:-1], axis=-1
            )
            assert all((group.sum(-1) == 1).all() for group in groups)
            assert np.array_equal(np.stack([g.argmax(-1) for g in groups], -1), image)
            cells |= set(map(tuple, image.reshape(-1, 3)))
            raw, _, terminal, truncated, _ = level.step(int(rng.integers(6)))
            if terminal or truncated:
                break
    assert len({kind for kind, _, _ in cells}) >= 5  # empty, wall, door, key, box, agent
    assert (
        len({state for kind, _, state in cells if kind == 10}) == 4
    )  # the agent turned in all directions
    level.close()


@pytest.mark.parametrize("layouts", [(3,), (0, 5, 9), tuple(range(8))])
def test_few_layouts_generates_only_given_layouts(layouts: tuple[int, ...]) -> None:
    pytest.importorskip("minigrid")
    from lookfurther.envs.minigrid import LayoutSubset, OneHotGrid

    level = gymnasium.make("BabyAI-UnlockPickup-v0")
    few, every = OneHotGrid(LayoutSubset(level, layouts)), OneHotGrid(level)
    wanted = [every.reset(seed=seed)[0].tobytes() for seed in layouts]
    assert len(set(wanted)) == len(layouts)
    seeds = range(5 * len(layouts))
    assert [few.reset(seed=seed)[0].tobytes() for seed in seeds] == 5 * wanted
    level.close()


def test_bot_set_saves_and_loads_for_training(tmp_path: Path) -> None:
    """Collect, save, and load as training does."""
    pytest.importorskip("minigrid")
    episodes, spec = collect_episodes(UNLOCK, EnvConfig(), babyai_bot, range(2))
    path = save_episodes("bot-v0", episodes, spec, "BabyAIBot", tmp_path)
    loaded = load_episodes(str(path), get_spec(UNLOCK, EnvConfig()))
    assert all(map(episodes_equal, loaded, episodes))
    shutil.move(path, tmp_path / "elsewhere")
    assert all(map(episodes_equal, load_episodes(str(tmp_path / "elsewhere"), spec), episodes))
    with pytest.raises(DemonstrationError, match="CartPole-v1 with 2"):
        load_episodes(str(tmp_path / "elsewhere"), get_spec("CartPole-v1", EnvConfig()))
