"""Reports: what evaluations leave, which runs are averaged, the paper's tables, the page."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookfurther.cli.main import main
from lookfurther.config import Config, replace, to_json
from lookfurther.errors import ConfigError, LookFurtherError
from lookfurther.evaluation import results
from lookfurther.evaluation.paper_scores import START_TITLES, StartType, game_titles, printed_scores
from lookfurther.evaluation.results import Evaluation, EvaluationConditions, ReturnCurve
from lookfurther.presets import preset
from lookfurther.report import score_tables, tables
from lookfurther.report.comparison import plot_human_relative, plot_performance_profile
from lookfurther.report.curves import (
    CURVE_POINTS,
    MetricCurve,
    compute_confidence_band,
    extract_curve,
)
from lookfurther.report.figure_style import assign_line_styles, save_figure
from lookfurther.report.runs import (
    SEED_SETTINGS,
    RunData,
    config_fingerprint,
    find_runs,
    flatten_settings,
    group_runs,
)
from lookfurther.report.score_columns import RunScores, ScoreColumn, build_columns
from lookfurther.report.table import ReportTable

ROOT = Path(__file__).parents[1]
ROMS = {game: f"ALE/{game.title().replace('_', '')}-v5" for game in game_titles()}


def evaluated(env: str, score: float, **conditions: Any) -> Evaluation:
    """An evaluation of two episodes around a score."""
    scores = np.array([score - 1, score + 1])
    return Evaluation(EvaluationConditions(env, **conditions), scores, np.array([10, 20]))


def made(config: Config, rows: list[dict[str, Any]], *evaluations: Evaluation) -> RunData:
    """A run that was never written down."""
    by_name = {e.conditions.folder_name: e for e in evaluations}
    return RunData(Path(f"run-{config.run.seed}"), config, rows, by_name, None)


def rows(slope: float, points: int = 5) -> list[dict[str, Any]]:
    """Metrics whose return grows by `slope` every 100 steps."""
    return [
        {
            "step": 100 * i,
            "frames": 400 * i,
            "minutes": 0.5 * i,
            "updates": 10 * i,
            "return_low_epsilon": slope * i,
            "return_best": 2 * slope * i,
            "steps_per_second": 1000.0 + i,
            "loss_td": 1.0 / i,
            "loss_im": 0.0,
            "priority_agent": 0.5,
        }
        for i in range(1, points + 1)
    ]


def written(run: RunData, path: Path) -> Path:
    """The folder of a run."""
    path.mkdir(parents=True)
    (path / "config.json").write_text(to_json(run.config))
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in run.rows))
    (path / "versions.json").write_text(json.dumps({"commit": run.commit}))
    for evaluation in run.evaluations.values():
        results.write_evaluation(path, evaluation)
    return path


# What an evaluation leaves


finite = st.floats(-1e9, 1e9)
traces = st.lists(st.sampled_from([0.0, 0.0, 1.0, -2.0, 100.0]), max_size=30).map(np.array)


@given(
    scores=st.lists(st.tuples(finite, st.integers(0, 10**9)), min_size=1, max_size=20),
    starts=st.sampled_from(list(START_TITLES)),
    sticky=st.sampled_from([0.0, 0.25]),
    epsilon=st.sampled_from([0.001, 0.05]),
    best=st.dictionaries(st.sampled_from(results.CURVE_PLAYERS), traces),
)
def test_an_evaluation_comes_back_as_it_was_written(
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
    episodes = {player: ReturnCurve.from_rewards(rewards) for player, rewards in best.items()}
    folder = results.write_evaluation(run, Evaluation(conditions, values, steps, episodes))
    ((name, found),) = results.read_evaluations(run).items()
    assert name == folder.name == conditions.folder_name
    assert found.conditions == conditions
    assert found.scores.tolist() == values.tolist()
    assert found.steps.tolist() == steps.tolist()
    assert found.best_curves.keys() == episodes.keys()
    for player, trace in episodes.items():
        assert found.best_curves[player].frames.tolist() == trace.frames.tolist()
        assert found.best_curves[player].returns.tolist() == trace.returns.tolist()
    told = json.loads((folder / "summary.json").read_text())
    assert told["mean"]["value"] == pytest.approx(values.mean())
    assert (told["mean"]["low"] is None) == (len(values) == 1)


@given(traces, st.integers(1, 4))
def test_a_trace_is_the_cumulative_return_at_every_frame(rewards: np.ndarray, repeat: int) -> None:
    trace = ReturnCurve.from_rewards(rewards, repeat)
    assert (trace.frames[0], trace.frames[-1]) == (0, repeat * len(rewards))
    assert (np.diff(trace.frames) > 0).all()
    for step in range(len(rewards) + 1):
        last = np.searchsorted(trace.frames, step * repeat, side="right") - 1
        assert trace.returns[last] == rewards[:step].sum()


def test_a_summary_by_hand() -> None:
    """Montezuma's Revenge: random 0, human 4,753.3, the paper's expert 34,900."""
    env = "ALE/MontezumaRevenge-v5"
    scores = np.array([0.0, 400, 2500, 2500, 2600, 3500, 6600, 21900])
    told = Evaluation(EvaluationConditions(env), scores, np.full(8, 10)).summary()
    assert (told["mean"]["value"], told["median"]["value"], told["best"]) == (5000, 2550, 21900)
    assert told["iqm"]["value"] == (2500 + 2500 + 2600 + 3500) / 4
    assert told["mean"]["low"] < 5000 < told["mean"]["high"]
    assert told["human_normalised"] == pytest.approx(100 * 5000 / 4753.3)
    assert told["expert_relative"] == pytest.approx(100 * (5000 - 34900) / 34900)
    own = {"expert": ReturnCurve.from_rewards(np.array([0.0, 10_000.0]))}
    told = Evaluation(EvaluationConditions(env), scores, np.full(8, 10), own).summary()
    assert (told["expert"], told["expert_relative"]) == (10_000, -50)
    told = Evaluation(EvaluationConditions(env, "human"), scores, np.full(8, 10), own).summary()
    assert told["human_normalised"] == pytest.approx(100 * (5000 - 25) / (4182 - 25))
    assert (told["expert"], told["expert_relative"]) == (None, None)
    told = Evaluation(EvaluationConditions("CartPole-v1"), scores, np.full(8, 10)).summary()
    assert (told["human_normalised"], told["expert_relative"]) == (None, None)


def test_an_evaluation_takes_the_place_of_an_older_one_or_is_not_there(tmp_path: Path) -> None:
    results.write_evaluation(tmp_path, evaluated("CartPole-v1", 10))
    folder = results.write_evaluation(tmp_path, evaluated("CartPole-v1", 20))
    results.write_evaluation(tmp_path, evaluated("CartPole-v1", 30, sticky=0.25))
    found = results.read_evaluations(tmp_path)
    assert {name: e.scores.mean() for name, e in found.items()} == {
        "noop": 20,
        "noop-sticky-0.25": 30,
    }
    (folder / "summary.json").unlink()  # as a kill before its last file leaves it
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
def test_a_broken_evaluation_is_named(tmp_path: Path, file: str, text: str, reason: str) -> None:
    folder = results.write_evaluation(tmp_path, evaluated("CartPole-v1", 10))
    (folder / file).write_text(text)
    with pytest.raises(LookFurtherError, match=reason) as error:
        results.read_evaluations(tmp_path)
    assert file in str(error.value)
    assert "\n" not in str(error.value)


# Which runs are averaged


BASE = preset("apex-dqfd", env="ALE/Pong-v5", demos=("pong/mine-v0",))


def other(value: Any) -> Any:
    """A value of the same type that differs."""
    if isinstance(value, bool):
        return not value
    return {str: f"{value}x", int: 7, float: 0.123, tuple: ("y",)}[type(value)]


@pytest.mark.parametrize("name", flatten_settings(BASE))
def test_runs_that_differ_in_any_setting_but_the_seed_are_not_averaged(name: str) -> None:
    changed = replace(BASE, **{name.replace(".", "__"): other(flatten_settings(BASE)[name])})
    assert flatten_settings(changed)[name] != flatten_settings(BASE)[name]
    assert (config_fingerprint(changed) == config_fingerprint(BASE)) == (name in SEED_SETTINGS)
    changed = replace(changed, run__seed=5)
    groups = group_runs([made(BASE, rows(1)), made(changed, rows(1))])
    assert len(groups) == (1 if name in SEED_SETTINGS else 2)
    if name not in SEED_SETTINGS and changed.env == BASE.env:
        assert len({g.variant for g in groups}) == 2


def test_a_variant_has_one_name_across_environments_and_several_within_one() -> None:
    pong = [replace(BASE, run__seed=seed) for seed in range(3)]
    hero = replace(BASE, env="ALE/Hero-v5", demos=("hero/mine-v0",))
    fast = replace(BASE, learner__gamma=0.9)
    sticky = replace(preset("no-tc", env="ALE/Pong-v5"), environment__sticky_prob=0.25)
    found = {
        (g.env, g.variant): len(g.runs)
        for g in group_runs([made(c, rows(1)) for c in (*pong, hero, fast, sticky)])
    }
    assert found == {
        ("ALE/Hero-v5", "apex-dqfd, gamma 0.999"): 1,
        ("ALE/Pong-v5", "apex-dqfd, gamma 0.999"): 3,
        ("ALE/Pong-v5", "apex-dqfd, gamma 0.9"): 1,
        ("ALE/Pong-v5", "no-tc, sticky 0.25"): 1,
    }


def test_a_run_counts_once() -> None:
    with pytest.raises(ConfigError, match="run-0 and run-0 have the same settings and seed"):
        group_runs([made(BASE, rows(1)), made(replace(BASE, run__folder="elsewhere"), rows(1))])


def test_run_folders_are_found_once_alone_or_in_a_folder(tmp_path: Path) -> None:
    paths = [written(made(BASE, []), tmp_path / "runs" / name) for name in "ab"]
    (tmp_path / "runs" / "no run").mkdir()
    assert find_runs([tmp_path / "runs", paths[1], tmp_path / "runs" / "." / "a"]) == paths
    with pytest.raises(ConfigError, match="no run holds no run"):
        find_runs([tmp_path / "runs" / "no run"])


# Curves


def test_a_band_is_the_mean_where_all_runs_have_values() -> None:
    short = MetricCurve(np.array([0.0, 100]), np.array([0.0, 100]))
    late = MetricCurve(np.array([50.0, 200]), np.array([150.0, 600]))
    found = compute_confidence_band([short, late])
    assert found is not None
    assert (found.x[0], found.x[-1]) == (50, 100)
    np.testing.assert_allclose(found.mean, 2 * found.x)
    assert (found.low <= found.mean).all()
    assert (found.mean <= found.high).all()
    alone = compute_confidence_band([short])
    assert alone is not None
    assert np.isnan(alone.low).all()
    assert compute_confidence_band([short, MetricCurve(np.array([150.0]), np.array([1.0]))]) is None


def test_a_line_has_the_known_values_and_keeps_the_mean_of_many() -> None:
    odd = [
        {"step": 1, "loss": None},
        {"step": 2, "loss": 4.0},
        {"step": 3},
        {"step": 4, "loss": "x"},
    ]
    found = extract_curve(made(BASE, odd), "step", "loss")
    assert found is not None
    assert (found.x.tolist(), found.y.tolist()) == ([2.0], [4.0])
    assert extract_curve(made(BASE, odd), "step", "loss_td") is None
    many = [{"step": i, "loss": float(i % 2)} for i in range(20 * CURVE_POINTS)]
    found = extract_curve(made(BASE, many), "step", "loss")
    assert found is not None
    assert len(found.x) == 2 * CURVE_POINTS
    np.testing.assert_allclose(found.y, 0.5)


# Tables


def shown(table: ReportTable | None) -> dict[str, dict[str, str]]:
    """The texts of a table by row and column."""
    assert table is not None
    return {
        row[0].text: {h: c.text for h, c in zip(table.header, row, strict=True)}
        for row in table.rows
    }


def paper_runs(agent: str, starts: StartType = "noop") -> list[RunData]:
    """Runs on the paper's 42 games that score what the paper prints."""
    table = printed_scores(starts)
    configs = {g: preset("apex-dqfd-deeper", env=env) for g, env in ROMS.items()}
    return [
        made(configs[g], rows(1), evaluated(configs[g].env, table[g][agent], starts=starts))
        for g in game_titles()
    ]


def test_runs_with_the_papers_scores_give_the_papers_tables() -> None:
    runs = [
        dataclasses.replace(run, evaluations=run.evaluations | mate.evaluations)
        for run, mate in zip(
            paper_runs("apex_dqfd_deeper"), paper_runs("apex_dqfd_deeper", "human"), strict=True
        )
    ]
    groups = group_runs(runs)
    ours = "apex-dqfd-deeper"
    told = shown(score_tables.normalised_table(groups))
    noop, human = "no-op starts, 42 games", "human starts, 42 games"
    heads = [f"{kind}, {starts}" for kind in ("mean", "median", "IQM") for starts in (noop, human)]
    for head in heads:
        assert told[ours][head] == told["Ape-X DQfD (deeper)"][head]
    assert told[ours][f"mean, {noop}"] == "2,346 %"
    assert told[ours][f"median, {noop}"] == "702 %"
    assert abs(float(told[ours][f"mean, {human}"][:-2].replace(",", "")) - 2028) < 4
    pairs = shown(score_tables.pairwise_table(groups))
    assert [pairs[ours][name] for name in ("Rainbow DQN", "Avg. Human", "Expert")] == [
        "36 / 42",
        "40 / 42",
        "34 / 42",
    ]
    assert pairs[ours]["Ape-X DQfD (deeper)"] == "42 / 42"
    scores = shown(score_tables.scores_table(groups, "noop"))
    assert list(scores) == list(game_titles().values())
    hero = scores["Hero"]
    assert hero[ours] == hero["Ape-X DQfD (deeper)"] == "114,248"
    assert hero["Expert"] == "99,320"
    assert shown(score_tables.scores_table(groups, "human"))["Hero"]["DQfD"] == "–"


def test_scores_are_means_over_seeds_with_what_is_not_evaluated_marked() -> None:
    pong = [replace(BASE, run__seed=seed) for seed in range(2)]
    runs = [made(c, rows(1), evaluated(c.env, s)) for c, s in zip(pong, (10.0, 14.0), strict=True)]
    runs += [made(preset("no-tc", env="ALE/Pong-v5"), rows(3))]
    table = score_tables.scores_table(group_runs(runs), "noop")
    assert table is not None
    assert table.paper_columns == 8
    ((name, ours, without, *paper),) = table.rows
    assert (name.text, ours.text, ours.note) == ("Pong", "12.0", "[10.0, 14.0]")
    assert (without.text, without.note) == ("15.0†", "")
    assert "† not evaluated" in table.caption
    bold = [cell.text for cell in table.rows[0] if cell.is_best]
    assert bold == ["21.0"]  # Ape-X DQfD of the paper
    assert [cell.value for cell in paper][-3:] == [-18.0, 15.0, 0.0]
    assert score_tables.scores_table(group_runs(runs), "human") is None


def test_evaluations_under_other_conditions_are_columns_of_their_own() -> None:
    config = preset("no-demos", env="ALE/Pong-v5")
    plain = evaluated(config.env, 10)
    sticky = evaluated(config.env, 4, sticky=0.25)
    loose = evaluated(config.env, 2, epsilon=0.05)
    found = build_columns(group_runs([made(config, rows(1), plain, sticky, loose)]), "noop")
    assert {c.label: c.scores[config.env].values.tolist() for c in found} == {
        "no-demos": [10],
        "no-demos (evaluated: sticky 0.25)": [4],
        "no-demos (evaluated: ε 0.05)": [2],
    }
    trained = replace(config, environment__sticky_prob=0.25)
    found = build_columns(group_runs([made(trained, rows(1), plain, sticky)]), "noop")
    assert [c.label for c in found] == [
        "no-demos, sticky 0.25 (evaluated: no sticky actions)",
        "no-demos, sticky 0.25",
    ]


def test_other_environments_have_no_papers_columns_and_no_normalised_table() -> None:
    runs = [made(preset(name, env="CartPole-v1"), rows(1)) for name in ("no-demos", "apex-dqn")]
    groups = group_runs(runs)
    table = score_tables.scores_table(groups, "noop")
    assert table is not None
    assert table.header == ("environment", "no-demos", "apex-dqn")
    assert score_tables.normalised_table(groups) is None
    pairs = shown(score_tables.pairwise_table(groups))
    assert pairs["no-demos"]["apex-dqn"] == pairs["apex-dqn"]["no-demos"] == "1 / 1"
    assert score_tables.pairwise_table(groups[:1]) is None
    assert tables.settings_table(groups[:1]) is None


def test_evaluations_are_listed_with_their_statistics() -> None:
    env = "ALE/MontezumaRevenge-v5"
    config = preset("no-demos", env=env)
    groups = group_runs(
        [made(config, rows(1), evaluated(env, 3490), evaluated(env, 9, starts="human"))]
    )
    table = tables.evaluations_table(groups)
    assert table is not None
    noop, human = ([cell.text for cell in row] for row in table.rows)
    assert noop[3:] == ["noop", "2", "3,490", "3,490", "3,490", "3,491", "73 %", "-90 %"]
    assert human[3:5] == ["human", "2"]
    assert human[-1] == "–"
    assert tables.evaluations_table(group_runs([made(config, rows(1))])) is None


def test_settings_that_differ_are_listed() -> None:
    groups = group_runs([made(c, rows(1)) for c in (BASE, replace(BASE, learner__gamma=0.5))])
    table = tables.settings_table(groups)
    assert table is not None
    assert [[c.text for c in row] for row in table.rows] == [["learner.gamma", "0.5", "0.999"]]


# Figures


def bars(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def test_human_relative_bars_by_hand() -> None:
    """Pong: random −20.7, human 14.6; the paper's deeper agent 20.9."""
    table = [ScoreColumn("ours", "ours", {"ALE/Pong-v5": RunScores(np.array([14.0, 15.2]), True)})]
    figure = plot_human_relative(table, assign_line_styles(["ours"]), "noop")
    assert figure is not None
    assert bars(figure) == ["0 %", "18 %"]
    none = [ScoreColumn("ours", "ours", {"CartPole-v1": RunScores(np.array([14.0]), True)})]
    assert plot_human_relative(none, assign_line_styles(["ours"]), "noop") is None


def test_a_profile_needs_scores_that_compare() -> None:
    one = {"CartPole-v1": RunScores(np.array([1.0, 3.0]), True)}
    two = one | {"Acrobot-v1": RunScores(np.array([1.0, 2.0]), True)}
    look = assign_line_styles(["a"])
    assert plot_performance_profile([ScoreColumn("a", "a", two)], look) is None
    figure = plot_performance_profile([ScoreColumn("a", "a", one)], look)
    assert figure is not None
    heights = np.ravel(figure.axes[0].lines[0].get_ydata())
    assert sorted(set(heights.tolist()), reverse=True) == [1.0, 0.5, 0.0]


def test_a_drawing_keeps_its_words_and_its_shape(tmp_path: Path) -> None:
    """Paths are rounded and colours follow the theme, but no number that is read may change."""
    look = assign_line_styles(["a 0.12345"])
    values = np.array([0.123, 0.456])
    figure = plot_performance_profile(
        [ScoreColumn("a 0.12345", "a 0.12345", {"CartPole-v1": RunScores(values, True)})], look
    )
    assert figure is not None
    svg = save_figure(figure, tmp_path / "a.png")
    shown = Page(svg).words
    assert "a 0.12345" in shown
    figure.draw_without_rendering()
    ticks = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert len(ticks) > 3
    assert set(ticks) & set(shown) >= set(ticks[1:-1])
    paths = re.findall(r' d="([^"]*)"', svg)
    assert paths
    assert not re.search(r"\.\d\d", " ".join(paths))
    assert (tmp_path / "a.png").exists()


# The page


class Page(HTMLParser):
    """What a browser would find: tags, anchors, targets and ids that something points to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.ids: set[str] = set()
        self.targets: set[str] = set()
        self.loads: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            elif name in ("href", "xlink:href", "src", "srcset", "data", "action") and value:
                (self.targets.add(value[1:]) if value[0] == "#" else self.loads.append(value))
            self.targets |= set(re.findall(r"url\(#([^)]+)\)", value or ""))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(runs, report) of two variants with two seeds on CartPole, and one run of Pong."""
    home = tmp_path_factory.mktemp("home")
    agent, expert = ReturnCurve.from_rewards(np.ones(60)), ReturnCurve.from_rewards(np.ones(40))
    for name, slope in (("no-demos", 1.0), ("<b>mine</b> & co", 2.0)):
        for seed in range(2):
            config = replace(preset("no-demos", env="CartPole-v1"), preset=name, run__seed=seed)
            scores = np.array([slope, slope + seed])
            best = {"agent": agent, "expert": expert}
            played = Evaluation(EvaluationConditions(config.env), scores, np.array([60, 60]), best)
            written(made(config, rows(slope), played), home / "runs" / f"{slope}-{seed}")
    pong = replace(preset("apex-dqn", env="ALE/Pong-v5"), environment__sticky_prob=0.25)
    written(made(pong, rows(-1)), home / "runs" / "pong")
    unbegun = replace(pong, run__seed=9)
    written(made(unbegun, []), home / "runs" / "unbegun")
    assert main(["report", str(home / "runs"), "--out", str(home / "report")]) == 0
    return home / "runs", home / "report"


def test_the_page_needs_nothing_else(reported: tuple[Path, Path]) -> None:
    text = (reported[1] / "index.html").read_text()
    found = Page(text)
    assert not found.loads
    assert not found.tags & {"script", "link", "img", "iframe", "object", "embed"}
    assert "@import" not in text
    assert found.targets <= found.ids
    assert {"runs", "curves", "scores", "comparison", "imitation", "training"} <= found.targets
    assert found.tags >= {"svg", "table", "nav", "details"}
    assert "var(--muted)" in text
    assert "#222222" not in text  # ink follows the theme


def test_the_page_says_what_the_runs_said(reported: tuple[Path, Path]) -> None:
    text = (reported[1] / "index.html").read_text()
    words = " ".join(Page(text).words)
    assert "<b>mine</b> & co" in words  # as text, not as markup
    assert "<b>mine" not in text
    assert "trained with sticky actions, probability 0.25" in words
    assert "unbegun is left out: it holds no metrics yet" in words
    assert "apex-dqn, sticky 0.25" in words
    assert "no-demos, sticky" not in words


def test_files_hold_the_same_numbers(reported: tuple[Path, Path]) -> None:
    out = reported[1]
    names = {path.name for path in out.iterdir()}
    pictures = {"curves_step.png", "curves_frames.png", "curves_minutes.png", "comparison.png"}
    pictures |= {"imitation.png", "improvement.png", "human_relative_noop.png"}
    pictures |= {"training_CartPole_v1.png", "training_ALE_Pong_v5.png"}
    assert {name for name in names if name.endswith(".png")} == pictures
    for name in pictures:
        assert (out / name).read_bytes().startswith(b"\x89PNG")
    with (out / "curves.csv").open() as file:
        points = [p for p in csv.DictReader(file) if p["axis"] == "frames"]
    for point in points:
        slope = {"no-demos": 1.0, "<b>mine</b> & co": 2.0, "apex-dqn, sticky 0.25": -1.0}
        assert float(point["mean"]) == pytest.approx(
            slope[point["variant"]] * float(point["x"]) / 400
        )
        assert point["runs"] == ("1" if "Pong" in point["environment"] else "2")
    with (out / "scores.csv").open() as file:
        scores = [(s["column"], float(s["score"]), s["evaluated"]) for s in csv.DictReader(file)]
    assert sorted(scores) == [
        ("<b>mine</b> & co", 2.0, "True"),
        ("<b>mine</b> & co", 2.5, "True"),
        ("apex-dqn, sticky 0.25", -5.0, "False"),
        ("no-demos", 1.0, "True"),
        ("no-demos", 1.5, "True"),
    ]


WITHOUT_TORCH = """
import sys
from lookfurther.cli import main
code = main(sys.argv[1:])
assert "torch" not in sys.modules
sys.exit(code)
"""


@pytest.mark.slow
def test_the_same_runs_give_the_same_page_without_torch(
    reported: tuple[Path, Path], tmp_path: Path
) -> None:
    runs, out = reported
    command = [sys.executable, "-c", WITHOUT_TORCH, "report", str(runs), "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"report: {tmp_path / 'index.html'}\n"
    for path in out.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name


def test_one_run_without_a_finished_episode_has_a_report_too(tmp_path: Path) -> None:
    run = made(preset("no-demos", env="CartPole-v1"), [{"step": 100, "return_low_epsilon": None}])
    written(run, tmp_path / "run")
    assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 0
    words = " ".join(Page((tmp_path / "out" / "index.html").read_text()).words)
    assert "no finished episode yet" in words
    assert "Ablation" not in words


def broken_config(path: Path) -> None:
    (path / "config.json").write_text("{")


def broken_versions(path: Path) -> None:
    (path / "versions.json").write_text("{")


def no_metrics(path: Path) -> None:
    (path / "metrics.jsonl").unlink()


@pytest.mark.parametrize(
    ("spoil", "words", "reason"),
    [
        (None, ["report"], "report needs a run folder, or a folder of them"),
        (None, ["report", "nowhere"], "nowhere holds no run: give run folders"),
        (None, ["report", "run", "--uot", "x"], "did you mean --out"),
        (None, ["report", "run", "--out", "run/lock"], "run/lock cannot hold the report"),
        (broken_config, ["report", "run"], "config.json cannot be read: configuration is not JSON"),
        (broken_versions, ["report", "run"], "versions.json cannot be read"),
        (no_metrics, ["report", "run"], "run holds no metrics yet"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    spoil: Callable[[Path], None] | None,
    words: list[str],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    path = written(made(BASE, rows(1)), tmp_path / "run")
    (path / "lock").touch()
    if spoil is not None:
        spoil(path)
    assert main(words) in (1, 2)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert re.search(reason, said), said
    assert not (tmp_path / "report").exists() or not list((tmp_path / "report").iterdir())


@pytest.mark.slow
def test_fifty_runs(tmp_path: Path) -> None:
    """Ten games with five seeds each: a panel for every game, a row in every table."""
    for i, run in enumerate(paper_runs("apex_dqfd")[:10]):
        for seed in range(5):
            config = replace(run.config, run__seed=seed)
            written(made(config, rows(seed), *run.evaluations.values()), tmp_path / f"{i}-{seed}")
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    words = Page((tmp_path / "out" / "index.html").read_text()).words
    for name in list(game_titles().values())[:10]:
        assert words.count(name) >= 5, name  # runs, three curves, scores
    assert "50" in words
