"""The episodes recorded so far: each replayed before it joins the set, with a picture of it."""

from __future__ import annotations

import base64
import io
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lookfurther.config import Environment
from lookfurther.demos import storage
from lookfurther.demos.episode import Audit, Episode
from lookfurther.demos.metadata import Shown, origin
from lookfurther.demos.verify import verify
from lookfurther.errors import DemonstrationError
from lookfurther.types import Spec

AUTHOR = "lookfurther record"
WIDTH = 160  # pixels of a thumbnail


class Shelf:
    """A set of demonstrations that grows by an episode at a time."""

    def __init__(self, name: str, spec: Spec, environment: Environment) -> None:
        self.name = name
        self._spec, self._environment = spec, environment
        self._pictures = folder(name)
        self._episodes: tuple[Shown, ...] = ()
        if place(name).exists():
            self._episodes = self._held()

    def __len__(self) -> int:
        return len(self._episodes)

    def list(self) -> list[dict[str, Any]]:
        """What the page shows of each episode."""
        return [self._card(number) for number in range(len(self))]

    def add(self, episode: Episode, picture: np.ndarray) -> Audit:
        """Replay an episode, and let it join the set with what the replay found."""
        draft = self._pictures / "draft.png"
        draft.write_bytes(thumbnail(picture))
        audit = verify(episode, self._spec, self._environment)
        judged = [replace(episode, audit=audit)]
        storage.append(self.name, judged, self._spec, AUTHOR, environment=self._environment)
        self._episodes = self._held()
        os.replace(draft, self._picture(len(self) - 1))
        return audit

    def _held(self) -> tuple[Shown, ...]:
        """The set's episodes; one that was made in another way cannot be added to."""
        held = storage.describe(self.name)
        ours = origin(self._spec, self._environment)._replace(library="")
        if (held.spec, held.origin._replace(library="")) != (self._spec, ours):
            raise DemonstrationError(
                f"{self.name} holds episodes of {held.spec.env} made with other settings:"
                " record with those, or choose another --name"
            )
        return held.episodes

    def _card(self, number: int) -> dict[str, Any]:
        shown, picture = self._episodes[number], self._picture(number)
        return {
            "return": shown.score,
            "steps": shown.steps,
            "verified": shown.verified,
            "mismatch": shown.audit.mismatch if shown.audit else "",
            "picture": data_url(picture.read_bytes()) if picture.exists() else "",
        }

    def _picture(self, number: int) -> Path:
        """Where an episode's thumbnail lies; that of a set since deleted has another name."""
        return self._pictures / f"{number}-{self._episodes[number].digests['actions'][:16]}.png"


def place(name: str) -> Path:
    """Where the files of a set lie, or will lie."""
    from minari.dataset.minari_dataset import parse_dataset_id
    from minari.storage.datasets_root_dir import get_dataset_path

    try:
        parse_dataset_id(name)
    except ValueError as error:
        raise DemonstrationError(f"--name {name}: {error}") from None
    return get_dataset_path(name)


def folder(name: str) -> Path:
    """Where the recorder keeps what is its own, hidden beside the set."""
    path = place(name)
    return path.with_name(f".{path.name}.recorder")


def thumbnail(picture: np.ndarray) -> bytes:
    """A small PNG."""
    from PIL import Image

    image = Image.fromarray(picture)
    if image.width > WIDTH:
        image = image.resize((WIDTH, round(image.height * WIDTH / image.width)))
    data = io.BytesIO()
    image.quantize(64).save(data, "PNG", optimize=True)
    return data.getvalue()


def data_url(picture: bytes) -> str:
    """A PNG for the page to show."""
    return "data:image/png;base64," + base64.b64encode(picture).decode()
