"""Suites: the grid of a file, and errors before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lookfurther.cli.main import main
from lookfurther.cli.train import parse_train_options
from lookfurther.config import Config, replace
from lookfurther.envs.naming import game_of
from lookfurther.errors import ConfigError
from lookfurther.evaluation import suite
from lookfurther.evaluation.paper_scores import game_titles
from lookfurther.evaluation.suite_evaluation import SuiteEvaluation
from lookfurther.presets import PRESETS, preset
from lookfurther.training.config_json import to_json
from lookfurther.validation import validate

ROOT = Path(__file__).parents[1]
TINY_SUITE = """
presets = ["no-demos", "apex-dqn"]
seeds = [0, 1]
scale = "small"
envs = ["CartPole-v1", "Acrobot-v1"]
[budget]
steps = 400
[settings]
learner.gamma = 0.9
"replay.horizons" = [1, 2]
[settings.replay]
learning_starts = 100
capacity = 2000
[settings.actor]
lanes = 4
"""
ONE_JOB_SUITE = (
    TINY_SUITE.replace(', "apex-dqn"', "").replace(', "Acrobot-v1"', "").replace("[0, 1]", "[0]")
)


def write_suite(folder: Path, text: str) -> str:
    path = folder / "tiny.toml"
    path.write_text(text)
    return str(path)


def build_suite_jobs(folder: Path, text: str) -> list[suite.SuiteJob]:
    return suite.build_jobs(suite.read_suite(write_suite(folder, text))[1], folder / "out")


# The grid


def test_suite_file_builds_grid_with_settings(tmp_path: Path) -> None:
    found = build_suite_jobs(tmp_path, TINY_SUITE)
    cells = [(j.config.env, j.config.preset, j.config.run.seed) for j in found]
    assert cells == [
        (env, name, seed)
        for env in ("CartPole-v1", "Acrobot-v1")
        for name in ("no-demos", "apex-dqn")
        for seed in (0, 1)
    ]
    assert len({j.folder for j in found}) == 8
    for job in found:
        usual = preset(job.config.preset, "small")
        changed = replace(
            usual,
            env=job.config.env,
            learner__gamma=0.9,
            replay__horizons=(1, 2),
            replay__learning_starts=100,
            replay__capacity=2000,
            actor__lanes=4,
            run__steps=400,
            run__seed=job.config.run.seed,
            run__folder=str(job.folder),
        )
        assert job.config == changed


@settings(max_examples=20)
@given(
    st.sampled_from(sorted(PRESETS)),
    st.booleans(),
    st.sampled_from([(), (16,), (16, 32)]),
    st.floats(0, 1),
    st.sampled_from(["raw", "clip"]),
)
def test_train_arguments_reproduce_job_settings(
    name: str, full: bool, hidden: tuple[int, ...], gamma: float, reward: str
) -> None:
    """All settings of a suite reach the process that trains."""
    config = preset(name, "small", env="CartPole-v1", run__folder="a b/c", run__minutes=0.5)
    config = replace(config, environment__full_actions=full, network__hidden=hidden)
    config = replace(config, learner__gamma=gamma, environment__reward_transform=reward)
    demos = ("x/y-v0",) if config.uses_demos else ()
    job = suite.SuiteJob(validate(replace(config, demos=demos)), "small")
    command, *words = job.train_arguments()
    assert command == "train"
    options = parse_train_options(words)
    assert options.config == job.config
    assert not options.resume


def test_demo_names_follow_game(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A preset with demonstrations gets those of its game, another one gets none."""
    monkeypatch.setattr(suite.catalog, "find_set", lambda word: word)
    text = 'presets = ["apex-dqfd", "no-demos"]\ndemos = ["me/{game}-v0", "all-v0"]\n'
    found = build_suite_jobs(tmp_path, text + 'envs = ["ALE/MontezumaRevenge-v5", "CartPole-v1"]')
    assert [job.config.demos for job in found] == [
        ("me/montezuma_revenge-v0", "all-v0"),
        (),
        ("me/CartPole-v0", "all-v0"),
        (),
    ]


def test_shipped_suites_match_paper(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """42 games in the paper's order, and the six games and five curves of Figure 3."""
    pytest.importorskip("ale_py")
    monkeypatch.setattr(suite.catalog, "find_set", lambda word: word)
    found = suite.build_jobs(suite.read_suite("paper")[1], tmp_path)
    assert [game_of(j.config.env) for j in found[::2]] == list(game_titles())
    assert {j.config.preset for j in found} == {"apex-dqfd", "apex-dqfd-deeper"}
    found = suite.build_jobs(suite.read_suite("ablation")[1], tmp_path)
    games = {"montezuma_revenge", "private_eye", "ms_pacman", "seaquest", "hero", "kangaroo"}
    assert {game_of(j.config.env) for j in found} == games
    variants = {name for name, p in PRESETS.items() if p.description.startswith("Fig. 3")}
    assert {j.config.preset for j in found} == variants | {"apex-dqfd"}
    assert len(found) == 30
    assert all(j.config.run.steps == Config().run.steps for j in found)


def test_suite_of_five_games_has_one_set_of_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("ale_py")
    monkeypatch.setattr(suite.catalog, "find_set", lambda word: word)
    data = suite.read_suite(str(ROOT / "benchmarks" / "five_games.toml"))[1]
    jobs = suite.build_jobs(data, tmp_path)
    assert len({job.config.env for job in jobs}) == len(jobs) == 5
    same: dict[str, Any] = {"env": "", "demos": (), "run__folder": ""}
    assert len({replace(job.config, **same) for job in jobs}) == 1
    for job in jobs:
        demos = tuple(f"{kind}/{game_of(job.config.env)}-v0" for kind in ("starts", "perturbed"))
        assert job.config.demos == demos
        assert job.evaluation == SuiteEvaluation(200, ("noop", "human"), (), demos)


# Errors


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("no-demos", "nodemos"), "unknown preset 'nodemos'"),
        (("CartPole-v1", "CartPool-v1"), "CartPool"),
        (("learner.gamma", "learner.gama"), "unknown setting learner.gama"),
        (("0.9", "9.0"), "learner.gamma must be in"),
        (("0.9", '"high"'), "learner.gamma must be a finite number"),
        (('"small"', '"smal"'), "unknown scale 'smal'"),
        (("scale", "scales"), "unknown key scales"),
        (("steps", "hours"), "unknown budget.hours"),
        (("seeds = [0, 1]", "seeds = [0, 0]"), "seeds must be a list of whole numbers, each once"),
        (("seeds = [0, 1]", "seeds = 3"), "seeds must be a list, not 3"),
        (("lanes = 4", "lanes = 4\n[settings.run]\nseed = 3"), "settings.run.seed is the suite's"),
        (("no-demos", "apex-dqfd"), "no demonstrations are given"),
        (("presets =", 'demos = ["no/such-v0"]\npresets = ["no-tc"] #'), "no/such-v0"),
        (("[budget]", "[budget"), "cannot be read"),
        (("[budget]", "[evaluation]\nepisode = 5\n[budget]"), "unknown evaluation.episode"),
        (("[budget]", "[evaluation]\nepisodes = 0\n[budget]"), "evaluation.episodes must be 1 or"),
        (
            ("[budget]", "[evaluation]\nstarts = 'noop'\n[budget]"),
            "evaluation.starts must be a list",
        ),
        (
            ("[budget]", "[evaluation]\nstarts = ['no']\n[budget]"),
            "evaluation.starts must be a list",
        ),
        (
            ("[budget]", "[evaluation]\nstarts = ['human']\n[budget]"),
            "evaluation.starts human needs an Atari game; CartPole-v1 is not one",
        ),
    ],
)
def test_invalid_suite_prints_one_line_and_starts_nothing(
    change: tuple[str, str], message: str, tmp_path: Path, capsys: Any
) -> None:
    assert change[0] in TINY_SUITE
    path = write_suite(tmp_path, TINY_SUITE.replace(*change))
    assert main(["suite", path, "--out", str(tmp_path / "out")]) in (2, 4)
    captured = capsys.readouterr()
    assert message in captured.err
    assert len(captured.err.splitlines()) == 1
    assert captured.out == ""
    assert not (tmp_path / "out").exists()


def test_unknown_suite_lists_shipped_suites(capsys: Any) -> None:
    assert main(["suite", "papers"]) == 2
    assert "one of ablation, paper" in capsys.readouterr().err


def test_run_dir_with_other_settings_is_refused(tmp_path: Path) -> None:
    [job] = build_suite_jobs(tmp_path, ONE_JOB_SUITE)
    job.folder.mkdir(parents=True)
    (job.folder / "config.json").write_text(to_json(replace(job.config, learner__gamma=0.8)))
    with pytest.raises(ConfigError, match="holds a run of other settings"):
        build_suite_jobs(tmp_path, ONE_JOB_SUITE)
    longer = replace(job.config, run__steps=7)  # the length of a run may differ
    (job.folder / "config.json").write_text(to_json(longer))
    assert [j.state for j in build_suite_jobs(tmp_path, ONE_JOB_SUITE)] == ["waiting"]
