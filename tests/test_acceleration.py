"""`lookfurther/gpu` can be deleted: training gives the same weights without it."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import lookfurther
from lookfurther.system import acceleration

PACKAGE = Path(lookfurther.__file__).parent
TRAIN_AND_HASH = """
import hashlib, sys, torch
# An editable installation would find the folder in another place.
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in repr(finder).lower()]
import lookfurther
from lookfurther import Agent, preset, train
from lookfurther.system import acceleration

config = preset("no-demos", "small", env="CartPole-v1", run__folder="run", run__steps=160)
config = lookfurther.replace(config, actor__lanes=4, replay__capacity=400, network__hidden=(16,))
config = lookfurther.replace(config, replay__learning_starts=48, learner__agent_items=16)
summary = train(lookfurther.replace(config, run__device="cpu", run__precision="float32"))
assert summary.updates > 0
weights = Agent.load("run").network.state_dict().values()
print(hashlib.sha256(b"".join(w.numpy().tobytes() for w in weights)).hexdigest())
gpu = torch.device("cuda")
print(acceleration.load_kernels("streams", gpu) is not None)
print(type(acceleration.make_side_stream(torch.device("cpu"))).__name__)
if acceleration.load_kernels("streams", gpu) is None:
    assert isinstance(acceleration.make_side_stream(gpu), acceleration.InlineStream)
    assert acceleration.make_graphed(train, gpu) is train
"""


def train_and_hash(root: Path, folder: Path) -> list[str]:
    """The lines that training prints last, with the package in `root`."""
    folder.mkdir()
    environment = os.environ | {"PYTHONPATH": str(root)}
    command = [sys.executable, "-c", TRAIN_AND_HASH]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-3:]


@pytest.mark.slow
def test_training_without_gpu_folder_gives_equal_weights(tmp_path: Path) -> None:
    pruned = tmp_path / "pruned"
    shutil.copytree(
        PACKAGE, pruned / "lookfurther", ignore=shutil.ignore_patterns("gpu", "__pycache__")
    )
    assert not (pruned / "lookfurther" / "gpu").exists()
    weights, has_gpu_folder, stream = train_and_hash(PACKAGE.parent, tmp_path / "whole_run")
    assert (has_gpu_folder, stream) == ("True", "InlineStream")
    assert train_and_hash(pruned, tmp_path / "pruned_run") == [weights, "False", "InlineStream"]


def test_only_acceleration_imports_gpu_folder() -> None:
    for path in PACKAGE.rglob("*.py"):
        if path.parent.name == "gpu" or path.name == "acceleration.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in getattr(node, "names", []) if hasattr(alias, "name")]
            names.append(getattr(node, "module", None) or "")
            assert not any(name.startswith("lookfurther.gpu") for name in names), path
            if isinstance(node, ast.ImportFrom) and node.module == "lookfurther":
                assert "gpu" not in names, path


def test_cpu_loads_no_kernels_and_calls_functions_directly() -> None:
    cpu, calls = torch.device("cpu"), []
    assert acceleration.load_kernels("adam", cpu) is None
    stream = acceleration.make_side_stream(cpu)
    with stream.fork():
        calls.append("forked")
    stream.join()
    fn = calls.clear
    assert calls == ["forked"]
    assert acceleration.make_graphed(fn, cpu) is fn


def test_missing_dependency_other_than_triton_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def import_module(name: str) -> None:
        raise ModuleNotFoundError("No module named 'numpy'", name="numpy")

    monkeypatch.setattr(acceleration.importlib, "import_module", import_module)
    with pytest.raises(ModuleNotFoundError, match="numpy"):
        acceleration.load_kernels("adam", torch.device("cuda"))
