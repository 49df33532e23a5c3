"""Minari datasets made by others, as episodes that training can use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lookfurther.config import EnvConfig
from lookfurther.demos import storage
from lookfurther.demos.bounded_json import MAX_JSON_BYTES
from lookfurther.demos.catalog import trusted_env_config
from lookfurther.demos.episode import Audit, Episode, InputLog, check_episodes
from lookfurther.demos.importers import ImportedDemos
from lookfurther.demos.importers.minari_files import (
    MinariMetadata,
    RawEpisode,
    iter_raw_episodes,
    read_minari_metadata,
)
from lookfurther.demos.playback import (
    count_ambiguous_steps,
    episode_from_log,
    play_log,
    truncate_log,
    with_best_phase,
)
from lookfurther.demos.verify import verify_episode
from lookfurther.envs import get_spec
from lookfurther.envs.emulator import (
    DEFAULT_VARIANT,
    Emulator,
    GameVariant,
    normalise_variant,
    resize_by_area,
)
from lookfurther.envs.factory import find_game
from lookfurther.envs.naming import is_atari
from lookfurther.errors import DemonstrationError, LookFurtherError
from lookfurther.types import Spec

MAX_NOOPS = 30  # most no-ops that may have come before the first stored step
MAX_MEAN_PIXEL_DIFFERENCE = (
    6.0  # mean difference of pixels up to which two pictures are of the same moment
)
LUMA_WEIGHTS = (0.2989, 0.5870, 0.1140)  # of red, green and blue, as the emulator's grey has them
CONVERSION_BATCH = 256  # observations converted together


def read_minari_dataset(
    path: Path, env: str, env_config: EnvConfig, force: bool, modules: Sequence[str] = ()
) -> ImportedDemos:
    """The episodes of a dataset, ours or another's, by its folder or its HDF5 file."""
    folder = path.parent if path.is_file() else path
    folder = folder if (folder / "metadata.json").exists() else folder / "data"
    if b'"lookfurther"' in _read_metadata_bytes(folder):
        return _read_own_dataset(folder, env, force, modules)
    try:
        facts = read_minari_metadata(folder)
        env = env or facts.env
        if not env or (env == facts.env and ":" in env):
            raise DemonstrationError(f"{path} does not say its environment: name it with --env")
        return _read_foreign_dataset(str(path), folder, facts, env, env_config, force)
    except LookFurtherError:
        raise
    except Exception as error:  # whatever a cut, altered or hostile file leads to
        reason = " ".join(f"{type(error).__name__}: {str(error)[:200]}".split())
        raise DemonstrationError(f"{path} is no readable Minari dataset: {reason}") from error


def _read_own_dataset(folder: Path, env: str, force: bool, modules: Sequence[str]) -> ImportedDemos:
    """A set of our own, which someone has shared: replayed again here."""
    name = str(folder.parent)
    description = storage.read_description(name)
    environment = trusted_env_config(description, modules)
    spec = description.spec
    found = storage.load_episodes(name, spec, env_config=environment)
    played = spec._replace(env=env or spec.env)
    audits = [verify_episode(episode, played, environment) for episode in found]
    for i, (episode, audit) in enumerate(zip(found, audits, strict=True)):
        if audit.mismatch and _is_replayable(episode) and not force:
            raise DemonstrationError(f"{name}, episode {i}: {audit.mismatch}; force takes it")
    return ImportedDemos(
        [replace(e, audit=a) for e, a in zip(found, audits, strict=True)], spec, environment
    )


def _read_metadata_bytes(folder: Path) -> bytes:
    path = folder / "metadata.json"
    if not path.is_file():
        raise DemonstrationError(f"{folder} holds no Minari dataset")
    with path.open("rb") as file:
        return file.read(MAX_JSON_BYTES)


def _is_replayable(episode: Episode) -> bool:
    return episode.seed is not None or episode.input_log is not None


def _read_foreign_dataset(
    source: str,
    folder: Path,
    metadata: MinariMetadata,
    env: str,
    env_config: EnvConfig,
    force: bool,
) -> ImportedDemos:
    spec = get_spec(env, env_config)
    atari = is_atari(spec.env)
    if atari:
        env_config = replace(env_config, sticky_prob=metadata.sticky_prob)
    found = []
    for i, raw in enumerate(iter_raw_episodes(folder, metadata)):
        if atari:
            episode = _convert_atari_episode(raw, metadata, spec, env_config)
        else:
            episode = _convert_gymnasium_episode(raw, spec, env_config, metadata)
        audit = episode.audit
        if audit and audit.mismatch and (atari or _is_replayable(episode)) and not force:
            where = f"{source}, episode {i}"
            raise DemonstrationError(f"{where}: {audit.mismatch}; force takes it as it is")
        found.append(episode)
    check_episodes(found, spec, source)
    return ImportedDemos(found, spec, env_config)


def _convert_gymnasium_episode(
    raw: RawEpisode, spec: Spec, env_config: EnvConfig, metadata: MinariMetadata
) -> Episode:
    """An episode of another environment, its observations as they are."""
    if metadata.is_jpeg:
        raise DemonstrationError("its observations are JPEG, and only Atari games can mend that")
    planes = raw.read_observations(0, len(raw.actions) + 1)
    if planes.ndim == 4 and env_config.layout == "hwc":
        planes = planes.transpose(0, 3, 1, 2)
    if planes.ndim == 3:
        planes = planes[:, None]
    if planes.shape[1:] != spec.plane:
        raise DemonstrationError(
            f"its observations are {metadata.observation_shape}, {spec.env} shows {spec.plane}"
        )
    if spec.dtype == "uint8" and planes.dtype.kind not in "iu":
        raise DemonstrationError(
            f"its observations are {planes.dtype}, {spec.env} shows whole numbers"
        )
    planes = np.ascontiguousarray(planes, spec.dtype)
    rewards = raw.rewards.astype(np.float32)
    episode = Episode(planes, raw.actions, rewards, raw.terminal, raw.seed)
    return replace(episode, audit=verify_episode(episode, spec, env_config))


def _convert_atari_episode(
    raw: RawEpisode, metadata: MinariMetadata, spec: Spec, env_config: EnvConfig
) -> Episode:
    """An episode of an Atari game: played again where that gives what was stored.

    That makes whole what JPEG, another size or a missing frame has spoilt.
    """
    variant = normalise_variant(find_game(spec.env), metadata.mode, metadata.difficulty)
    seed = 0
    if raw.seed is not None:  # as ale-py's own environment draws it
        seed = int(np.random.SeedSequence(raw.seed).generate_state(2)[1].astype(np.int32))
    emulator = Emulator(spec.env, 1, metadata.sticky_prob, seed, variant=variant)
    ids = _to_emulator_actions(raw, metadata, emulator)
    tape = _find_input_log(
        ids, raw, metadata, InputLog(ids[:0], seed=seed, variant=variant), emulator
    )
    if tape is None:
        fault = "its actions do not lead to its rewards and pictures"
        how = _format_variant(variant)
        played = f"{fault}, played with {metadata.frames_per_step} frames a step{how}"
        if variant != DEFAULT_VARIANT or metadata.frames_per_step != env_config.action_repeat:
            raise DemonstrationError(f"{played}, which its pictures alone cannot say")
        actions = np.searchsorted(emulator.legal_actions, ids)
        return _convert_stored_observations(raw._replace(actions=actions), metadata, spec, fault)
    tape = with_best_phase(tape, env_config.action_repeat)
    episode = episode_from_log(tape, spec.env, env_config.action_repeat, env_config.sticky_prob)
    several = count_ambiguous_steps(tape, env_config.action_repeat)
    score = float(raw.rewards.sum())
    checks = {"rewards": len(raw.rewards), "end": 1, "last_picture": 1}
    audit = Audit(True, score, episode.score, len(tape.frame_actions), several, "", checks)
    return replace(episode, audit=audit)


def _format_variant(variant: GameVariant) -> str:
    chosen = variant._asdict().items()
    return "".join(f", {word} {value}" for word, value in chosen if value is not None)


def _to_emulator_actions(
    raw: RawEpisode, metadata: MinariMetadata, emulator: Emulator
) -> np.ndarray:
    """The emulator's id of each step's action, [T] uint8."""
    sets = {len(ids): ids for ids in (emulator.legal_actions, emulator.minimal_actions)}
    if metadata.num_actions not in sets:
        raise DemonstrationError(
            f"{emulator.game} has {min(sets)} actions of its own, not {metadata.num_actions}"
        )
    return np.array(sets[metadata.num_actions], np.uint8)[raw.actions]


def _find_input_log(
    ids: np.ndarray,
    raw: RawEpisode,
    metadata: MinariMetadata,
    template: InputLog,
    emulator: Emulator,
) -> InputLog | None:
    """The frames that give the stored rewards and the last picture, after 0 ... 30 no-ops."""
    steps = np.repeat(ids, metadata.frames_per_step)
    last = raw.read_observations(len(raw.actions), len(raw.actions) + 1)[0]
    for noops in range(MAX_NOOPS + 1):
        lead = np.zeros(noops * metadata.frames_per_noop, np.uint8)
        tape = replace(template, frame_actions=np.concatenate([lead, steps]))
        if noops:
            emulator.reset()
        if (
            length := _count_reproduced_frames(
                tape, len(lead), raw, metadata.frames_per_step, emulator
            )
        ) and (_matches_screen(last, emulator, metadata)):
            return truncate_log(tape, length)
    return None


def _count_reproduced_frames(
    input_log: InputLog, noop_frames: int, raw: RawEpisode, frames_per_step: int, emulator: Emulator
) -> int:
    """How many frames were played if every stored reward came in its step and the end in its
    place, else 0."""
    total, step = 0.0, 0
    for i, reward in enumerate(play_log(input_log, emulator), 1 - noop_frames):
        total += reward
        if i == 0 and total:
            return 0
        if i > 0 and (i % frames_per_step == 0 or emulator.is_over):
            if total != raw.rewards[step]:
                return 0
            total, step = 0.0, step + 1
    right = step == len(raw.rewards) and emulator.is_over == raw.terminal
    return emulator.frame_number if right else 0


def _matches_screen(
    last_observation: np.ndarray, emulator: Emulator, metadata: MinariMetadata
) -> bool:
    """Whether the last observation is a picture of where the emulator stands."""
    screen = emulator.rgb_screen()
    if last_observation.shape == screen.shape:
        distance = np.abs(last_observation.astype(float) - screen)
        return bool(
            distance.max() == 0
            if not metadata.is_jpeg
            else distance.mean() <= MAX_MEAN_PIXEL_DIFFERENCE
        )
    plane = _newest_plane(last_observation, metadata)
    return bool(
        np.abs(plane.astype(float) - resize_by_area(_to_grayscale(screen))).mean()
        <= MAX_MEAN_PIXEL_DIFFERENCE
    )


def _to_grayscale(colours: np.ndarray) -> np.ndarray:
    return np.rint(colours @ np.array(LUMA_WEIGHTS)).astype(np.uint8)


def _newest_plane(observation: np.ndarray, metadata: MinariMetadata) -> np.ndarray:
    """The [84, 84] plane of one observation: of a screen, a plane or a stack of planes."""
    shape = observation.shape
    if observation.dtype.kind == "f" and 0 <= observation.min() <= observation.max() <= 1:
        observation = np.rint(255 * observation).astype(np.uint8)  # as scale_obs makes them
    if observation.ndim == 3 and shape[1:] == (160, 3):
        return resize_by_area(_to_grayscale(observation))
    colours = 3 in (shape[0], shape[-1])  # or three planes: nothing tells
    if observation.dtype == np.uint8 and not colours:
        if shape[-2:] == (84, 84):
            return observation.reshape(-1, 84, 84)[-1]
        if shape[:2] == (84, 84):
            return observation[..., -1]
    raise DemonstrationError(
        f"observations of shape {metadata.observation_shape} are no screens"
        " or grey planes of an Atari game"
    )


def _convert_stored_observations(
    raw: RawEpisode, metadata: MinariMetadata, spec: Spec, fault: str
) -> Episode:
    """An episode as its stored pictures show it, without what they do not show."""
    steps = len(raw.actions)
    planes = np.empty((steps + 1, *spec.plane), np.uint8)
    for low in range(0, steps + 1, CONVERSION_BATCH):
        for i, observation in enumerate(raw.read_observations(low, low + CONVERSION_BATCH), low):
            planes[i, 0] = _newest_plane(observation, metadata)
    if not planes.any():
        raise DemonstrationError(f"{fault}, and its pictures are black")
    audit = Audit(False, float(raw.rewards.sum()), None, 0, 0, fault)
    rewards = raw.rewards.astype(np.float32)
    return Episode(planes, raw.actions, rewards, raw.terminal, raw.seed, audit=audit)
