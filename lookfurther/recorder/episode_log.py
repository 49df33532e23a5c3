"""A take: the episode being played, each step of it in the journal before the next is played."""

from __future__ import annotations

import base64
import dataclasses
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lookfurther.config import Environment
from lookfurther.demos.episode import Episode, Tape
from lookfurther.errors import DemonstrationError
from lookfurther.recorder.journal import Journal
from lookfurther.types import END, TERMINAL, Spec

FORMAT = 1
SHOWN = ("wrappers", "layout", "stack", "repeat", "full_actions", "sticky")  # change what is seen


class Moment(NamedTuple):
    """One step of a take, and the plane that followed it."""

    action: int
    reward: float
    frames: int  # that it lasted: fewer than `repeat` where the game ended in it
    end: int  # 0, TERMINAL or TRUNCATED
    plane: bytes  # compressed


class Script(NamedTuple):
    """What it takes to play steps again, and to see that they are the same."""

    seed: int
    opening: bytes  # the first plane, compressed
    moments: Sequence[Moment]


class Take:
    """What was played since the game began, without what was rewound."""

    def __init__(self, journal: Journal, spec: Spec, seed: int, opening: bytes) -> None:
        self.spec, self.seed, self.opening = spec, seed, opening
        self.moments: list[Moment] = []
        self.score, self.frames = 0.0, 0
        self.kept: int | None = None  # episodes the set had when this one was about to join them
        self._journal = journal

    @classmethod
    def begin(
        cls, journal: Journal, spec: Spec, environment: Environment, seed: int, plane: np.ndarray
    ) -> Take:
        """A take of no steps yet, in place of all the journal held."""
        journal.clear()
        take = cls(journal, spec, seed, pack(plane))
        header = {"format": FORMAT, "seed": seed, "plane": _text(take.opening)}
        journal.add(header | facts(spec, environment))
        return take

    @classmethod
    def recover(cls, journal: Journal, spec: Spec, environment: Environment) -> Take | None:
        """The take a journal holds, if it has steps; one of another environment is refused."""
        lines = journal.lines()
        if len(lines) < 2:
            return None
        header, *rest = lines
        ours = {"format": FORMAT} | facts(spec, environment)
        if {name: header.get(name) for name in ours} != ours:
            env = header.get("spec", {}).get("env", "something else")
            raise DemonstrationError(
                f"{journal.path} holds an unfinished episode of {env} with other settings:"
                " go on with those it was begun with, or move the file away"
            )
        try:
            take = cls(journal, spec, int(header["seed"]), _bytes(header["plane"]))
            for line in rest:
                take._read(line)
        except (ValueError, KeyError, TypeError, zlib.error) as error:
            raise DemonstrationError(
                f"{journal.path} is not a journal of ours ({error!r}): move it away"
            ) from None
        return take if take.moments else None

    def add(self, moment: Moment) -> None:
        """One more step, on disk when this returns."""
        line = moment._asdict() | {"plane": _text(moment.plane)}
        self._journal.add(line)
        self._append(moment)

    def cut(self, steps: int) -> None:
        """Forget all but the first `steps` steps."""
        if steps < len(self.moments):
            self._journal.add({"cut": steps})
            self._cut(steps)

    def keep(self, held: int) -> None:
        """Note that the take is about to join a set of `held` episodes.

        A recorder killed just after it has joined can so tell that it need not be saved again.
        """
        self._journal.add({"kept": held})
        self.kept = held

    def script(self, steps: int) -> Script:
        """The first `steps` steps."""
        return Script(self.seed, self.opening, self.moments[:steps])

    @property
    def over(self) -> bool:
        """Whether the last step ended the episode."""
        return bool(self.moments) and self.moments[-1].end & END != 0

    def episode(self, tape: Tape | None) -> Episode:
        """What was played, as demonstrations are kept."""
        planes = [self.opening, *(moment.plane for moment in self.moments)]
        return Episode(
            planes=np.stack([unpack(plane, self.spec) for plane in planes]),
            actions=np.array([moment.action for moment in self.moments], np.int64),
            rewards=np.array([moment.reward for moment in self.moments], np.float32),
            terminal=bool(self.moments and self.moments[-1].end & TERMINAL),
            seed=self.seed,
            tape=tape,
        )

    def _append(self, moment: Moment) -> None:
        self.moments.append(moment)
        self.kept = None
        self.score += moment.reward
        self.frames += moment.frames

    def _cut(self, steps: int) -> None:
        kept, self.moments = self.moments[:steps], []
        self.score, self.frames = 0.0, 0
        for moment in kept:
            self._append(moment)

    def _read(self, line: dict[str, Any]) -> None:
        if "cut" in line:
            self._cut(int(line["cut"]))
        elif "kept" in line:
            self.kept = int(line["kept"])
        else:
            plane = _bytes(line["plane"])
            unpack(plane, self.spec)
            action, frames, end = (int(line[name]) for name in ("action", "frames", "end"))
            self._append(Moment(action, float(line["reward"]), frames, end, plane))


def pack(plane: np.ndarray) -> bytes:
    """A plane for keeping: about 1 kB for one of Atari's."""
    return zlib.compress(np.ascontiguousarray(plane).tobytes(), 1)


def unpack(data: bytes, spec: Spec) -> np.ndarray:
    """The inverse of `pack`, which never makes more bytes than a plane has."""
    size = int(np.prod(spec.plane)) * np.dtype(spec.dtype).itemsize
    content = zlib.decompressobj().decompress(data, size)
    return np.frombuffer(content, spec.dtype).reshape(spec.plane)


def facts(spec: Spec, environment: Environment) -> dict[str, Any]:
    """What two takes must share to be of the same thing, as JSON gives it back."""
    seen = dataclasses.asdict(environment)
    settings = {name: seen[name] for name in SHOWN} | {"wrappers": list(environment.wrappers)}
    return {"spec": spec._asdict() | {"plane": list(spec.plane)}, "environment": settings}


def actions(moments: Sequence[Moment]) -> np.ndarray:
    """The action of every frame, [F] uint8."""
    each = np.array([moment.action for moment in moments], np.uint8)
    return np.repeat(each, np.array([moment.frames for moment in moments], np.int64))


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
