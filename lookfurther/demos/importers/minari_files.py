"""Minari datasets made by others, read from their files: what they name is never built."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lookfurther.demos import episode_hdf5
from lookfurther.demos.bounded_json import parse_json, read_json
from lookfurther.demos.sandbox import FREE, RATIO, SANDBOX, SLICE, Answer, Task, file_size
from lookfurther.errors import DemonstrationError
from lookfurther.types import MOST_ACTIONS

MOST_STEPS = 1_000_000  # of an episode
MOST_FRAMES = 100  # of a step
PLANE = 84 * 84  # bytes that a step of an Atari game becomes


class Facts(NamedTuple):
    """What a dataset says of the environment it was made in."""

    env: str  # its id, or ""
    shape: tuple[int, ...]  # of an observation
    small: bool  # whether an observation's numbers are of one byte
    jpeg: bool  # whether observations lost something on the way to the disk
    actions: int
    start: int  # the first action
    frames: int  # emulator frames a step, of an Atari game
    noop: int  # emulator frames of a no-op at the start
    sticky: float
    mode: int | None  # of an Atari game, where it was chosen
    difficulty: int | None
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
    metadata = read_json(folder / "metadata.json")
    named: dict[str, Any] = parse_json(metadata.get("env_spec", '{"id": ""}'))
    options = named.get("kwargs") or {}
    steps = [
        wrapper.get("kwargs", {}).get("frame_skip", 4)
        for wrapper in named.get("additional_wrappers") or ()
        if wrapper["name"] == "AtariPreprocessing"
    ]
    box, discrete = (parse_json(metadata[f"{w}_space"]) for w in ("observation", "action"))
    if (box["type"], discrete["type"]) != ("Box", "Discrete"):
        raise ValueError(f"it has {box['type']} observations and {discrete['type']} actions")
    shape = _shape(box["shape"])
    picture = box["dtype"] == "uint8" and len(shape) in (2, 3) and min(shape[:2]) >= 32
    noop = _whole("frameskip", options.get("frameskip", 4), MOST_FRAMES)
    frames = noop * _whole("frame_skip", steps[0] if steps else 1, MOST_FRAMES)
    return Facts(
        env=str(named["id"]),
        shape=shape,
        small=box["dtype"] == "uint8",
        jpeg=picture and bool(metadata.get("jpeg_encoding", True)),
        actions=_whole("number of actions", discrete["n"], MOST_ACTIONS),
        start=int(discrete.get("start", 0)),
        frames=_whole("number of frames in a step", frames, MOST_FRAMES),
        noop=noop,
        sticky=float(options.get("repeat_action_probability", 0.25)),
        mode=_chosen(options, "mode"),
        difficulty=_chosen(options, "difficulty"),
        form=str(metadata.get("data_format", "hdf5")),
        episodes=int(metadata["total_episodes"]),
    )


def _chosen(options: dict[str, Any], name: str) -> int | None:
    """The mode or difficulty that an environment was made with, if it was."""
    value = options.get(name)
    if value is not None and type(value) is not int:
        raise ValueError(f"its {name} cannot be {value!r:.40}")
    return value


def _whole(word: str, value: Any, most: int) -> int:
    """A number of a file that says how much there is of something."""
    if not isinstance(value, int | float | str) or not 1 <= int(value) <= most:
        raise ValueError(f"its {word} must be 1 ... {most}, not {str(value)[:40]}")
    return int(value)


def _shape(lengths: Any) -> tuple[int, ...]:
    """The shape of an observation."""
    if not isinstance(lengths, list) or len(lengths) > 8:
        raise ValueError("its observations have no shape of at most 8 axes")
    return tuple(_whole("shape", n, 2**31) for n in lengths)


def episodes(folder: Path, facts: Facts) -> Iterator[Raw]:
    """The episodes of a dataset, no more of them than its files can hold."""
    if facts.form not in ("hdf5", "arrow", "parquet"):
        raise ValueError(f"its format {facts.form!r:.40} is unknown")
    if facts.form != "hdf5" and importlib.util.find_spec("pyarrow") is None:
        raise DemonstrationError(f"{folder} needs pyarrow: install it")
    taken = claimed = size = 0
    for i in range(facts.episodes):
        stored = _Stored(folder, facts, i)
        size = stored.size if facts.form == "hdf5" else size + stored.size
        raw, bytes_taken = stored.read()
        taken += bytes_taken
        claimed += len(raw.actions) * (16 + _row_bytes(facts))
        if taken > size or claimed > FREE + RATIO * size:
            raise ValueError(f"episode {i} claims more bytes than its files can hold")
        yield raw


def _row_bytes(facts: Facts) -> int:
    """The bytes that an observation may become in memory; pictures may be of an Atari game."""
    planes = PLANE * -(-facts.frames // 4) if facts.small else 0
    numbers = 0 if facts.jpeg else math.prod(facts.shape) * (1 if facts.small else 8)
    return max(planes, numbers)


class _Stored:
    """An episode in its files, which the helper process reads."""

    def __init__(self, folder: Path, facts: Facts, number: int) -> None:
        self._facts = facts
        self._place = folder / (episode_hdf5.FILE if facts.form == "hdf5" else str(number))
        if facts.form == "hdf5":
            self.size = file_size(self._place)
            self._where = [str(self._place.absolute()), f"episode_{number}"]
        else:
            self.size = sum(file_size(path) for path in self._place.iterdir())
            self._where = [str(self._place.absolute()), facts.form]

    def read(self) -> tuple[Raw, int]:
        """The episode, and the bytes it takes in its files."""
        facts = self._facts
        jpeg = [facts.jpeg] if facts.form == "hdf5" else []
        found, arrays = self._call("episode", (*jpeg, MOST_STEPS), 24 * (MOST_STEPS + 1))
        actions, rewards, ends = arrays
        if facts.form == "hdf5":
            seed, stored = found["seed"], found["stored"]
        else:
            seed, stored = read_json(self._place / "metadata.json").get("seed"), self.size
        raw = Raw(actions, rewards, bool(ends[-1:].any()), seed, self.observations)
        return _checked(raw, found["rows"], facts), stored

    def observations(self, low: int, high: int) -> np.ndarray:
        """Those of low ... high - 1, or as many as there are."""
        facts = self._facts
        size = math.prod(facts.shape)
        rows, found = max(1, SLICE // (8 * size)), []
        for first in range(low, high, rows):
            last = min(first + rows, high)
            most = 8 * size * (last - first)
            (part,) = self._call("observations", (facts.jpeg, size, first, last), most).arrays
            found.append(part.reshape(-1, *facts.shape))
            if len(found[-1]) < last - first:
                break
        return np.concatenate(found) if len(found) > 1 else found[0]

    def _call(self, name: str, arguments: tuple[Any, ...], most: int) -> Answer:
        module = "hdf5" if self._facts.form == "hdf5" else "tables"
        given = (*self._where, *arguments)
        task = Task(f"{module}:{name}", given, self._place.name, self.size, most)
        return SANDBOX.call(task)


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
