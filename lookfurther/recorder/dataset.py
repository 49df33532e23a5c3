"""The episodes recorded so far: each replayed before it joins the set, with a picture of it."""

from __future__ import annotations

import base64
import io
import os
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
from lookfurther.types import Spec

AUTHOR = "lookfurther record"
THUMBNAIL_WIDTH = 160  # pixels of a thumbnail


class RecordedDataset:
    """A set of demonstrations that grows by an episode at a time."""

    def __init__(self, name: str, spec: Spec, env_config: EnvConfig) -> None:
        self.name = name
        self._spec, self._env_config = spec, env_config
        self._recorder_dir = recorder_dir(name)
        self._episodes: tuple[EpisodeMetadata, ...] = ()
        if dataset_path(name).exists():
            self._episodes = self._load_episodes()

    def __len__(self) -> int:
        return len(self._episodes)

    def list_episodes(self) -> list[dict[str, Any]]:
        """What the page shows of each episode."""
        return [self._describe_episode(number) for number in range(len(self))]

    def add(self, episode: Episode, picture: np.ndarray) -> Audit:
        """Replay an episode, and let it join the set with what the replay found."""
        draft = self._recorder_dir / "draft.png"
        draft.write_bytes(make_thumbnail(picture))
        audit = verify_episode(episode, self._spec, self._env_config)
        judged = [replace(episode, audit=audit)]
        storage.append_episodes(self.name, judged, self._spec, AUTHOR, env_config=self._env_config)
        self._episodes = self._load_episodes()
        os.replace(draft, self._thumbnail_path(len(self) - 1))
        return audit

    def _load_episodes(self) -> tuple[EpisodeMetadata, ...]:
        """The set's episodes; one that was made in another way cannot be added to."""
        held = storage.read_description(self.name)
        ours = make_origin(self._spec, self._env_config)._replace(library="")
        if (held.spec, held.origin._replace(library="")) != (self._spec, ours):
            raise DemonstrationError(
                f"{self.name} holds episodes of {held.spec.env} made with other settings:"
                " record with those, or choose another --name"
            )
        return held.episodes

    def _describe_episode(self, number: int) -> dict[str, Any]:
        shown, picture = self._episodes[number], self._thumbnail_path(number)
        return {
            "return": shown.score,
            "steps": shown.steps,
            "verified": shown.is_verified,
            "mismatch": shown.audit.mismatch if shown.audit else "",
            "picture": png_data_url(picture.read_bytes()) if picture.exists() else "",
        }

    def _thumbnail_path(self, number: int) -> Path:
        """Where an episode's thumbnail lies; that of a set since deleted has another name."""
        return self._recorder_dir / f"{number}-{self._episodes[number].digests['actions'][:16]}.png"


def dataset_path(name: str) -> Path:
    """Where the files of a set lie, or will lie."""
    from minari.dataset.minari_dataset import parse_dataset_id
    from minari.storage.datasets_root_dir import get_dataset_path

    try:
        parse_dataset_id(name)
    except ValueError as error:
        raise DemonstrationError(f"--name {name}: {error}") from None
    return get_dataset_path(name)


def recorder_dir(name: str) -> Path:
    """Where the recorder keeps what is its own, hidden beside the set."""
    path = dataset_path(name)
    return path.with_name(f".{path.name}.recorder")


def make_thumbnail(picture: np.ndarray) -> bytes:
    """A small PNG."""
    from PIL import Image

    image = Image.fromarray(picture)
    if image.width > THUMBNAIL_WIDTH:
        image = image.resize((THUMBNAIL_WIDTH, round(image.height * THUMBNAIL_WIDTH / image.width)))
    data = io.BytesIO()
    image.quantize(64).save(data, "PNG", optimize=True)
    return data.getvalue()


def png_data_url(picture: bytes) -> str:
    """A PNG for the page to show."""
    return "data:image/png;base64," + base64.b64encode(picture).decode()
