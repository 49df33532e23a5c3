"""What a set of demonstrations says of itself: plain JSON, read without its arrays."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import math
import types
from dataclasses import MISSING
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from lookfurther.config import EnvConfig
from lookfurther.demos.bounded_json import parse_json
from lookfurther.demos.episode import Audit, Episode
from lookfurther.envs.emulator import DEFAULT_VARIANT, GameVariant
from lookfurther.envs.naming import is_atari
from lookfurther.errors import DemonstrationError
from lookfurther.types import MAX_ACTIONS, Spec

MAX_ACTION_REPEAT = 2**10  # frames of a step


class Origin(NamedTuple):
    """What a replay needs to be the same: the game and how it was played."""

    game: str  # name of the ROM; "" for environments other than Atari
    meanings: tuple[str, ...]  # of the actions; empty where unknown
    repeat: int  # emulator frames a step; 1 elsewhere
    sticky: float  # probability that the emulator repeated the last action
    library: str  # with its version
    rom: str  # SHA-256, or ""
    wrappers: tuple[str, ...]
    layout: str


class InputLogMetadata(NamedTuple):
    """What is known of a tape besides the action of each frame."""

    length: int  # frames
    writes: tuple[tuple[int, ...], ...]  # (frame, address, value)
    seed: int
    phase: int = 0  # frames of a shorter first step
    variant: GameVariant = DEFAULT_VARIANT


class EpisodeMetadata(NamedTuple):
    """One episode."""

    steps: int
    score: float
    terminal: bool
    seed: int | None
    reel: InputLogMetadata | None
    audit: Audit | None
    digests: dict[str, str]  # SHA-256 of each array

    @property
    def is_verified(self) -> bool:
        """Whether a replay has been seen to equal it."""
        return self.audit is not None and self.audit.verified


class DemoSetDescription(NamedTuple):
    """A whole set."""

    spec: Spec
    author: str
    origin: Origin
    episodes: tuple[EpisodeMetadata, ...]

    def to_json(self) -> str:
        return json.dumps(_to_plain(self))

    @classmethod
    def from_json(cls, text: str) -> DemoSetDescription:
        """The inverse of `to_json`; a ValueError where anything is missing or of another type."""
        description = _from_plain(cls, parse_json(text), "")
        _check_sizes(description.spec, description.origin.repeat)
        if ":" in description.spec.env:  # would import a module of the file's choice
            raise ValueError(f"env {description.spec.env!r:.80} is not an id")
        spec, meanings = description.spec, description.origin.meanings
        if not spec.is_valid() or (meanings and len(meanings) != spec.actions):
            raise ValueError("its spec cannot be")
        return description


def _check_sizes(spec: Spec, action_repeat: int) -> None:
    """A ValueError where an array of such a size would not be of an environment."""
    for word, value, most in (
        ("stack", spec.stack, 2**10),
        ("actions", spec.actions, MAX_ACTIONS),
        ("repeat", action_repeat, MAX_ACTION_REPEAT),
        ("number of axes", len(spec.plane), 8),
        *(("plane", length, 2**31) for length in spec.plane[:8]),
    ):
        if not 1 <= value <= most:
            raise ValueError(f"{word} must be 1 ... {most}, not {str(value)[:40]}")


def make_origin(spec: Spec, env_config: EnvConfig) -> Origin:
    """How episodes seen as `spec` under these settings came to be."""
    adapted = env_config.wrappers, env_config.layout
    if not is_atari(spec.env):
        version = f"gymnasium {importlib.metadata.version('gymnasium')}"
        return Origin("", (), 1, 0.0, version, "", *adapted)
    from lookfurther.envs.emulator import ACTION_MEANINGS, Emulator, rom_digest
    from lookfurther.envs.factory import find_game

    game = find_game(spec.env)
    version = f"ale-py {importlib.metadata.version('ale-py')}"
    how = env_config.action_repeat, env_config.sticky_prob
    legal = range(18) if spec.actions == 18 else Emulator(spec.env).legal_actions
    meanings = tuple(ACTION_MEANINGS[i] for i in legal)
    return Origin(game, meanings, *how, version, rom_digest(game), *adapted)


def describe_episode(episode: Episode, digests: dict[str, str]) -> EpisodeMetadata:
    """The facts of an episode and its arrays' digests."""
    tape = episode.input_log
    reel = None
    if tape is not None:
        writes = tuple(map(tuple, tape.ram_writes.tolist()))
        reel = InputLogMetadata(
            len(tape.frame_actions), writes, tape.seed, tape.phase, tape.variant
        )
    return EpisodeMetadata(
        steps=len(episode),
        score=episode.score,
        terminal=bool(episode.terminal),
        seed=episode.seed,
        reel=reel,
        audit=episode.audit,
        digests=digests,
    )


def check_compatible(
    name: str, description: DemoSetDescription, spec: Spec, env_config: EnvConfig
) -> None:
    """Refuse a set of another environment, or of the same one played in another way."""
    theirs = description.spec
    if (theirs.env, theirs.actions) != (spec.env, spec.actions):
        raise DemonstrationError(
            f"{name} shows {theirs.env} with {theirs.actions} actions, the training environment is"
            f" {spec.env} with {spec.actions}"
        )
    if not description.episodes:
        raise DemonstrationError(f"{name} holds no episodes")
    how = description.origin
    for word, made, wanted in (
        ("action repeat", how.repeat, env_config.action_repeat),
        ("sticky probability", how.sticky, env_config.sticky_prob),
    ):
        if how.game and made != wanted:
            raise DemonstrationError(
                f"{name} was made with {word} {made:g}, the training environment has {wanted:g}"
            )
    for facts in description.episodes:
        _check_variant(name, facts.reel.variant if facts.reel else DEFAULT_VARIANT)


def _check_variant(name: str, variant: GameVariant) -> None:
    """Refuse what was played in a variant of the game that the vector environment cannot play."""
    for word, made in variant._asdict().items():
        if made is not None:
            raise DemonstrationError(
                f"{name} was made with {word} {made} of the game, the training environment has the"
                f" {word} it starts with: use demonstrations of that"
            )


def check_same_origin(name: str, existing: DemoSetDescription, added: DemoSetDescription) -> None:
    """Refuse to join what was not made in the same way."""
    theirs = existing.origin._replace(library="")._asdict() | existing.spec._asdict()
    ours = added.origin._replace(library="")._asdict() | added.spec._asdict()
    for word, value in theirs.items():
        if value != ours[word]:
            raise DemonstrationError(f"{name} has {word} {value!r}, the others {ours[word]!r}")


def _to_plain(value: Any) -> Any:
    """Records as objects, tuples as lists."""
    if isinstance(value, Audit):
        return dataclasses.asdict(value)
    if hasattr(value, "_asdict"):
        return {name: _to_plain(x) for name, x in value._asdict().items()}
    return [_to_plain(x) for x in value] if isinstance(value, tuple) else value


def _optional_fields(record_type: Any) -> set[str]:
    """The fields of a record that sets of older versions lack."""
    if dataclasses.is_dataclass(record_type):
        return {f.name for f in dataclasses.fields(record_type) if f.default_factory is not MISSING}
    return set(record_type._field_defaults)


def _from_plain(expected_type: Any, value: Any, path: str) -> Any:
    """Plain data as the type `kind` says: nothing added or of another type, nothing missing
    but what older versions did not write."""
    arguments = get_args(expected_type)
    if isinstance(expected_type, types.UnionType):  # of a type and None
        return None if value is None else _from_plain(arguments[0], value, path)
    if get_origin(expected_type) is tuple and isinstance(value, list):
        return tuple(_from_plain(arguments[0], x, path) for x in value)
    if get_origin(expected_type) is dict and isinstance(value, dict):
        return {name: _from_plain(arguments[1], x, path) for name, x in value.items()}
    if hasattr(expected_type, "__annotations__") and isinstance(value, dict):
        hints = get_type_hints(expected_type)
        if not set(hints) - _optional_fields(expected_type) <= set(value) <= set(hints):
            raise ValueError(f"{path or 'it'} must have {', '.join(hints)}")
        return expected_type(
            **{name: _from_plain(hints[name], x, name) for name, x in value.items()}
        )
    if expected_type is float and type(value) is int and abs(value) < 2**53:
        return float(value)
    if type(value) is not expected_type or (expected_type is float and not math.isfinite(value)):
        raise ValueError(f"{path or 'it'} cannot be {str(value)[:40]!r}")
    return value
