"""Resuming from a forged checkpoint ends with a one-line error, or with a valid run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from lookfurther import train
from lookfurther.errors import CheckpointError, LookFurtherError
from lookfurther.training.checkpoints import checkpoint
from tests import forged
from tests.training_runs import newest_checkpoint, tiny_config


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has stopped at its first checkpoint."""
    return train(tiny_config(tmp_path_factory.mktemp("forged") / "run", run__steps=200)).folder


@pytest.fixture
def run(stopped_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped_run, tmp_path / "run"))


def resume_run(run: Path) -> None:
    train(tiny_config(run, run__steps=204), resume=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [("updates", "x"), ("updates", -1), ("updates", 2**80), ("seconds", None), ("seconds", "1")],
)
def test_invalid_metadata_stops_resume(run: Path, name: str, value: Any) -> None:
    saved = newest_checkpoint(run)
    forged.replace_metadata(saved.path, json.dumps(saved.metadata | {name: value}))
    with pytest.raises(CheckpointError, match=f"unusable {name}: ") as caught:
        resume_run(run)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("part", ["weights", "adam", "agent_replay", "returns", "actor"])
@pytest.mark.parametrize("kind", ["absent", "empty", "other shapes"])
def test_forged_tensors_stop_resume(run: Path, part: str, kind: str) -> None:
    saved = newest_checkpoint(run)
    files = dict(saved.files)
    if kind == "absent":
        del files[part]
    else:
        shape = (0,) if kind == "empty" else (3, 5, 7)
        files[part] = {name: torch.zeros(shape) for name in files[part]}
    shutil.rmtree(saved.path)
    checkpoint.save(saved.path.parent, 200, files, saved.metadata, keep=1)
    with pytest.raises(LookFurtherError) as caught:
        resume_run(run)
    assert "\n" not in str(caught.value)


def test_valid_copy_of_run_resumes(run: Path) -> None:
    """So the other tests fail only because of what they forge."""
    resume_run(run)
    assert newest_checkpoint(run).metadata["step"] == 204


@pytest.mark.parametrize("score", ["x", None, float("nan"), 10**400])
def test_forged_best_score_prints_warning(
    run: Path, score: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = newest_checkpoint(run)
    forged.replace_metadata(
        checkpoint.save(run / "best", 200, {}, saved.metadata, keep=1),
        json.dumps(saved.metadata | {"score": score}),
    )
    resume_run(run)
    assert "warning: the best weights so far are lost: " in capsys.readouterr().out
