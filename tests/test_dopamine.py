"""The comparison with Dopamine's published curves: means of iterations, settings, files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import dopamine
from lookfurther.config import Config
from lookfurther.errors import LookFurtherError
from lookfurther.evaluation import suite
from lookfurther.presets import preset
from lookfurther.training.config_json import to_json
from lookfurther.training.monitoring.episode_stats import EpisodeStats
from lookfurther.types import Step

SUITES = Path(dopamine.__file__).parent
EPISODE_STEPS = 5


def play_episodes(returns: np.ndarray, lanes: int) -> list[dict[str, Any]]:
    """Rows of metrics, one per episode of 5 steps, if all lanes have the same returns."""
    stats, nothing = EpisodeStats(lanes), np.zeros(lanes, bool)
    rows = []
    for number, value in enumerate(returns, 1):
        for t in range(1, EPISODE_STEPS + 1):
            ends = np.full(lanes, t == EPISODE_STEPS)
            reward = np.where(ends, value, 0.0).astype(np.float32)
            step = Step(np.zeros((lanes, 1)), reward, ends, nothing, nothing, nothing)
            stats.add_step(step, range(lanes))
            stats.reset_lanes(ends)
        row = {"step": number * EPISODE_STEPS * lanes, "minutes": 0.1 * number}
        rows.append(row | {"episodes": stats.episode_count, "return_mean": stats.mean_return()})
    return rows


@pytest.mark.parametrize("lanes", [1, 3])
def test_iteration_mean_is_mean_of_its_episodes(lanes: int) -> None:
    """Iterations of 60 episodes are recovered from means of the last 100."""
    returns = np.random.default_rng(0).integers(-21, 22, 480).astype(float)
    rows = play_episodes(returns, lanes)
    found = dopamine.iteration_returns(rows, 60 * EPISODE_STEPS * lanes)
    assert [iteration.episodes for iteration in found] == [60 * lanes] * 8
    means = [iteration.mean_return for iteration in found]
    assert means == pytest.approx(returns.reshape(8, 60).mean(1))


def test_rows_without_new_episode_change_nothing() -> None:
    rows = play_episodes(np.arange(300.0), 1)
    repeated = [row | {"step": row["step"] + more} for row in rows for more in (0, 1, 2)]
    steps = 100 * EPISODE_STEPS
    assert dopamine.iteration_returns(repeated, steps) == dopamine.iteration_returns(rows, steps)


def test_incomplete_iteration_is_left_out() -> None:
    rows = play_episodes(np.ones(25), 1)
    assert [i.step for i in dopamine.iteration_returns(rows, 10 * EPISODE_STEPS)] == [50, 100]


def test_too_few_rows_are_an_error() -> None:
    rows = play_episodes(np.ones(300), 1)
    with pytest.raises(LookFurtherError, match=r"101 episodes .* smaller run.log_period"):
        dopamine.sum_returns([rows[99], rows[200]])


def test_published_runs_have_known_means() -> None:
    """The means of iterations 2, 5 and 10, computed separately from Dopamine's files."""
    published = json.loads(dopamine.PUBLISHED_FILE.read_text())
    means = {}
    for curve in published["curves"]:
        runs = np.array(curve["runs"])
        assert runs.shape == (5, 11)
        means[curve["game"], curve["agent"]] = runs.mean(0)[[2, 5, 10]].round(1).tolist()
    assert means == {
        ("Pong", "DQN"): [-17.6, -13.6, -2.4],
        ("Pong", "Rainbow"): [-18.7, -1.6, 15.8],
        ("Breakout", "DQN"): [3.9, 12.1, 24.5],
        ("Breakout", "Rainbow"): [11.8, 24.1, 49.9],
    }


def build_configs(tmp_path: Path, name: str) -> list[Config]:
    _, data = suite.read_suite(str(SUITES / f"dopamine_{name}.toml"))
    return [job.config for job in suite.build_jobs(data, tmp_path)]


@pytest.mark.parametrize("name", ["dqn", "rainbow"])
def test_suites_have_constants_of_dopamine(tmp_path: Path, name: str) -> None:
    pytest.importorskip("ale_py")
    configs = build_configs(tmp_path, name)
    assert [config.env for config in configs] == ["ALE/Pong-v5", "ALE/Breakout-v5"]
    for config in configs:
        environment, actor, learner = config.environment, config.actor, config.learner
        update_period = config.batch_size / learner.samples_per_insert
        assert (config.batch_size, update_period) == (32, 4)
        assert learner.target_period * update_period == 8_000
        assert config.replay.learning_starts == 20_000
        assert config.replay.capacity == 1_000_000
        epsilon = (actor.epsilon_schedule, actor.epsilon_end, actor.epsilon_steps)
        assert epsilon == ("linear", 0.01, 250_000)
        assert (environment.sticky_prob, environment.noop_max) == (0.25, 0)
        assert environment.max_episode_length == 27_000
        assert (environment.full_actions, actor.life_loss) == (False, "continue")
        assert environment.reward_transform == "clip"
        assert (learner.gamma, learner.double_q, config.network.noisy_std) == (0.99, False, 0)


def test_suites_have_optimizers_of_dopamine(tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    (dqn, _), (rainbow, _) = (build_configs(tmp_path, name) for name in ("dqn", "rainbow"))
    optimizer = (dqn.learner.optimizer, dqn.learner.learning_rate, dqn.learner.rmsprop_eps)
    assert optimizer == ("rmsprop", 2.5e-4, 1e-5)
    learner, replay = rainbow.learner, rainbow.replay
    assert (learner.optimizer, learner.learning_rate) == ("adam", 6.25e-5)
    assert learner.adam_eps == 1.5e-4
    assert (dqn.replay.horizons, replay.horizons) == ((1,), (3,))
    assert (replay.alpha, replay.beta, replay.beta_schedule) == (0.5, 0.5, "constant")
    assert (dqn.network.initialization, dqn.network.dueling) == ("glorot", False)
    network = rainbow.network
    assert (network.head, network.atoms, network.v_max) == ("categorical", 51, 10.0)


def save_run(folder: Path, name: str, steps: int) -> Path:
    """A run on Pong whose episodes have 1,000 steps and, in iteration k, the return k."""
    folder.mkdir(parents=True)
    config = preset(name, env="ALE/Pong-v5", actor__lanes=2, run__seed=3, run__steps=steps)
    (folder / "config.json").write_text(to_json(config))
    (folder / "versions.json").write_text(json.dumps({"torch": "2.11", "numpy": "2", "gpu": None}))
    returns = np.arange(steps // 1_000) // 250
    lines = []
    for n in range(1, len(returns) + 1):
        row = {"step": 1_000 * n, "minutes": n / 100, "episodes": n}
        row |= {"gradient_norm": n % 400 / 10} if n > 20 else {}  # none before the first update
        lines.append(json.dumps(row | {"return_mean": returns[max(0, n - 100) : n].mean()}))
    (folder / "metrics.jsonl").write_text("\n".join(lines))
    return folder


def test_command_writes_curves_next_to_published_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_run(tmp_path / "runs" / "a", "dqn", 750_000)
    save_run(tmp_path / "runs" / "b", "rainbow", 500_000)
    files = ["--json", str(tmp_path / "x.json"), "--figure", str(tmp_path / "x.png")]
    monkeypatch.setattr(sys, "argv", ["dopamine", str(tmp_path / "runs"), *files])
    dopamine.main()
    lines = capsys.readouterr().out.splitlines()
    assert "| 250,000 | 0.0; -20.3 (-20.6 to -20.2) | 0.0; -20.4 (-20.5 to -20.3) |" in lines
    assert lines[-1] == "| 750,000 | 2.0; -17.6 (-20.3 to -15.1) | – |"
    result = json.loads((tmp_path / "x.json").read_text())
    run = result["runs"][0]
    assert run["returns"] == pytest.approx([0, 1, 2])
    assert (run["episodes"], run["steps"][-1]) == ([250, 250, 250], 750_000)
    assert (run["seed"], run["settings"]) == (3, {"actor.lanes": 2})
    assert run["versions"] == {"torch": "2.11"}
    assert run["largest_gradient_norm"] == 39.9
    assert [len(curve) for curve in run["published"]] == [3] * 5
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_run_without_published_curve_is_an_error(tmp_path: Path) -> None:
    save_run(tmp_path / "a", "double-dqn", 250_000)
    with pytest.raises(LookFurtherError, match="no published curve of double-dqn, Pong"):
        dopamine.compare_runs(tmp_path)


@pytest.mark.parametrize(("steps", "reason"), [(249_000, "shorter than 250,000"), (0, "no runs")])
def test_folder_without_complete_iteration_is_an_error(
    tmp_path: Path, steps: int, reason: str
) -> None:
    if steps:
        save_run(tmp_path / "a", "dqn", steps)
    with pytest.raises(LookFurtherError, match=reason):
        dopamine.compare_runs(tmp_path)
