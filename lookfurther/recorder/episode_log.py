"""The episode in progress; every step is in the journal before the next one is played."""

from __future__ import annotations

import base64
import dataclasses
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lookfurther.config import EnvConfig
from lookfurther.demos.episode import Episode, InputLog
from lookfurther.errors import DemonstrationError
from lookfurther.recorder.journal import Journal
from lookfurther.types import END, TERMINAL, Spec

JOURNAL_FORMAT = 1
# Settings that change observations.
OBSERVATION_SETTINGS = (
    "wrappers",
    "layout",
    "frame_stack",
    "action_repeat",
    "full_actions",
    "sticky_prob",
)


class RecordedStep(NamedTuple):
    """One step and the plane after it. The field names are keys in the journal."""

    action: int
    reward: float
    frames: int  # fewer than `action_repeat` if the game ended within the step
    end: int  # 0, TERMINAL or TRUNCATED
    plane: bytes  # compressed


class StepSequence(NamedTuple):
    """Steps from the start of an episode, with the planes that a replay must reproduce."""

    seed: int
    first_plane: bytes  # compressed
    steps: Sequence[RecordedStep]


class EpisodeLog:
    """The steps played since the start of the episode, without those that were rewound."""

    def __init__(self, journal: Journal, spec: Spec, seed: int, first_plane: bytes) -> None:
        self.spec, self.seed, self.first_plane = spec, seed, first_plane
        self.steps: list[RecordedStep] = []
        self.score, self.frames = 0.0, 0
        self._set_size_at_save: int | None = None  # episodes in the set before this one
        self._journal = journal

    @classmethod
    def start(
        cls, journal: Journal, spec: Spec, env_config: EnvConfig, seed: int, plane: np.ndarray
    ) -> EpisodeLog:
        """Return a log without steps; it replaces the contents of the journal."""
        journal.clear()
        log = cls(journal, spec, seed, compress_plane(plane))
        header = {"format": JOURNAL_FORMAT, "seed": seed, "plane": _encode_base64(log.first_plane)}
        journal.append(header | compatibility_fields(spec, env_config))
        return log

    @classmethod
    def recover(cls, journal: Journal, spec: Spec, env_config: EnvConfig) -> EpisodeLog | None:
        """Read the log from a journal, or None if it has no steps."""
        lines = journal.read_lines()
        if len(lines) < 2:
            return None
        header, *rest = lines
        expected = {"format": JOURNAL_FORMAT} | compatibility_fields(spec, env_config)
        if {name: header.get(name) for name in expected} != expected:
            env = header.get("spec", {}).get("env", "another environment")
            raise DemonstrationError(
                f"{journal.path} contains an unfinished episode of {env} with other settings:"
                " continue with those settings, or move the file away"
            )
        try:
            log = cls(journal, spec, int(header["seed"]), _decode_base64(header["plane"]))
            for line in rest:
                log._apply_line(line)
        except (ValueError, KeyError, TypeError, zlib.error) as error:
            raise DemonstrationError(
                f"{journal.path} is not a recorder journal ({error!r}): move it away"
            ) from None
        return log if log.steps else None

    def add(self, step: RecordedStep) -> None:
        """Append a step; it is in the journal when this returns."""
        self._journal.append(step._asdict() | {"plane": _encode_base64(step.plane)})
        self._append(step)

    def truncate(self, length: int) -> None:
        """Keep only the first `length` steps."""
        if length < len(self.steps):
            self._journal.append({"cut": length})
            self._truncate(length)

    def mark_saving(self, set_size: int) -> None:
        """Record that the episode is about to be added to a set of `set_size` episodes.

        If the recorder is killed after that, the next one knows that the episode is saved.
        """
        self._journal.append({"kept": set_size})
        self._set_size_at_save = set_size

    def is_saved(self, set_size: int) -> bool:
        """Whether a set that now has `set_size` episodes contains this one."""
        return self._set_size_at_save is not None and set_size > self._set_size_at_save

    def step_sequence(self, length: int | None = None) -> StepSequence:
        """Return the first `length` steps, or all."""
        return StepSequence(self.seed, self.first_plane, self.steps[:length])

    @property
    def is_over(self) -> bool:
        """Whether the last step ended the episode."""
        return bool(self.steps) and self.steps[-1].end & END != 0

    def to_episode(self, input_log: InputLog | None) -> Episode:
        """Convert to the episode that a demonstration set stores."""
        planes = [self.first_plane, *(step.plane for step in self.steps)]
        return Episode(
            planes=np.stack([decompress_plane(plane, self.spec) for plane in planes]),
            actions=np.array([step.action for step in self.steps], np.int64),
            rewards=np.array([step.reward for step in self.steps], np.float32),
            terminal=bool(self.steps and self.steps[-1].end & TERMINAL),
            seed=self.seed,
            input_log=input_log,
        )

    def _append(self, step: RecordedStep) -> None:
        self.steps.append(step)
        self._set_size_at_save = None
        self.score += step.reward
        self.frames += step.frames

    def _truncate(self, length: int) -> None:
        kept, self.steps = self.steps[:length], []
        self.score, self.frames = 0.0, 0
        for step in kept:
            self._append(step)

    def _apply_line(self, line: dict[str, Any]) -> None:
        if "cut" in line:
            self._truncate(int(line["cut"]))
        elif "kept" in line:
            self._set_size_at_save = int(line["kept"])
        else:
            plane = _decode_base64(line["plane"])
            decompress_plane(plane, self.spec)
            action, frames, end = (int(line[name]) for name in ("action", "frames", "end"))
            self._append(RecordedStep(action, float(line["reward"]), frames, end, plane))


def compress_plane(plane: np.ndarray) -> bytes:
    """Compress a plane: about 1 kB for Atari."""
    return zlib.compress(np.ascontiguousarray(plane).tobytes(), 1)


def decompress_plane(data: bytes, spec: Spec) -> np.ndarray:
    """The inverse of `compress_plane`; never allocates more than one plane."""
    size = int(np.prod(spec.plane)) * np.dtype(spec.dtype).itemsize
    content = zlib.decompressobj().decompress(data, size)
    return np.frombuffer(content, spec.dtype).reshape(spec.plane)


def compatibility_fields(spec: Spec, env_config: EnvConfig) -> dict[str, Any]:
    """Return the fields that must be equal to continue an episode, as JSON represents them."""
    values = dataclasses.asdict(env_config) | {"wrappers": list(env_config.wrappers)}
    settings = {name: values[name] for name in OBSERVATION_SETTINGS}
    return {"spec": spec._asdict() | {"plane": list(spec.plane)}, "environment": settings}


def actions_per_frame(steps: Sequence[RecordedStep]) -> np.ndarray:
    """The action of every frame, [F] uint8."""
    actions = np.array([step.action for step in steps], np.uint8)
    return np.repeat(actions, np.array([step.frames for step in steps], np.int64))


def _encode_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decode_base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
