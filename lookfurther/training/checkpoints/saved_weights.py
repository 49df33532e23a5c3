"""Initial weights from an earlier run, an export or a file."""

from __future__ import annotations

import copy
from collections.abc import Collection
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from lookfurther.errors import CheckpointError
from lookfurther.learner import Learner
from lookfurther.networks.dueling import load_network_weights
from lookfurther.training.checkpoints import checkpoint
from lookfurther.training.checkpoints.checkpoint_manifest import TENSOR_SUFFIX


def find_checkpoint(path: Path, parts: Collection[str]) -> checkpoint.Checkpoint:
    """The checkpoint at a path, or the best one of a run folder, or its newest one."""
    if checkpoint.is_checkpoint(path):
        return checkpoint.load(path, parts)
    saved, _ = checkpoint.load_best(path / "best", parts)
    if saved is None:
        saved, _ = checkpoint.load_newest(path / "checkpoints", parts)
    if saved is None:
        raise CheckpointError(f"{path} holds no checkpoint")
    return saved


def read_learner_state(
    path: Path, optional_parts: Collection[str] = ()
) -> dict[str, dict[str, Tensor]]:
    """Weights, and target weights and the optimizer's moments if the checkpoint has them.

    A best checkpoint, an export and a file contain only weights.
    """
    if path.is_file():
        return {"weights": _read_weights_file(path)}
    saved = find_checkpoint(path, ("weights",))
    files = (saved.path / (part + TENSOR_SUFFIX) for part in optional_parts)
    if not optional_parts or not all(file.exists() for file in files):
        return saved.files
    return saved.files | checkpoint.load(saved.path, optional_parts).files


def _read_weights_file(path: Path) -> dict[str, Tensor]:
    """A safetensors file of weights in any precision."""
    try:
        return {name: tensor.float() for name, tensor in load_file(path).items()}
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"{path} is not a safetensors file of weights: {error}") from None


def check_initial_weights(network: nn.Module, path: Path) -> None:
    """Raise if the weights at a path cannot be those of a network, which is not changed."""
    weights = read_learner_state(path)["weights"]
    try:
        load_network_weights(copy.deepcopy(network), weights)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None


def warm_start(learner: Learner, path: Path) -> list[str]:
    """Start a learner from the weights at a path; returns the names of the parts that were found.

    Without target weights the target network starts as a copy of the online network.
    """
    found = read_learner_state(path, ("target", learner.optimizer.name))
    start = {"target": found["weights"], "online": found["weights"]}
    state = learner.state() | start | found
    try:
        load_network_weights(learner.online_network, state["weights"])
        load_network_weights(learner.target_network, state["target"])
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None
    learner.load_state(state, updates=0)  # also refreshes the compute networks
    return sorted(found)
