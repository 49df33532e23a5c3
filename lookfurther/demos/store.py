"""Demonstrations on disk: Minari datasets, lossless, holding exactly what training sees.

A dataset's stored environment spec is never built: our own description of the environment
lies beside it as plain JSON.
"""

from __future__ import annotations

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


def save(
    name: str, episodes: Sequence[Episode], spec: Spec, author: str, root: Path | None = None
) -> Path:
    """Write a new set under a Minari id such as "unlock/bot-v0", in Minari's folder or `root`."""
    import minari
    from gymnasium import spaces
    from minari.data_collector import EpisodeBuffer

    check(episodes, spec, name)
    with _datasets(root), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Minari asks for authors and links
        if name in minari.list_local_datasets():
            raise DemonstrationError(f"a set named {name} exists: delete it or choose another name")
        high = spec.high if spec.dtype == "uint8" else np.inf
        low = 0 if spec.dtype == "uint8" else -np.inf
        dataset = minari.create_dataset_from_buffers(
            name,
            [_buffer(i, episode, EpisodeBuffer) for i, episode in enumerate(episodes)],
            action_space=spaces.Discrete(spec.actions),
            observation_space=spaces.Box(low, high, spec.plane, np.dtype(spec.dtype).type),
            algorithm_name=author,
            data_format="hdf5",
            jpeg_encoding=False,
        )
        facts = {"env": spec.env, "spec": spec._asdict(), "seeds": [e.seed for e in episodes]}
        dataset.storage.update_metadata({"lookfurther": json.dumps(facts)})
        return Path(dataset.storage.data_path).parent


def load(name: str, spec: Spec, root: Path | None = None) -> list[Episode]:
    """The episodes of a set, by Minari id or by path; anything that is not `spec`'s is refused."""
    import minari
    from minari.dataset.minari_dataset import MinariDataset

    with _datasets(root):
        try:
            folder = Path(name) / "data"
            dataset = MinariDataset(folder) if folder.is_dir() else minari.load_dataset(name)
            facts = json.loads(dataset.storage.metadata["lookfurther"])
            stored = [_episode(data, facts) for data in dataset.iterate_episodes()]
        except FileNotFoundError:
            raise DemonstrationError(f"no demonstrations named {name}: make or import them first") from None
        except (KeyError, ValueError, OSError, TypeError) as error:
            reason = str(error).splitlines()[0]
            raise DemonstrationError(f"{name} is not a readable set of ours: {reason}") from None
    described = facts["spec"]["env"], facts["spec"]["actions"]
    if described != (spec.env, spec.actions):
        raise DemonstrationError(
            f"{name} shows {described[0]} with {described[1]} actions, the training environment is"
            f" {spec.env} with {spec.actions}"
        )
    check(stored, spec, name)
    return stored


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


def _episode(data: Any, facts: dict[str, Any]) -> Episode:
    return Episode(
        planes=np.asarray(data.observations),
        actions=np.asarray(data.actions, np.int64),
        rewards=np.asarray(data.rewards, np.float32),
        terminal=bool(data.terminations[-1]),
        seed=facts["seeds"][data.id],
    )


class _datasets:
    """Minari's datasets folder, for the time of a `with`."""

    def __init__(self, root: Path | None) -> None:
        self.root = root

    def __enter__(self) -> None:
        self.before = os.environ.get("MINARI_DATASETS_PATH")
        if self.root is not None:
            os.environ["MINARI_DATASETS_PATH"] = str(self.root)

    def __exit__(self, *_: object) -> None:
        if self.root is not None:
            os.environ.pop("MINARI_DATASETS_PATH")
            if self.before is not None:
                os.environ["MINARI_DATASETS_PATH"] = self.before
