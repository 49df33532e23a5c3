"""Warm starts: a new run begins with the weights of an earlier one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from lookfurther import train
from lookfurther.cli.main import main
from lookfurther.errors import CheckpointError
from lookfurther.learner import Learner
from lookfurther.networks.dueling import make_network_builder
from lookfurther.report.model_card import export_run
from lookfurther.training.checkpoints.saved_weights import warm_start
from lookfurther.types import Spec
from tests.training_runs import newest_checkpoint, tiny_config

SPEC = Spec("CartPole-v1", (4,), 1, "float32", 2, 1.0)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tiny_config(tmp_path_factory.mktemp("source") / "run")).folder


def make_learner(tmp_path: Path) -> Learner:
    config = tiny_config(tmp_path)
    torch.manual_seed(7)
    network: nn.Module = make_network_builder(config.network)(SPEC)
    return Learner(network, config.learner, torch.device("cpu"), torch.float32)


def assert_same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_checkpoint_gives_weights_target_and_moments(run: Path, tmp_path: Path) -> None:
    learner, saved = make_learner(tmp_path), newest_checkpoint(run)
    assert warm_start(learner, run) == ["adam", "target", "weights"]
    for part, tensors in learner.state().items():
        assert_same(tensors, saved.files[part])
    assert learner.updates == 0


def test_export_gives_weights_and_a_copy_as_target(run: Path, tmp_path: Path) -> None:
    export_run(run, tmp_path / "export")
    learner, saved = make_learner(tmp_path), newest_checkpoint(run)
    before = {name: tensor.clone() for name, tensor in learner.state()["adam"].items()}
    assert warm_start(learner, tmp_path / "export") == ["weights"]
    state = learner.state()
    assert_same(state["weights"], saved.files["weights"])
    assert_same(state["target"], saved.files["weights"])
    assert_same(state["adam"], before)


def test_half_export_gives_rounded_weights(run: Path, tmp_path: Path) -> None:
    export_run(run, tmp_path / "export", half=True)
    learner, saved = make_learner(tmp_path), newest_checkpoint(run)
    warm_start(learner, tmp_path / "export")
    rounded = {name: x.half().float() for name, x in saved.files["weights"].items()}
    assert_same(learner.state()["weights"], rounded)


def test_file_in_half_precision_gives_rounded_weights(run: Path, tmp_path: Path) -> None:
    weights = newest_checkpoint(run).files["weights"]
    half = {name: tensor.to(torch.bfloat16) for name, tensor in weights.items()}
    save_file(half, tmp_path / "half.safetensors")
    learner = make_learner(tmp_path)
    warm_start(learner, tmp_path / "half.safetensors")
    assert_same(learner.state()["weights"], {name: x.float() for name, x in half.items()})


def test_training_starts_from_the_given_weights_with_other_settings(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No update is made, so the run saves what it started with."""
    config = tiny_config(tmp_path / "new", run__steps=40, learner__learning_rate=1e-3)
    folder = train(config, init=run).folder
    assert_same(newest_checkpoint(folder).files["weights"], newest_checkpoint(run).files["weights"])
    assert f"start from {run}: adam, target, weights" in capsys.readouterr().out


def test_resume_has_precedence_over_init(run: Path, tmp_path: Path) -> None:
    first = train(tiny_config(tmp_path / "a", run__steps=200)).folder
    before = newest_checkpoint(first).files["weights"]
    train(tiny_config(tmp_path / "a", run__steps=200), resume=True, init=run)
    assert_same(newest_checkpoint(first).files["weights"], before)


def test_weights_of_another_network_are_refused(run: Path, tmp_path: Path) -> None:
    save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match="do not fit this network"):
        warm_start(make_learner(tmp_path), tmp_path / "other.safetensors")


@pytest.mark.parametrize("content", [b"", b"not a tensor", b"\xff" * 64])
def test_unreadable_file_is_one_line(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "w.safetensors").write_bytes(content)
    words = "train no-demos --scale small --env CartPole-v1 --run.device cpu --run.folder"
    code = main([*words.split(), str(tmp_path / "run"), "--init", str(tmp_path / "w.safetensors")])
    error = capsys.readouterr().err
    assert code != 0
    assert "is not a safetensors file of weights" in error
    assert error.count("\n") == 1
