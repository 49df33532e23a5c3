"""Fuzz the readers of checkpoints and runs with altered and forged files."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookfurther import agent
from lookfurther.cli.suite import format_row
from lookfurther.errors import LookFurtherError
from lookfurther.evaluation import results, suite
from lookfurther.evaluation.results import Evaluation, EvaluationConditions, ReturnCurve
from lookfurther.report import runs, tables
from lookfurther.report.curves import compute_confidence_band, extract_curves
from lookfurther.report.learning_curve import metric_series
from lookfurther.report.model_card import metrics_at_step
from lookfurther.training.monitoring import metrics
from lookfurther.types import Spec
from tests import forged
from tests.fuzzing import damaged, fuzz, read_or_one_line_error

pytestmark = pytest.mark.timeout(3600)  # LOOKFURTHER_FUZZ decides the amount of work


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


DEEP = "[" * 100_000 + "]" * 100_000
VALUES = [None, True, -1, 0, 2**31, 2**70, 10**400, 1e308, float("nan"), "x", "", [], {}, [[1]]]
values = st.sampled_from(VALUES)


@st.composite
def altered(draw: st.DrawFn, data: Any) -> Any:
    """Plain data with one value replaced, dropped or added."""
    data = copy.deepcopy(data)
    parent, key = data, draw(st.sampled_from([*data, "new"]))
    while isinstance(parent.get(key), dict) and draw(st.integers(0, 9)):
        parent = parent[key]
        key = draw(st.sampled_from([*parent, "new"]))
    if draw(st.booleans()) or key == "new":
        parent[key] = draw(values)
    elif isinstance(parent[key], list) and parent[key]:
        parent[key][draw(st.integers(0, len(parent[key]) - 1))] = draw(values)
    else:
        del parent[key]
    return data


def sound_metadata() -> dict[str, Any]:
    """Valid checkpoint metadata after a round trip through JSON."""
    config = forged.cartpole_config(
        environment__wrappers=("gymnasium.wrappers:FlattenObservation",)
    )
    return json.loads(json.dumps(forged.checkpoint_metadata(config)))


@fuzz
@given(data=st.data())
def test_forged_checkpoint_metadata(folder: Path, data: st.DataObject) -> None:
    """The hashes and all other files of the checkpoint are valid."""
    path = forged.write_checkpoint(folder / "forged", sound_metadata())
    metadata = data.draw(altered(sound_metadata()))
    forged.replace_metadata(path, json.dumps(metadata))
    read_or_one_line_error(lambda: agent.Agent.load(path))
    job = suite.SuiteJob(forged.cartpole_config(run__folder=str(folder / "forged")), "small")
    link = folder / "forged" / "checkpoints"
    link.unlink(missing_ok=True)
    link.symlink_to(path.parent)
    assert job.has_used_budget() in (True, False)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (DEEP, "cannot be read"),
        ("[]", "is not an object"),
        ("{}", "has an unusable config"),
        ('{"x": "' + "x" * 2**20 + '"}', "has more than 1,048,576 bytes"),
    ],
    ids=["deep", "list", "empty", "large"],
)
def test_invalid_checkpoint_metadata_error_gives_reason(
    folder: Path, text: str, reason: str
) -> None:
    path = forged.write_checkpoint(folder / "named", sound_metadata())
    forged.replace_metadata(path, text)
    with pytest.raises(LookFurtherError, match=reason) as caught:
        agent.Agent.load(path)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("step", -1),
        ("step", 2**70),
        ("step", True),
        ("spec", None),
        ("spec", {"env": "CartPole-v1"}),
        ("spec", Spec("CartPole-v1", (2**40,), 1, "float32", 2, 1.0)._asdict()),
        ("spec", Spec("CartPole-v1", (4,), 1, "float32", 2**40, 1.0)._asdict()),
        ("spec", Spec("CartPole-v1", (4, 1, 1, 1), 1, "float32", 2, 1.0)._asdict()),
    ],
)
def test_unusable_checkpoint_field_error_names_field(folder: Path, name: str, value: Any) -> None:
    path = forged.write_checkpoint(folder / "unusable", sound_metadata())
    forged.replace_metadata(path, json.dumps(sound_metadata() | {name: value}))
    with pytest.raises(LookFurtherError, match=f"facts.json has an unusable {name}: "):
        agent.Agent.load(path)


@pytest.mark.parametrize("plane", [[2**30], [1, 2**15, 2**15]])
def test_huge_spec_takes_no_memory(folder: Path, plane: list[int]) -> None:
    """Its network would have 2 TB; the weights in the checkpoint do not fit it."""
    path = forged.write_checkpoint(folder / "huge", sound_metadata())
    spec = sound_metadata()["spec"] | {"plane": plane}
    forged.replace_metadata(path, json.dumps(sound_metadata() | {"spec": spec}))
    with pytest.raises(LookFurtherError, match="the weights do not fit this network: "):
        agent.Agent.load(path)


def compute_report(run: runs.RunData) -> None:
    """Compute the tables and curves of a report without drawing it."""
    group = runs.group_runs([run])
    tables.runs_table(group)
    for key in ("return_low_epsilon", "minutes", "loss_td"):
        band = compute_confidence_band(extract_curves([run], "step", key))
        assert band is None or np.isfinite(band.mean).all()
        metric_series(run.rows, key)


def read_run(path: Path) -> None:
    """Read the metrics of a run folder with every reader."""
    run = runs.load_run(path)
    if run.rows:
        compute_report(run)
    metrics_at_step(path, 100)
    job = suite.SuiteJob(forged.cartpole_config(run__folder=str(path), run__minutes=5.0), "small")
    job.read_newest_row()
    assert 0 <= job.budget_used <= 1
    format_row(job)


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    """A sound run with an evaluation."""
    path = forged.write_run(folder / "run", forged.cartpole_config())
    curve = ReturnCurve.from_rewards(np.ones(3))
    evaluation = Evaluation(
        EvaluationConditions("CartPole-v1"), np.ones(2), np.ones(2, int), {"agent": curve}
    )
    results.write_evaluation(path, evaluation)
    (path / "versions.json").write_text(json.dumps({"commit": "abc"}))
    return path


RUN_FILES = [
    "config.json",
    "metrics.jsonl",
    "versions.json",
    "evaluation/noop/summary.json",
    "evaluation/noop/episodes.csv",
    "evaluation/noop/best_returns.csv",
]


@pytest.mark.parametrize("file", RUN_FILES)
@fuzz
@given(data=st.data())
def test_fuzzed_run_files(run: Path, file: str, data: st.DataObject) -> None:
    """Truncated, altered or spliced; JSON also with forged values or deep nesting."""
    path = run / file
    whole = path.read_bytes()
    if file.endswith("csv") or data.draw(st.booleans()):
        path.write_bytes(data.draw(damaged(whole)))
    else:
        content = json.loads(whole)
        path.write_text(data.draw(st.sampled_from([json.dumps(data.draw(altered(content))), DEEP])))
    try:
        read_or_one_line_error(lambda: read_run(run))
        read_or_one_line_error(
            lambda: [e.summary() for e in results.read_evaluations(run).values()]
        )
    finally:
        path.write_bytes(whole)


def test_invalid_metrics_rows_are_skipped(folder: Path) -> None:
    """A metrics file with deep nesting, wrong types, NaN and absurd numbers."""
    path = forged.write_run(folder / "rows", forged.cartpole_config())
    lines = [DEEP, "[]", "null", '{"step": -5}', '{"step": true}', '{"step": 1e9}', '{"step": "1"}']
    odd = ["NaN", "Infinity", "1e308", "-1e308", "1" * 4000, '"x"', "[[]]", "{}", "true", "null"]
    lines += [f'{{"step": {i}, "minutes": {v}, "loss_td": {v}}}' for i, v in enumerate(odd)]
    (path / "metrics.jsonl").write_text("\n".join(lines))
    rows = metrics.read_metrics(path / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(len(odd)))
    assert {metrics.get_metric(row, "minutes") for row in rows} == {None}
    read_run(path)
    (path / "metrics.jsonl").write_text("\n".join([*lines, json.dumps(forged.METRICS_ROW)]))
    read_run(path)
    assert metrics_at_step(path, 100) == forged.METRICS_ROW
