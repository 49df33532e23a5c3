"""Small checkpoints, and functions that look at what a save left behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lookfurther.training.checkpoints import checkpoint
from lookfurther.training.checkpoints.checkpoint import load_best, save, save_and_remove_others

ROOT = Path(__file__).parents[1]

Files = dict[str, dict[str, Tensor]]


def build_files(step: int, size: int = 500) -> Files:
    """Two parts whose content depends on the step."""
    return {
        "learner": {"w": torch.full((size // 4,), float(step)), "b": torch.tensor(step)},
        "agent_replay": {"plane": torch.full((size,), step % 256, dtype=torch.uint8)},
    }


def save_step(folder: Path, step: int, keep: int = 2, size: int = 500) -> Path:
    return save(folder, step, build_files(step, size), {"step": step}, keep)


def list_steps(folder: Path) -> list[int]:
    """The saved steps; anything else in the folder must be hidden."""
    return sorted(int(p.name.removeprefix("step_")) for p in folder.glob("[!.]*"))


def list_leftovers(folder: Path) -> list[str]:
    """The names of temporary folders, without process ids."""
    return sorted(re.sub(r"\.\d+$", "", p.name) for p in folder.glob(".*"))


def is_checkpoint_of(saved: checkpoint.Checkpoint | None, step: int) -> bool:
    """Whether a checkpoint has exactly the tensors of `build_files(step)`."""
    assert saved is not None
    expected = build_files(step)
    assert saved.files.keys() == expected.keys()
    for part, tensors in expected.items():
        assert saved.files[part].keys() == tensors.keys()
        assert all(torch.equal(saved.files[part][k], v) for k, v in tensors.items())
    return saved.metadata == {"step": step}


def run_in_subprocess(
    function: Callable[..., None], *arguments: Any
) -> subprocess.CompletedProcess[str]:
    """Run a function of a test module in another process."""
    call = f"from {function.__module__} import {function.__name__} as f; f(*{arguments!r})"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", call], cwd=ROOT, env=environment, capture_output=True, text=True
    )


def flip_bit(path: Path, bit: int) -> None:
    with path.open("r+b") as file:
        byte = os.pread(file.fileno(), 1, bit // 8)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 1 << bit % 8]), bit // 8)


def save_best(folder: Path, step: int, score: float) -> Path:
    return save_and_remove_others(folder, step, build_files(int(score)), {"score": score})


def load_best_score(folder: Path) -> float:
    """The score of the best checkpoint, whose content must belong to the score."""
    saved, _ = load_best(folder)
    assert saved is not None
    assert saved.files["learner"]["b"] == int(saved.metadata["score"])
    return saved.metadata["score"]
