"""The tasks, suites and values of docs/experiments.md."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from experiments import demonstrations, stability
from experiments.experts import TASKS, mixed_rewards_expert
from experiments.tasks import DeepSea, LongChain, MixedRewards, PrizeDoors
from lookfurther.config import EnvConfig, replace
from lookfurther.demos.collect import collect_episodes
from lookfurther.envs import get_spec
from lookfurther.envs.naming import base_name
from lookfurther.evaluation import suite
from lookfurther.networks.dueling import make_network_builder
from lookfurther.presets import PRESETS, preset
from lookfurther.transforms import h

FOLDER = Path(stability.__file__).parent
SUITES = ("hour_ablations", "hour_baselines", "night_ablations", "night_baselines", "stability")
INSTALLED_TASKS = [name for name, task in TASKS.items() if demonstrations.is_available(task)]


def expert_returns(name: str, seeds: range) -> list[float]:
    episodes, _ = collect_episodes(TASKS[name].env, EnvConfig(), TASKS[name].expert, seeds)
    return [episode.score for episode in episodes]


# Suites


@pytest.mark.parametrize("name", SUITES)
def test_every_run_of_suite_builds(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings are valid, and each network fits the observations of each task."""
    monkeypatch.setattr(suite.catalog, "find_set", lambda word: word)
    data = tomllib.loads((FOLDER / f"{name}.toml").read_text())
    jobs = suite.build_jobs(data, tmp_path, ["experiments.tasks"])
    assert len(jobs) == len(data["envs"]) * len(data["presets"]) * len(data["seeds"])
    assert len(data["seeds"]) >= 3
    for job in jobs:
        task = base_name(job.config.env)
        assert job.config.env == TASKS[task].env
        assert job.config.demos == ((f"study/{task}-v0",) if job.config.uses_demos else ())
        if job.config.run.seed == 0 and task in INSTALLED_TASKS:
            spec = get_spec(job.config.env, job.config.environment)
            network = make_network_builder(job.config.network)(spec)
            assert network(torch.zeros(1, *spec.observation_shape)).shape == (1, spec.actions)


def test_full_study_has_every_preset() -> None:
    """All but the deeper network and `encore`, whose parts are for Atari games."""
    named = [
        tomllib.loads((FOLDER / f"night_{part}.toml").read_text())["presets"]
        for part in ("ablations", "baselines")
    ]
    assert {*named[0], *named[1]} == PRESETS.keys() - {"apex-dqfd-deeper", "encore"}


def test_all_presets_have_batches_of_equal_size(tmp_path: Path) -> None:
    for length in ("hour", "night"):
        for part in ("ablations", "baselines"):
            data = tomllib.loads((FOLDER / f"{length}_{part}.toml").read_text())
            settings = {k.replace(".", "__"): v for k, v in suite_settings(data).items()}
            configs = [preset(name, "small", **settings) for name in data["presets"]]
            assert {config.batch_size for config in configs} == {256}
            assert {config.learner.samples_per_insert for config in configs} == {32}


def suite_settings(data: dict[str, Any]) -> dict[str, Any]:
    return {f"{s}.{name}": v for s, part in data["settings"].items() for name, v in part.items()}


# Tasks


@pytest.mark.parametrize("name", ["MixedRewards", "DeepSea", "DoorKey", "CartPole", "LongChain"])
def test_expert_has_best_return(name: str) -> None:
    found = np.mean(expert_returns(name, TASKS[name].demo_seeds))
    assert found == pytest.approx(TASKS[name].best_return, rel=1e-6)


def test_prize_doors_expert_can_be_improved_on() -> None:
    """The largest prize in half of the rounds, and 277.75 on average in the others."""
    expected = (PrizeDoors.best_return + 20 * (1 + 10 + 100 + 1000) / 4) / 2
    found = np.mean(expert_returns("PrizeDoors", range(200)))
    assert found == pytest.approx(expected, rel=0.05)


def test_breakout_expert_returns_the_ball() -> None:
    pytest.importorskip("minatar")
    task = TASKS["MinAtarBreakout"]
    episodes, _ = collect_episodes(
        task.env, EnvConfig(), demonstrations.make_random_policy(), range(20)
    )
    assert min(expert_returns("MinAtarBreakout", task.demo_seeds)) > 10 * np.mean(
        [episode.score for episode in episodes]
    )


def best_return(env: gymnasium.Env, state: Callable[[Any], Any]) -> float:
    """The return of the best policy of a deterministic environment, by dynamic programming."""
    found: dict[Any, float] = {}

    def value(env: Any) -> float:
        if (key := state(env)) not in found:
            returns = []
            for action in range(env.action_space.n):
                following = copy.copy(env)
                _, reward, terminal, _, _ = following.step(action)
                returns.append(reward + (0.0 if terminal else value(following)))
            found[key] = max(returns)
        return found[key]

    env.reset(seed=0)
    return value(env)


def test_best_return_of_deep_sea_is_found_by_dynamic_programming() -> None:
    assert best_return(DeepSea(), lambda e: (e.row, e.column)) == pytest.approx(0.99)


class ShortCorridor(MixedRewards):
    length, max_steps = 6, 12
    prizes = {2: 10.0, 4: 100.0, 6: 1000.0}  # noqa: RUF012


def test_best_return_of_mixed_rewards_is_found_by_dynamic_programming() -> None:
    """All prizes, and 1 for each step that is left."""
    found = best_return(ShortCorridor(), lambda e: (e.position, e.furthest, e.elapsed))
    assert found == 1110 + (12 - 6)
    assert MixedRewards.best_return == 1110 + (60 - 30)


def test_clipped_rewards_prefer_collecting_in_mixed_rewards() -> None:
    episodes, _ = collect_episodes(
        TASKS["MixedRewards"].env, EnvConfig(), mixed_rewards_expert, range(1)
    )
    assert np.minimum(episodes[0].rewards, 1).sum() == 3 + 30 < 60


@pytest.mark.parametrize("seed", range(5))
def test_largest_prize_of_every_round_is_best_return(seed: int) -> None:
    env = PrizeDoors()
    env.reset(seed=seed)
    results = [env.step(int(offers.argmax())) for offers in env.offers]
    assert sum(reward for _, reward, *_ in results) == PrizeDoors.best_return == 10_631
    assert [terminal for _, _, terminal, *_ in results] == [False] * 19 + [True]


def test_long_chain_observations_are_smooth_and_distinct() -> None:
    """Neighbours share their features, and no two positions are equal."""
    features = LongChain.observe(np.arange(LongChain.length))
    steps = np.linalg.norm(np.diff(features, axis=0), axis=1)
    assert steps.min() > 0
    assert steps.max() < 0.05 * np.linalg.norm(features, axis=1).min()
    assert len(np.unique(features, axis=0)) == LongChain.length


# Values


def make_chain_agent(q: np.ndarray, gamma: float = 0.999) -> Any:
    """An agent with these values [length, 2] along the chain."""
    config = replace(preset("apex-dqfd"), learner__gamma=gamma)
    return SimpleNamespace(
        q_values=lambda _: q.astype(np.float32), network=torch.nn.Identity(), config=config
    )


@pytest.mark.parametrize("gamma", stability.DISCOUNTS)
def test_error_of_values_ten_percent_too_high_is_ten_percent(gamma: float) -> None:
    true = (1 - gamma ** np.arange(LongChain.length, 0, -1.0)) / (1 - gamma)
    paying = np.array([LongChain.paying_action(i) for i in range(LongChain.length)])
    q = np.zeros((LongChain.length, 2))
    q[np.arange(LongChain.length), paying] = h(torch.from_numpy(1.1 * true), eps=1e-2).numpy()
    summary = stability.summarize_chain(stability.evaluate_chain(make_chain_agent(q, gamma)))
    assert summary["error"] == pytest.approx(0.1, rel=1e-3)
    assert summary["bias"] == pytest.approx(0.1, rel=1e-3)
    assert summary["share_of_best"] == 1


def test_return_of_wrong_policy_is_zero() -> None:
    paying = np.array([LongChain.paying_action(i) for i in range(LongChain.length)])
    q = np.eye(2)[1 - paying]
    values = stability.evaluate_chain(make_chain_agent(q))
    assert values.policy_return.max() == 0
    assert values.best_return[0] == pytest.approx((1 - 0.999**1000) / 0.001)
