"""Reports: curves over seeds, the paper's tables."""

from __future__ import annotations

import dataclasses

import numpy as np

from lookfurther.config import replace
from lookfurther.evaluation.paper_scores import game_titles
from lookfurther.presets import preset
from lookfurther.report import score_tables, tables
from lookfurther.report.curves import (
    CURVE_POINTS,
    MetricCurve,
    compute_confidence_band,
    extract_curve,
)
from lookfurther.report.runs import RunGroup, group_runs
from lookfurther.report.score_columns import build_columns
from lookfurther.report.table import ReportTable
from tests.report_runs import (
    BASE_CONFIG,
    make_evaluation,
    make_rows,
    make_run,
    paper_runs,
)

# Curves


def test_confidence_band_covers_the_common_range() -> None:
    short = MetricCurve(np.array([0.0, 100]), np.array([0.0, 100]))
    late = MetricCurve(np.array([50.0, 200]), np.array([150.0, 600]))
    band = compute_confidence_band([short, late])
    assert band is not None
    assert (band.x[0], band.x[-1]) == (50, 100)
    np.testing.assert_allclose(band.mean, 2 * band.x)
    assert (band.low <= band.mean).all()
    assert (band.mean <= band.high).all()
    single = compute_confidence_band([short])
    assert single is not None
    assert np.isnan(single.low).all()
    assert compute_confidence_band([short, MetricCurve(np.array([150.0]), np.array([1.0]))]) is None


def test_curve_skips_unknown_values_and_averages_many() -> None:
    rows = [
        {"step": 1, "loss": None},
        {"step": 2, "loss": 4.0},
        {"step": 3},
        {"step": 4, "loss": "x"},
    ]
    curve = extract_curve(make_run(BASE_CONFIG, rows), "step", "loss")
    assert curve is not None
    assert (curve.x.tolist(), curve.y.tolist()) == ([2.0], [4.0])
    assert extract_curve(make_run(BASE_CONFIG, rows), "step", "loss_td") is None
    many = [{"step": i, "loss": float(i % 2)} for i in range(20 * CURVE_POINTS)]
    curve = extract_curve(make_run(BASE_CONFIG, many), "step", "loss")
    assert curve is not None
    assert len(curve.x) == 2 * CURVE_POINTS
    np.testing.assert_allclose(curve.y, 0.5)


# Tables


def table_texts(table: ReportTable | None) -> dict[str, dict[str, str]]:
    """The texts of a table by row and column."""
    assert table is not None
    return {
        row[0].text: {h: c.text for h, c in zip(table.header, row, strict=True)}
        for row in table.rows
    }


def test_paper_scores_reproduce_the_paper_tables() -> None:
    runs = [
        dataclasses.replace(run, evaluations=run.evaluations | other.evaluations)
        for run, other in zip(
            paper_runs("apex_dqfd_deeper"), paper_runs("apex_dqfd_deeper", "human"), strict=True
        )
    ]
    groups = group_runs(runs)
    ours = "apex-dqfd-deeper"
    normalised = table_texts(score_tables.normalised_table(groups))
    noop, human = "no-op starts, 42 games", "human starts, 42 games"
    headers = [
        f"{kind}, {starts}" for kind in ("mean", "median", "IQM") for starts in (noop, human)
    ]
    for header in headers:
        assert normalised[ours][header] == normalised["Ape-X DQfD (deeper)"][header]
    assert normalised[ours][f"mean, {noop}"] == "2,346 %"
    assert normalised[ours][f"median, {noop}"] == "702 %"
    assert abs(float(normalised[ours][f"mean, {human}"][:-2].replace(",", "")) - 2028) < 4
    pairs = table_texts(score_tables.pairwise_table(groups, "noop"))
    assert [pairs[ours][name] for name in ("Rainbow DQN", "Avg. Human", "Expert")] == [
        "36 / 42",
        "40 / 42",
        "34 / 42",
    ]
    assert pairs[ours]["Ape-X DQfD (deeper)"] == "42 / 42"
    scores = table_texts(score_tables.scores_table(groups, "noop"))
    assert list(scores) == list(game_titles().values())
    hero = scores["Hero"]
    assert hero[ours] == hero["Ape-X DQfD (deeper)"] == "114,248"
    assert hero["Expert"] == "99,320"
    assert table_texts(score_tables.scores_table(groups, "human"))["Hero"]["DQfD"] == "–"


def partly_evaluated_groups() -> list[RunGroup]:
    """Two evaluated seeds of Pong, and a variant with higher returns that is not evaluated."""
    pong = [replace(BASE_CONFIG, run__seed=seed) for seed in range(2)]
    runs = [
        make_run(c, make_rows(1), make_evaluation(c.env, s))
        for c, s in zip(pong, (10.0, 14.0), strict=True)
    ]
    return group_runs([*runs, make_run(preset("no-tc", env="ALE/Pong-v5"), make_rows(30))])


def test_scores_table_averages_seeds() -> None:
    groups = partly_evaluated_groups()
    table = score_tables.scores_table(groups, "noop")
    assert table is not None
    assert table.paper_columns == 8
    ((name, ours, *paper),) = table.rows
    assert (name.text, ours.text, ours.note) == ("Pong", "12.0", "[10.0, 14.0]")
    bold = [cell.text for cell in table.rows[0] if cell.is_best]
    assert bold == ["21.0"]  # Ape-X DQfD of the paper
    assert [cell.value for cell in paper][-3:] == [-18.0, 15.0, 0.0]
    assert score_tables.scores_table(groups, "human") is None


def test_training_returns_are_not_ranked_with_evaluations() -> None:
    """The unevaluated variant returned 150, more than any evaluated score of Pong."""
    groups = partly_evaluated_groups()
    for table in (
        score_tables.scores_table(groups, "noop"),
        score_tables.normalised_table(groups),
        score_tables.pairwise_table(groups, "noop"),
    ):
        assert table is not None
        names = (*table.header, *(row[0].text for row in table.rows))
        assert "apex-dqfd" in names
        assert "no-tc" not in names
    training = score_tables.scores_table(groups, "training")
    assert training is not None
    assert training.header == ("environment", "apex-dqfd", "no-tc")  # nothing of the paper
    assert [cell.text for cell in training.rows[0]] == ["Pong", "5.00", "150.0"]
    assert [cell.is_best for cell in training.rows[0]] == [False, False, True]
    pairs = table_texts(score_tables.pairwise_table(groups, "training"))
    assert list(pairs) == ["apex-dqfd", "no-tc"]
    assert pairs["no-tc"] == {"algorithm": "no-tc", "apex-dqfd": "1 / 1", "no-tc": "–"}


def test_other_evaluation_conditions_get_own_columns() -> None:
    config = preset("no-demos", env="ALE/Pong-v5")
    plain = make_evaluation(config.env, 10)
    sticky = make_evaluation(config.env, 4, sticky=0.25)
    high_epsilon = make_evaluation(config.env, 2, epsilon=0.05)
    columns = build_columns(
        group_runs([make_run(config, make_rows(1), plain, sticky, high_epsilon)]), "noop"
    )
    assert {c.label: c.scores[config.env].values.tolist() for c in columns} == {
        "no-demos": [10],
        "no-demos (evaluated: sticky 0.25)": [4],
        "no-demos (evaluated: ε 0.05)": [2],
    }
    trained = replace(config, environment__sticky_prob=0.25)
    columns = build_columns(group_runs([make_run(trained, make_rows(1), plain, sticky)]), "noop")
    assert [c.label for c in columns] == [
        "no-demos, sticky 0.25 (evaluated: no sticky actions)",
        "no-demos, sticky 0.25",
    ]


def test_non_atari_tables_omit_the_paper() -> None:
    env = "CartPole-v1"
    runs = [
        make_run(preset(name, env=env), make_rows(1), make_evaluation(env, 9))
        for name in ("no-demos", "apex-dqn")
    ]
    groups = group_runs(runs)
    table = score_tables.scores_table(groups, "noop")
    assert table is not None
    assert table.header == ("environment", "no-demos", "apex-dqn")
    assert (table.name, table.title) == ("scores_evaluated", "Evaluated scores")
    assert score_tables.normalised_table(groups) is None
    pairs = table_texts(score_tables.pairwise_table(groups, "noop"))
    assert pairs["no-demos"]["apex-dqn"] == pairs["apex-dqn"]["no-demos"] == "1 / 1"
    assert score_tables.pairwise_table(groups[:1], "noop") is None
    assert tables.settings_table(groups[:1]) is None
    evaluations = tables.evaluations_table(groups)
    assert evaluations is not None
    assert evaluations.header[-1] == "best"
    assert evaluations.rows[0][3].text == "ε 0.001"
    assert "frames" not in tables.runs_table(groups).header


def test_evaluations_table_lists_statistics() -> None:
    env = "ALE/MontezumaRevenge-v5"
    config = preset("no-demos", env=env)
    groups = group_runs(
        [
            make_run(
                config,
                make_rows(1),
                make_evaluation(env, 3490),
                make_evaluation(env, 9, starts="human"),
            )
        ]
    )
    table = tables.evaluations_table(groups)
    assert table is not None
    noop, human = ([cell.text for cell in row] for row in table.rows)
    assert noop[3:] == [
        "no-op starts, ε 0.001",
        "2",
        "3,490",
        "3,490",
        "3,490",
        "3,491",
        "73 %",
        "-90 %",
    ]
    assert human[3:5] == ["human starts, ε 0.001", "2"]
    assert human[-1] == "–"
    assert tables.evaluations_table(group_runs([make_run(config, make_rows(1))])) is None


def test_settings_table_lists_differences() -> None:
    groups = group_runs(
        [make_run(c, make_rows(1)) for c in (BASE_CONFIG, replace(BASE_CONFIG, learner__gamma=0.5))]
    )
    table = tables.settings_table(groups)
    assert table is not None
    assert [[c.text for c in row] for row in table.rows] == [["learner.gamma", "0.5", "0.999"]]
