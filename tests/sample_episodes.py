"""Small episodes of random numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lookfurther.demos.episode import Episode
from lookfurther.types import Spec

VECTOR = Spec("toy", (2,), 1, "float32", 3, 1.0)


def random_episode(
    spec: Spec, steps: int, terminal: bool, number: int = 0, seed: int | None = None
) -> Episode:
    """Random numbers, except that the first value of each plane encodes episode and time."""
    rng = np.random.default_rng((number, steps))
    if spec.dtype == "uint8":
        planes = rng.integers(0, 256, (steps + 1, *spec.plane)).astype(np.uint8)
    else:
        planes = rng.standard_normal((steps + 1, *spec.plane)).astype(np.float32)
    planes.reshape(steps + 1, -1)[:, 0] = 40 * number + np.arange(steps + 1) + 1
    actions = rng.integers(0, spec.actions, steps)
    return Episode(planes, actions, rng.normal(size=steps).astype(np.float32), terminal, seed=seed)


def some_episodes(spec: Spec = VECTOR) -> list[Episode]:
    return [
        random_episode(spec, 3, terminal=True, number=0, seed=7),
        random_episode(spec, 5, terminal=False, number=1, seed=None),
        random_episode(spec, 1, terminal=True, number=2, seed=2**32 - 1),
    ]


def episodes_equal(a: Episode, b: Episode) -> bool:
    arrays = ((a.planes, b.planes), (a.actions, b.actions), (a.rewards, b.rewards))
    return (a.terminal, a.seed) == (b.terminal, b.seed) and all(
        x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes() for x, y in arrays
    )


def change_description(files: Path, change: Callable[[dict], Any]) -> None:
    """Change the package's own description in the metadata of a set."""
    metadata = json.loads((files / "metadata.json").read_text())
    description = json.loads(metadata["lookfurther"])
    change(description)
    metadata["lookfurther"] = json.dumps(description)
    (files / "metadata.json").write_text(json.dumps(metadata))
