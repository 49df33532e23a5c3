"""A take: the episode being played, each step of it in the journal before the next is played."""

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
    """One step of a take, and the plane that followed it."""

    action: int
    reward: float
    frames: int  # that it lasted: fewer than `repeat` where the game ended in it
    end: int  # 0, TERMINAL or TRUNCATED
    plane: bytes  # compressed


class StepSequence(NamedTuple):
    """What it takes to play steps again, and to see that they are the same."""

    seed: int
    opening: bytes  # the first plane, compressed
    moments: Sequence[RecordedStep]


class EpisodeLog:
    """What was played since the game began, without what was rewound."""

    def __init__(self, journal: Journal, spec: Spec, seed: int, first_plane: bytes) -> None:
        self.spec, self.seed, self.first_plane = spec, seed, first_plane
        self.steps: list[RecordedStep] = []
        self.score, self.frames = 0.0, 0
        self.set_size_at_save: int | None = (
            None  # episodes the set had when this one was about to join them
        )
        self._journal = journal

    @classmethod
    def start(
        cls, journal: Journal, spec: Spec, env_config: EnvConfig, seed: int, plane: np.ndarray
    ) -> EpisodeLog:
        """A take of no steps yet, in place of all the journal held."""
        journal.clear()
        take = cls(journal, spec, seed, compress_plane(plane))
        header = {"format": JOURNAL_FORMAT, "seed": seed, "plane": _encode_base64(take.first_plane)}
        journal.append(header | compatibility_fields(spec, env_config))
        return take

    @classmethod
    def recover(cls, journal: Journal, spec: Spec, env_config: EnvConfig) -> EpisodeLog | None:
        """The take a journal holds, if it has steps; one of another environment is refused."""
        lines = journal.read_lines()
        if len(lines) < 2:
            return None
        header, *rest = lines
        ours = {"format": JOURNAL_FORMAT} | compatibility_fields(spec, env_config)
        if {name: header.get(name) for name in ours} != ours:
            env = header.get("spec", {}).get("env", "something else")
            raise DemonstrationError(
                f"{journal.path} holds an unfinished episode of {env} with other settings:"
                " go on with those it was begun with, or move the file away"
            )
        try:
            take = cls(journal, spec, int(header["seed"]), _decode_base64(header["plane"]))
            for line in rest:
                take._apply_line(line)
        except (ValueError, KeyError, TypeError, zlib.error) as error:
            raise DemonstrationError(
                f"{journal.path} is not a journal of ours ({error!r}): move it away"
            ) from None
        return take if take.steps else None

    def add(self, step: RecordedStep) -> None:
        """One more step, on disk when this returns."""
        line = step._asdict() | {"plane": _encode_base64(step.plane)}
        self._journal.append(line)
        self._append(step)

    def truncate(self, length: int) -> None:
        """Forget all but the first `steps` steps."""
        if length < len(self.steps):
            self._journal.append({"cut": length})
            self._truncate(length)

    def mark_saving(self, set_size: int) -> None:
        """Note that the take is about to join a set of `held` episodes.

        A recorder killed just after it has joined can so tell that it need not be saved again.
        """
        self._journal.append({"kept": set_size})
        self.set_size_at_save = set_size

    def step_sequence(self, length: int) -> StepSequence:
        """The first `steps` steps."""
        return StepSequence(self.seed, self.first_plane, self.steps[:length])

    @property
    def is_over(self) -> bool:
        """Whether the last step ended the episode."""
        return bool(self.steps) and self.steps[-1].end & END != 0

    def to_episode(self, input_log: InputLog | None) -> Episode:
        """What was played, as demonstrations are kept."""
        planes = [self.first_plane, *(moment.plane for moment in self.steps)]
        return Episode(
            planes=np.stack([decompress_plane(plane, self.spec) for plane in planes]),
            actions=np.array([moment.action for moment in self.steps], np.int64),
            rewards=np.array([moment.reward for moment in self.steps], np.float32),
            terminal=bool(self.steps and self.steps[-1].end & TERMINAL),
            seed=self.seed,
            input_log=input_log,
        )

    def _append(self, step: RecordedStep) -> None:
        self.steps.append(step)
        self.set_size_at_save = None
        self.score += step.reward
        self.frames += step.frames

    def _truncate(self, length: int) -> None:
        kept, self.steps = self.steps[:length], []
        self.score, self.frames = 0.0, 0
        for moment in kept:
            self._append(moment)

    def _apply_line(self, line: dict[str, Any]) -> None:
        if "cut" in line:
            self._truncate(int(line["cut"]))
        elif "kept" in line:
            self.set_size_at_save = int(line["kept"])
        else:
            plane = _decode_base64(line["plane"])
            decompress_plane(plane, self.spec)
            action, frames, end = (int(line[name]) for name in ("action", "frames", "end"))
            self._append(RecordedStep(action, float(line["reward"]), frames, end, plane))


def compress_plane(plane: np.ndarray) -> bytes:
    """A plane for keeping: about 1 kB for one of Atari's."""
    return zlib.compress(np.ascontiguousarray(plane).tobytes(), 1)


def decompress_plane(data: bytes, spec: Spec) -> np.ndarray:
    """The inverse of `pack`, which never makes more bytes than a plane has."""
    size = int(np.prod(spec.plane)) * np.dtype(spec.dtype).itemsize
    content = zlib.decompressobj().decompress(data, size)
    return np.frombuffer(content, spec.dtype).reshape(spec.plane)


def compatibility_fields(spec: Spec, env_config: EnvConfig) -> dict[str, Any]:
    """What two takes must share to be of the same thing, as JSON gives it back."""
    seen = dataclasses.asdict(env_config)
    settings = {name: seen[name] for name in OBSERVATION_SETTINGS} | {
        "wrappers": list(env_config.wrappers)
    }
    return {"spec": spec._asdict() | {"plane": list(spec.plane)}, "environment": settings}


def actions_per_frame(steps: Sequence[RecordedStep]) -> np.ndarray:
    """The action of every frame, [F] uint8."""
    each = np.array([moment.action for moment in steps], np.uint8)
    return np.repeat(each, np.array([moment.frames for moment in steps], np.int64))


def _encode_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decode_base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
