"""Demonstrations on disk: Minari datasets, lossless, holding exactly what training sees.

A dataset's stored environment spec is never built: our own description of the environment
lies beside it as plain JSON, with the SHA-256 of every array.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lookfurther.demos.episodes import Episode, check
from lookfurther.errors import DemonstrationError
from lookfurther.types import Spec

# Minari's arrays that make an episode, and the kinds of numbers they may hold.
FIELDS = {"observations": "uf", "actions": "iu", "rewards": "f", "terminations": "b"}


def save(
    name: str, episodes: Sequence[Episode], spec: Spec, author: str, root: Path | None = None
) -> Path:
    """Write a new set under a Minari id such as "unlock/bot-v0", in Minari's folder or `root`."""
    import minari
    from gymnasium import spaces
    from minari.data_collector import EpisodeBuffer
    from minari.dataset.minari_dataset import parse_dataset_id

    check(episodes, spec, name)
    try:
        parse_dataset_id(name)
    except ValueError as error:
        raise DemonstrationError(str(error)) from None
    with _datasets(root), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Minari asks for authors and links
        if name in minari.list_local_datasets():
            raise DemonstrationError(f"a set named {name} exists: delete it or choose another name")
        high = spec.high if spec.dtype == "uint8" else np.inf
        low = 0 if spec.dtype == "uint8" else -np.inf
        buffers = [_buffer(i, episode, EpisodeBuffer) for i, episode in enumerate(episodes)]
        dataset = minari.create_dataset_from_buffers(
            name,
            buffers,
            action_space=spaces.Discrete(spec.actions),
            observation_space=spaces.Box(low, high, spec.plane, np.dtype(spec.dtype).type),
            algorithm_name=author,
            data_format="hdf5",
            jpeg_encoding=False,
        )
        facts = {
            "spec": spec._asdict(),
            "episodes": [
                {"seed": episode.seed} | {f: _digest(getattr(buffer, f)) for f in FIELDS}
                for episode, buffer in zip(episodes, buffers, strict=True)
            ],
        }
        dataset.storage.update_metadata({"lookfurther": json.dumps(facts)})
        return Path(dataset.storage.data_path).parent


def load(name: str, spec: Spec, root: Path | None = None) -> list[Episode]:
    """The episodes of a set, by Minari id or by path; anything that is not `spec`'s is refused.

    Minari itself would build whatever environment a set names, so it has no part in reading.
    """
    folder = _folder(name, root)
    if not folder.is_dir():
        raise DemonstrationError(f"no demonstrations named {name}: make or import them first")
    try:
        metadata = json.loads((folder / "metadata.json").read_bytes())
        facts = json.loads(metadata["lookfurther"])
        shown = facts["spec"]["env"], facts["spec"]["actions"]
        episodes = _read(folder / "main_data.hdf5", facts["episodes"])
    except Exception as error:  # whatever a cut, altered or hostile file leads json and h5py to
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise DemonstrationError(f"{name} is not a readable set of ours: {reason}") from error
    if shown != (spec.env, spec.actions):
        raise DemonstrationError(
            f"{name} shows {shown[0]} with {shown[1]} actions, the training environment is"
            f" {spec.env} with {spec.actions}"
        )
    check(episodes, spec, name)
    return episodes


def _buffer(i: int, episode: Episode, make: Any) -> Any:
    steps = len(episode)
    ends = np.arange(1, steps + 1) == steps
    return make(
        id=i,
        observations=episode.planes,
        actions=episode.actions,
        rewards=episode.rewards.astype(np.float64),
        terminations=ends & episode.terminal,
        truncations=ends & (not episode.terminal),
        infos={},
    )


def _folder(name: str, root: Path | None) -> Path:
    """Where the files of a set lie."""
    from minari.storage.datasets_root_dir import get_dataset_path

    if (Path(name) / "data").is_dir():
        return Path(name) / "data"
    with _datasets(root):
        return get_dataset_path(name) / "data"


def _read(path: Path, described: Sequence[dict[str, Any]]) -> list[Episode]:
    """The episodes of Minari's HDF5 file, each as it was described when it was written."""
    import h5py

    with h5py.File(path, "r") as file:
        if len(file) != len(described):
            raise ValueError(f"{len(file)} episodes, not {len(described)}")
        return [_episode(file[f"episode_{i}"], facts) for i, facts in enumerate(described)]


def _episode(group: Any, facts: dict[str, Any]) -> Episode:
    planes, actions, rewards, ends = (_array(group[field], facts[field]) for field in FIELDS)
    return Episode(
        planes=planes,
        actions=actions.astype(np.int64),
        rewards=rewards.astype(np.float32),
        terminal=bool(ends[-1:].any()),
        seed=facts["seed"],
    )


def _array(data: Any, digest: str) -> np.ndarray:
    """One field of an episode; what claims more bytes than its file has is not read."""
    fits = data.nbytes <= data.file.id.get_filesize()
    if not fits or data.dtype.kind not in FIELDS[data.name.rpartition("/")[2]]:
        raise ValueError(f"{data.name} cannot be {data.dtype} of shape {data.shape}")
    array = data[()]
    if _digest(array) != digest:
        raise ValueError(f"{data.name} is altered (SHA-256)")
    return array


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


class _datasets:
    """Minari's datasets folder, for the time of a `with`."""

    def __init__(self, root: Path | None) -> None:
        self.root = None if root is None else root.resolve()  # Minari takes relative ones amiss

    def __enter__(self) -> None:
        self.before = os.environ.get("MINARI_DATASETS_PATH")
        if self.root is not None:
            os.environ["MINARI_DATASETS_PATH"] = str(self.root)

    def __exit__(self, *_: object) -> None:
        if self.root is not None:
            os.environ.pop("MINARI_DATASETS_PATH")
            if self.before is not None:
                os.environ["MINARI_DATASETS_PATH"] = self.before
