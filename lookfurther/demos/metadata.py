"""The description of a demonstration set: plain JSON, read without the arrays."""

from __future__ import annotations

import importlib.metadata
import json
from typing import NamedTuple

from lookfurther.config import EnvConfig
from lookfurther.demos.bounded_json import from_plain, parse_json, to_plain
from lookfurther.demos.episode import Audit, Episode
from lookfurther.envs.emulator import (
    ACTION_MEANINGS,
    DEFAULT_VARIANT,
    Emulator,
    GameVariant,
    rom_digest,
)
from lookfurther.envs.factory import find_game
from lookfurther.envs.naming import is_atari
from lookfurther.errors import DemonstrationError
from lookfurther.types import Spec

MAX_ACTION_REPEAT = MAX_FRAME_STACK = 2**10

# The fields of the records below are the keys of the JSON.


class Origin(NamedTuple):
    """The game and the settings that a replay needs to give the same episodes."""

    game: str  # name of the ROM; "" if the environment is not an Atari game
    meanings: tuple[str, ...]  # of the actions; empty if unknown
    repeat: int  # emulator frames per step; 1 if not an Atari game
    sticky: float  # probability that the emulator repeated the last action
    library: str  # with its version
    rom: str  # SHA-256, or ""
    wrappers: tuple[str, ...]
    layout: str


class InputLogMetadata(NamedTuple):
    """An input log without the actions of its frames."""

    length: int  # frames
    writes: tuple[tuple[int, ...], ...]  # (frame, address, value)
    seed: int
    phase: int = 0  # frames of a shorter first step
    variant: GameVariant = DEFAULT_VARIANT


class EpisodeMetadata(NamedTuple):
    """An episode without its arrays."""

    steps: int
    score: float
    terminal: bool
    seed: int | None
    reel: InputLogMetadata | None  # the input log
    audit: Audit | None
    digests: dict[str, str]  # SHA-256 of each array
    first_imitated_step: int = 0
    random_steps: tuple[int, ...] = ()

    @property
    def demonstrated_steps(self) -> int:
        """The number of steps without those of an agent and without random actions."""
        random_steps = sum(step >= self.first_imitated_step for step in self.random_steps)
        return self.steps - self.first_imitated_step - random_steps

    @property
    def is_verified(self) -> bool:
        """Whether a replay of the episode was equal to it."""
        return self.audit is not None and self.audit.verified


class DemoSetDescription(NamedTuple):
    """A demonstration set without its arrays."""

    spec: Spec
    author: str
    origin: Origin
    episodes: tuple[EpisodeMetadata, ...]

    def to_json(self) -> str:
        return json.dumps(to_plain(self))

    @classmethod
    def from_json(cls, text: str) -> DemoSetDescription:
        """The inverse of `to_json`; a ValueError if a field is missing or not valid."""
        description = from_plain(cls, parse_json(text))
        spec, origin = description.spec, description.origin
        if ":" in spec.env:  # building it would import a module that the file chooses
            raise ValueError(f"env {spec.env!r:.80} is not an id")
        for field, value, limit in (
            ("repeat", origin.repeat, MAX_ACTION_REPEAT),
            ("stack", spec.stack, MAX_FRAME_STACK),
        ):
            if not 1 <= value <= limit:
                raise ValueError(f"{field} must be 1 ... {limit}, not {str(value)[:40]}")
        if not spec.is_valid() or (origin.meanings and len(origin.meanings) != spec.actions):
            raise ValueError("its spec is not valid")
        return description


def make_origin(spec: Spec, env_config: EnvConfig) -> Origin:
    """The origin of episodes that are recorded now with these settings."""
    adapters = env_config.wrappers, env_config.layout
    if not is_atari(spec.env):
        version = f"gymnasium {importlib.metadata.version('gymnasium')}"
        return Origin("", (), 1, 0.0, version, "", *adapters)
    game = find_game(spec.env)
    version = f"ale-py {importlib.metadata.version('ale-py')}"
    stepping = env_config.action_repeat, env_config.sticky_prob
    legal = range(18) if spec.actions == 18 else Emulator(spec.env).legal_actions
    meanings = tuple(ACTION_MEANINGS[i] for i in legal)
    return Origin(game, meanings, *stepping, version, rom_digest(game), *adapters)


def describe_episode(episode: Episode, digests: dict[str, str]) -> EpisodeMetadata:
    """The metadata of an episode whose arrays have these digests."""
    log = episode.input_log
    log_metadata = None
    if log is not None:
        writes = tuple(map(tuple, log.ram_writes.tolist()))
        log_metadata = InputLogMetadata(
            len(log.frame_actions), writes, log.seed, log.phase, log.variant
        )
    return EpisodeMetadata(
        steps=len(episode),
        score=episode.score,
        terminal=bool(episode.terminal),
        seed=episode.seed,
        reel=log_metadata,
        audit=episode.audit,
        digests=digests,
        first_imitated_step=episode.first_imitated_step,
        random_steps=episode.random_steps,
    )


def check_compatible(
    name: str, description: DemoSetDescription, spec: Spec, env_config: EnvConfig
) -> None:
    """Raise if a set is from another environment or was recorded with other settings."""
    recorded = description.spec
    if (recorded.env, recorded.actions) != (spec.env, spec.actions):
        raise DemonstrationError(
            f"{name} shows {recorded.env} with {recorded.actions} actions, the training"
            f" environment is {spec.env} with {spec.actions}"
        )
    if not description.episodes:
        raise DemonstrationError(f"{name} holds no episodes")
    origin = description.origin
    for setting, value, wanted in (
        ("action repeat", origin.repeat, env_config.action_repeat),
        ("sticky probability", origin.sticky, env_config.sticky_prob),
    ):
        if origin.game and value != wanted:
            raise DemonstrationError(
                f"{name} was made with {setting} {value:g}, the training environment has {wanted:g}"
            )
    for episode in description.episodes:
        _check_variant(name, episode.reel.variant if episode.reel else DEFAULT_VARIANT)


def _check_variant(name: str, variant: GameVariant) -> None:
    """Raise if a set has a variant of the game that the vector environment cannot play."""
    for setting, value in variant._asdict().items():
        if value is not None:
            raise DemonstrationError(
                f"{name} was made with {setting} {value} of the game, the training environment has"
                f" the {setting} it starts with: use demonstrations of that"
            )


def check_same_origin(name: str, existing: DemoSetDescription, added: DemoSetDescription) -> None:
    """Raise if episodes to append were not made in the same way as a set."""
    old = existing.origin._replace(library="")._asdict() | existing.spec._asdict()
    new = added.origin._replace(library="")._asdict() | added.spec._asdict()
    for field, value in old.items():
        if value != new[field]:
            raise DemonstrationError(f"{name} has {field} {value!r}, the others {new[field]!r}")
