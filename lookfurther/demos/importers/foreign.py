"""Minari datasets made by others, read from their files: what they name is never built."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lookfurther.demos import pieces
from lookfurther.errors import DemonstrationError

LARGEST_METADATA = 2**26  # bytes
MOST_PIXELS = 2**20  # of a JPEG picture


class Facts(NamedTuple):
    """What a dataset says of the environment it was made in."""

    env: str  # its id, or ""
    shape: tuple[int, ...]  # of an observation
    jpeg: bool  # whether observations lost something on the way to the disk
    actions: int
    start: int  # the first action
    frames: int  # emulator frames a step, of an Atari game
    noop: int  # emulator frames of a no-op at the start
    sticky: float
    form: str  # "hdf5", "arrow" or "parquet"
    episodes: int


class Raw(NamedTuple):
    """An episode as it was stored."""

    actions: np.ndarray  # [T]
    rewards: np.ndarray  # [T] float64
    terminal: bool
    seed: int | None
    observations: Callable[[int, int], np.ndarray]  # those of low ... high - 1 of T + 1


def read_facts(folder: Path) -> Facts:
    """The facts of a dataset's metadata."""
    path = folder / "metadata.json"
    if path.stat().st_size > LARGEST_METADATA:
        raise ValueError(f"{path.name} is larger than {LARGEST_METADATA} bytes")
    metadata = json.loads(path.read_bytes())
    named: dict[str, Any] = json.loads(metadata.get("env_spec", '{"id": ""}'))
    options = named.get("kwargs") or {}
    steps = [
        wrapper.get("kwargs", {}).get("frame_skip", 4)
        for wrapper in named.get("additional_wrappers") or ()
        if wrapper["name"] == "AtariPreprocessing"
    ]
    box, discrete = (json.loads(metadata[f"{w}_space"]) for w in ("observation", "action"))
    if (box["type"], discrete["type"]) != ("Box", "Discrete"):
        raise ValueError(f"it has {box['type']} observations and {discrete['type']} actions")
    shape = tuple(int(n) for n in box["shape"])
    picture = box["dtype"] == "uint8" and len(shape) in (2, 3) and min(shape[:2]) >= 32
    noop = int(options.get("frameskip", 4))
    return Facts(
        env=str(named["id"]),
        shape=shape,
        jpeg=picture and bool(metadata.get("jpeg_encoding", True)),
        actions=int(discrete["n"]),
        start=int(discrete.get("start", 0)),
        frames=noop * int(steps[0]) if steps else noop,
        noop=noop,
        sticky=float(options.get("repeat_action_probability", 0.25)),
        form=str(metadata.get("data_format", "hdf5")),
        episodes=int(metadata["total_episodes"]),
    )


@contextmanager
def episodes(folder: Path, facts: Facts) -> Iterator[Iterator[Raw]]:
    """The episodes of a dataset, while its files are open."""
    if facts.form == "hdf5":
        with pieces.opened(folder / pieces.FILE) as file:
            yield (_from_hdf5(file, f"episode_{i}", facts) for i in range(facts.episodes))
    elif facts.form in ("arrow", "parquet"):
        yield (_from_arrow(folder / str(i), facts) for i in range(facts.episodes))
    else:
        raise ValueError(f"its format {facts.form!r:.40} is unknown")


def _from_hdf5(file: Any, name: str, facts: Facts) -> Raw:
    actions, rewards, ends = (
        pieces.load(_numbers(pieces.find(file, f"{name}/{field}"), kinds))
        for field, kinds in (("actions", "iu"), ("rewards", "iuf"), ("terminations", "b"))
    )
    data = pieces.find(file, f"{name}/observations")
    if facts.jpeg:
        observations = lambda low, high: _pictures(data[low:high])  # noqa: E731
    elif data.id.get_create_plist().get_nfilters():
        array = pieces.load(_numbers(data, "uif"))
        observations = lambda low, high: array[low:high]  # noqa: E731
    else:
        _numbers(data, "uif")
        observations = lambda low, high: data[low:high]  # noqa: E731
    seed = file[name].attrs.get("seed")
    return _checked(
        Raw(actions, rewards, bool(ends[-1:].any()), seed, observations), len(data), facts
    )


def _numbers(data: Any, kinds: str) -> Any:
    """A dataset of these kinds of numbers, no larger than its file, or than that may unpack to."""
    most = pieces.FREE + pieces.RATIO * data.file.id.get_filesize()
    if data.dtype.kind not in kinds or data.nbytes > most:
        raise ValueError(f"{data.name} cannot be {data.dtype} of shape {data.shape}")
    return data


def _from_arrow(folder: Path, facts: Facts) -> Raw:
    try:
        from pyarrow import dataset
    except ImportError:
        raise DemonstrationError(f"{folder.parent} needs pyarrow: install it") from None
    ignored = ["_", ".", "metadata.json"]
    stored = dataset.dataset(str(folder), format=facts.form, ignore_prefixes=ignored)
    size = sum(path.stat().st_size for path in folder.iterdir())
    rows = stored.count_rows()
    if rows * int(np.prod(facts.shape, dtype=object)) > pieces.FREE + pieces.RATIO * size:
        raise ValueError(f"{folder.name} claims more bytes than its files can hold")
    table = stored.to_table(["observations", "actions", "rewards", "terminations"])
    columns = {name: table[name].combine_chunks() for name in table.column_names}
    seen = columns["observations"]

    def observations(low: int, high: int) -> np.ndarray:
        part = seen[low:high]
        if facts.jpeg:
            return _pictures(part.to_pylist())
        return part.flatten().to_numpy(zero_copy_only=False).reshape(-1, *facts.shape)

    actions, rewards, ends = (
        columns[name].to_numpy(zero_copy_only=False)[:-1] for name in table.column_names[1:]
    )
    seed = json.loads((folder / "metadata.json").read_bytes()).get("seed")
    raw = Raw(actions, rewards, bool(ends[-1:].any()), seed, observations)
    return _checked(raw, rows, facts)


def _checked(raw: Raw, rows: int, facts: Facts) -> Raw:
    """An episode whose parts fit together."""
    steps = len(raw.actions)
    if not steps or {raw.actions.shape, raw.rewards.shape} != {(steps,)}:
        raise ValueError(f"actions {raw.actions.shape}, rewards {raw.rewards.shape}")
    if rows != steps + 1:
        raise ValueError(f"{rows} observations for {steps} actions")
    actions = raw.actions.astype(np.int64) - facts.start
    if ((actions < 0) | (actions >= facts.actions)).any():
        raise ValueError("an action that its own space does not hold")
    rewards = raw.rewards.astype(np.float64)
    if not np.isfinite(rewards).all():
        raise ValueError("a reward that is not finite")
    seed = None if raw.seed is None else int(raw.seed)
    return raw._replace(actions=actions, rewards=rewards, seed=seed)


def _pictures(packed: Any) -> np.ndarray:
    """JPEG pictures as arrays."""
    from PIL import Image

    pictures = []
    for data in packed:
        with Image.open(io.BytesIO(bytes(data)), formats=["JPEG"]) as picture:
            if picture.width * picture.height > MOST_PIXELS:
                raise ValueError(f"a picture of {picture.size}")
            pictures.append(np.asarray(picture))
    return np.stack(pictures)
