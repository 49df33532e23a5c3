"""Evaluations on disk: written completely, read back exactly, summarised as the paper does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookfurther.errors import LookFurtherError
from lookfurther.evaluation import results
from lookfurther.evaluation.paper_scores import START_TITLES, StartType
from lookfurther.evaluation.results import Evaluation, EvaluationConditions, ReturnCurve
from tests.report_runs import make_evaluation

finite = st.floats(-1e9, 1e9)
reward_lists = st.lists(st.sampled_from([0.0, 0.0, 1.0, -2.0, 100.0]), max_size=30).map(np.array)


@given(
    scores=st.lists(st.tuples(finite, st.integers(0, 10**9)), min_size=1, max_size=20),
    starts=st.sampled_from(list(START_TITLES)),
    sticky=st.sampled_from([0.0, 0.25]),
    epsilon=st.sampled_from([0.001, 0.05]),
    best=st.dictionaries(st.sampled_from(results.CURVE_PLAYERS), reward_lists),
)
def test_evaluation_round_trip_is_exact(
    tmp_path_factory: pytest.TempPathFactory,
    scores: list[tuple[float, int]],
    starts: StartType,
    sticky: float,
    epsilon: float,
    best: dict[str, np.ndarray],
) -> None:
    run = tmp_path_factory.mktemp("run")
    conditions = EvaluationConditions("CartPole-v1", starts, sticky, epsilon, 5000, 7)
    values, steps = map(np.array, zip(*scores, strict=True))
    curves = {player: ReturnCurve.from_rewards(rewards) for player, rewards in best.items()}
    folder = results.write_evaluation(run, Evaluation(conditions, values, steps, curves))
    ((name, restored),) = results.read_evaluations(run).items()
    assert name == folder.name == conditions.folder_name
    assert restored.conditions == conditions
    assert restored.scores.tolist() == values.tolist()
    assert restored.steps.tolist() == steps.tolist()
    assert restored.best_curves.keys() == curves.keys()
    for player, curve in curves.items():
        assert restored.best_curves[player].frames.tolist() == curve.frames.tolist()
        assert restored.best_curves[player].returns.tolist() == curve.returns.tolist()
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["mean"]["value"] == pytest.approx(values.mean())
    assert (summary["mean"]["low"] is None) == (len(values) == 1)


@given(reward_lists, st.integers(1, 4))
def test_return_curve_matches_cumulative_rewards(rewards: np.ndarray, repeat: int) -> None:
    curve = ReturnCurve.from_rewards(rewards, repeat)
    assert (curve.frames[0], curve.frames[-1]) == (0, repeat * len(rewards))
    assert (np.diff(curve.frames) > 0).all()
    for step in range(len(rewards) + 1):
        last = np.searchsorted(curve.frames, step * repeat, side="right") - 1
        assert curve.returns[last] == rewards[:step].sum()


def test_summary_matches_hand_computation() -> None:
    """Montezuma's Revenge: random 0, human 4,753.3, the paper's expert 34,900."""
    env = "ALE/MontezumaRevenge-v5"
    scores = np.array([0.0, 400, 2500, 2500, 2600, 3500, 6600, 21900])
    summary = Evaluation(EvaluationConditions(env), scores, np.full(8, 10)).summary()
    assert (summary["mean"]["value"], summary["median"]["value"], summary["best"]) == (
        5000,
        2550,
        21900,
    )
    assert summary["iqm"]["value"] == (2500 + 2500 + 2600 + 3500) / 4
    assert summary["mean"]["low"] < 5000 < summary["mean"]["high"]
    assert summary["human_normalised"] == pytest.approx(100 * 5000 / 4753.3)
    assert summary["expert_relative"] == pytest.approx(100 * (5000 - 34900) / 34900)
    expert_curve = {"expert": ReturnCurve.from_rewards(np.array([0.0, 10_000.0]))}
    summary = Evaluation(EvaluationConditions(env), scores, np.full(8, 10), expert_curve).summary()
    assert (summary["expert"], summary["expert_relative"]) == (10_000, -50)
    summary = Evaluation(
        EvaluationConditions(env, "human"), scores, np.full(8, 10), expert_curve
    ).summary()
    assert summary["human_normalised"] == pytest.approx(100 * (5000 - 25) / (4182 - 25))
    assert (summary["expert"], summary["expert_relative"]) == (None, None)
    summary = Evaluation(EvaluationConditions("CartPole-v1"), scores, np.full(8, 10)).summary()
    assert (summary["human_normalised"], summary["expert_relative"]) == (None, None)


def test_evaluation_replaces_older_one_or_is_ignored(tmp_path: Path) -> None:
    results.write_evaluation(tmp_path, make_evaluation("CartPole-v1", 10))
    folder = results.write_evaluation(tmp_path, make_evaluation("CartPole-v1", 20))
    results.write_evaluation(tmp_path, make_evaluation("CartPole-v1", 30, sticky=0.25))
    found = results.read_evaluations(tmp_path)
    assert {name: e.scores.mean() for name, e in found.items()} == {
        "noop": 20,
        "noop-sticky-0.25": 30,
    }
    (folder / "summary.json").unlink()  # as if killed before writing the last file
    assert list(results.read_evaluations(tmp_path)) == ["noop-sticky-0.25"]


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("episodes.csv", "", r"line 1: its columns should be|holds no episode"),
        ("episodes.csv", "a,b\n1,2\n", "line 1: its columns should be episode,score,steps"),
        ("episodes.csv", "episode,score,steps\n", "holds no episode"),
        ("episodes.csv", "episode,score,steps\n0,1,2\n1,nan,3\n", "line 3: nan is not finite"),
        ("episodes.csv", "episode,score,steps\n0,1\n", "line 2: "),
        ("best_returns.csv", "player,frame,return\nghost,0,0\n", "line 2: 'ghost' is no player"),
        ("summary.json", "{", "cannot be read"),
        ("summary.json", '{"env": "x"}', "cannot be read"),
        ("summary.json", "[]", "cannot be read"),
    ],
)
def test_broken_evaluation_error_names_the_file(
    tmp_path: Path, file: str, text: str, reason: str
) -> None:
    folder = results.write_evaluation(tmp_path, make_evaluation("CartPole-v1", 10))
    (folder / file).write_text(text)
    with pytest.raises(LookFurtherError, match=reason) as error:
        results.read_evaluations(tmp_path)
    assert file in str(error.value)
    assert "\n" not in str(error.value)
