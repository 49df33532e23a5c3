"""The recorded episodes: each is verified by replay before it is added to the set."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lookfurther.config import EnvConfig
from lookfurther.demos import storage
from lookfurther.demos.episode import Audit, Episode
from lookfurther.demos.metadata import EpisodeMetadata, make_origin
from lookfurther.demos.verify import verify_episode
from lookfurther.errors import DemonstrationError
from lookfurther.system.formatting import format_number
from lookfurther.types import Spec

AUTHOR = "lookfurther record"
THUMBNAIL_WIDTH = 160  # pixels


class RecordedDataset:
    """A demonstration set to which episodes are added, and from which they are deleted."""

    def __init__(self, name: str, spec: Spec, env_config: EnvConfig) -> None:
        self.name = name
        self._spec, self._env_config = spec, env_config
        self._recorder_dir = recorder_dir(name)
        self._episodes: tuple[EpisodeMetadata, ...] = ()
        self._lock = threading.Lock()  # a page may reconnect while an episode is saved or deleted
        if dataset_path(name).exists():
            self._episodes = self._load_episodes()

    def __len__(self) -> int:
        return len(self._episodes)

    def list_episodes(self) -> list[dict[str, Any]]:
        """Return what the page shows of each episode."""
        return [self._describe_episode(number) for number in range(len(self))]

    def next_seed(self, first_seed: int) -> int:
        """Return the seed after those of all episodes, also if some were deleted."""
        used = [episode.seed + 1 for episode in self._episodes if episode.seed is not None]
        return max([first_seed + len(self), *used])

    def load_episode(self, episode_id: str) -> Episode:
        """Read an episode with its arrays."""
        with self._lock:
            number = self._find(episode_id)
            return storage.load_episodes(self.name, self._spec, env_config=self._env_config)[number]

    def delete(self, episode_id: str) -> str:
        """Remove an episode and its thumbnail from the disk; return a notice."""
        with self._lock:
            number = self._find(episode_id)
            episode = self._episodes[number]
            storage.remove_episode(self.name, number)
            self._thumbnail_path(number).unlink(missing_ok=True)
            self._episodes = self._load_episodes() if len(self) > 1 else ()
        return f"Deleted: {episode.steps:,} steps with a score of {format_number(episode.score)}."

    def _find(self, episode_id: str) -> int:
        for number, episode in enumerate(self._episodes):
            if make_episode_id(episode) == episode_id:
                return number
        raise DemonstrationError(f"this episode is not in {self.name} any more")

    def add(self, episode: Episode, screen: np.ndarray) -> Audit:
        """Verify an episode by replay and add it to the set with the result."""
        with self._lock:
            return self._add(episode, screen)

    def _add(self, episode: Episode, screen: np.ndarray) -> Audit:
        draft = self._recorder_dir / "draft.png"
        draft.write_bytes(make_thumbnail(screen))
        audit = verify_episode(episode, self._spec, self._env_config)
        audited = [replace(episode, audit=audit)]
        storage.append_episodes(self.name, audited, self._spec, AUTHOR, env_config=self._env_config)
        self._episodes = self._load_episodes()
        os.replace(draft, self._thumbnail_path(len(self) - 1))
        return audit

    def _load_episodes(self) -> tuple[EpisodeMetadata, ...]:
        """Read the episodes of the set, which must have been made with the same settings."""
        description = storage.read_description(self.name)
        origin = make_origin(self._spec, self._env_config)._replace(library="")
        if (description.spec, description.origin._replace(library="")) != (self._spec, origin):
            raise DemonstrationError(
                f"{self.name} contains episodes of {description.spec.env} made with other settings:"
                " record with those settings, or choose another --name"
            )
        return description.episodes

    def _describe_episode(self, number: int) -> dict[str, Any]:
        episode, thumbnail = self._episodes[number], self._thumbnail_path(number)
        return {
            "id": make_episode_id(episode),
            "return": episode.score,
            "steps": episode.steps,
            "verified": episode.is_verified,
            "mismatch": episode.audit.mismatch if episode.audit else "",
            "picture": png_data_url(thumbnail.read_bytes()) if thumbnail.exists() else "",
        }

    def _thumbnail_path(self, number: int) -> Path:
        return self._recorder_dir / f"{make_episode_id(self._episodes[number])}.png"


def make_episode_id(episode: EpisodeMetadata) -> str:
    """Return a name that depends on the content alone and stays when others are deleted."""
    return hashlib.sha256(json.dumps(episode.digests, sort_keys=True).encode()).hexdigest()[:16]


def dataset_path(name: str) -> Path:
    """Return the folder of a set, which may not exist yet."""
    from minari.dataset.minari_dataset import parse_dataset_id
    from minari.storage.datasets_root_dir import get_dataset_path

    try:
        parse_dataset_id(name)
    except ValueError as error:
        raise DemonstrationError(f"--name {name}: {error}") from None
    return get_dataset_path(name)


def recorder_dir(name: str) -> Path:
    """Return the recorder's hidden folder next to the set."""
    path = dataset_path(name)
    return path.with_name(f".{path.name}.recorder")


def make_thumbnail(screen: np.ndarray) -> bytes:
    """Return a small PNG of the screen."""
    from PIL import Image

    image = Image.fromarray(screen)
    if image.width > THUMBNAIL_WIDTH:
        image = image.resize((THUMBNAIL_WIDTH, round(image.height * THUMBNAIL_WIDTH / image.width)))
    data = io.BytesIO()
    image.quantize(64).save(data, "PNG", optimize=True)
    return data.getvalue()


def png_data_url(png: bytes) -> str:
    """Return a PNG as a data URL."""
    return "data:image/png;base64," + base64.b64encode(png).decode()
