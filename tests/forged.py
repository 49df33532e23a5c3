"""Forged run folders: complete, with valid hashes, and with any content."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from lookfurther.config import Config
from lookfurther.networks.dueling import make_network_builder
from lookfurther.presets import preset
from lookfurther.training.checkpoints import checkpoint
from lookfurther.training.checkpoints.checkpoint_manifest import MANIFEST_FILE, METADATA_FILE
from lookfurther.training.config_json import to_json
from lookfurther.types import Spec

CARTPOLE = Spec("CartPole-v1", (4,), 1, "float32", 2, 1.0)
METRICS_ROW = {"step": 100, "frames": 100, "updates": 3, "minutes": 0.5, "return_low_epsilon": 9.0}


def cartpole_config(**changes: Any) -> Config:
    """A small configuration on CartPole."""
    return preset("no-demos", "small", **{"env": "CartPole-v1", **changes})


def checkpoint_metadata(config: Config) -> dict[str, Any]:
    """The metadata of a valid checkpoint of CartPole."""
    return {
        "step": 100,
        "updates": 3,
        "seconds": 30.0,
        "spec": CARTPOLE._asdict(),
        "config": dataclasses.asdict(config),
    }


def write_checkpoint(folder: Path, metadata: dict[str, Any]) -> Path:
    """A checkpoint with the weights of an untrained network and this metadata."""
    weights = {"weights": dict(make_network_builder(Config().network)(CARTPOLE).state_dict())}
    return checkpoint.save(folder / "best", 100, weights, metadata, keep=1)


def write_run(folder: Path, config: Config, **changes: Any) -> Path:
    """A run folder; `changes` replace metadata of its checkpoint."""
    write_checkpoint(folder, checkpoint_metadata(config) | changes)
    (folder / "config.json").write_text(to_json(config))
    (folder / "metrics.jsonl").write_text(json.dumps(METRICS_ROW) + "\n")
    return folder


def replace_metadata(path: Path, text: str) -> None:
    """Replace the metadata of a checkpoint by any text, with the right sizes and hashes."""
    (path / METADATA_FILE).write_text(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    _, body = (path / MANIFEST_FILE).read_text().split("\n", 1)
    manifest = json.loads(body)
    manifest["files"][METADATA_FILE] = {"size": len(text.encode()), "sha256": digest}
    body = json.dumps(manifest)
    body_hash = hashlib.sha256(body.encode()).hexdigest()
    (path / MANIFEST_FILE).write_text(f"{body_hash}\n{body}")
