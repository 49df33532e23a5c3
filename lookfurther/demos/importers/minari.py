"""Importer of Minari datasets, made by this package or by other tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

from lookfurther.config import EnvConfig
from lookfurther.demos import storage
from lookfurther.demos.bounded_json import MAX_JSON_BYTES
from lookfurther.demos.episode import Audit, Episode, InputLog, check_episodes
from lookfurther.demos.importers.imported import ImportedDemos
from lookfurther.demos.importers.minari_files import (
    MinariMetadata,
    RawEpisode,
    iter_raw_episodes,
    read_minari_metadata,
)
from lookfurther.demos.playback import (
    count_ambiguous_steps,
    episode_from_log,
    play_steps,
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

MAX_NOOPS = 30  # no-ops that may precede the first stored step
MAX_MEAN_PIXEL_DIFFERENCE = 6.0  # between two images of the same frame, after JPEG or resizing
LUMA_WEIGHTS = (0.2989, 0.5870, 0.1140)  # red, green, blue, as in the emulator's grayscale
CONVERSION_BATCH = 256  # observations converted at a time


def read_minari_dataset(
    path: Path, env: str, env_config: EnvConfig, force: bool, modules: Sequence[str] = ()
) -> ImportedDemos:
    """Read a dataset, given its folder or its HDF5 file."""
    folder = path.parent if path.is_file() else path
    folder = folder if (folder / "metadata.json").exists() else folder / "data"
    if b'"lookfurther"' in _read_metadata_bytes(folder):
        return _read_own_dataset(folder, env, force, modules)
    try:
        metadata = read_minari_metadata(folder)
        env = env or metadata.env
        if not env or (env == metadata.env and ":" in env):
            raise DemonstrationError(f"{path} does not name its environment: give --env")
        return _read_foreign_dataset(str(path), folder, metadata, env, env_config, force)
    except LookFurtherError:
        raise
    except Exception as error:  # a truncated, altered or hostile file may raise anything
        reason = " ".join(f"{type(error).__name__}: {str(error)[:200]}".split())
        raise DemonstrationError(f"{path} is not a readable Minari dataset: {reason}") from error


def _read_own_dataset(folder: Path, env: str, force: bool, modules: Sequence[str]) -> ImportedDemos:
    """Read a set that this package wrote, and replay it on this machine."""
    name = str(folder.parent)
    description = storage.read_description(name)
    env_config = storage.trusted_env_config(description, modules)
    spec = description.spec
    replay_spec = spec._replace(env=env or spec.env)
    episodes = []
    for i, episode in enumerate(storage.load_episodes(name, spec, env_config=env_config)):
        audit = verify_episode(episode, replay_spec, env_config)
        if audit.mismatch and _is_replayable(episode) and not force:
            raise DemonstrationError(
                f"{name}, episode {i}: {audit.mismatch}; --force imports it anyway"
            )
        episodes.append(replace(episode, audit=audit))
    return ImportedDemos(episodes, spec, env_config)


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
    played_by_emulator = is_atari(spec.env)
    if played_by_emulator:
        env_config = replace(env_config, sticky_prob=metadata.sticky_prob)
    episodes = []
    for i, raw in enumerate(iter_raw_episodes(folder, metadata)):
        if played_by_emulator:
            episode = _convert_atari_episode(raw, metadata, spec, env_config)
        else:
            episode = _convert_gymnasium_episode(raw, spec, env_config, metadata)
        audit, is_replayable = episode.audit, played_by_emulator or _is_replayable(episode)
        if audit and audit.mismatch and is_replayable and not force:
            raise DemonstrationError(
                f"{source}, episode {i}: {audit.mismatch}; --force imports it anyway"
            )
        episodes.append(episode)
    check_episodes(episodes, spec, source)
    return ImportedDemos(episodes, spec, env_config)


def _convert_gymnasium_episode(
    raw: RawEpisode, spec: Spec, env_config: EnvConfig, metadata: MinariMetadata
) -> Episode:
    """Take the observations as stored, and verify them by a replay from the seed."""
    if metadata.is_jpeg:
        raise DemonstrationError("its observations are lossy JPEG, which only Atari can restore")
    planes = raw.read_observations(0, len(raw.actions) + 1)
    if planes.ndim == 4 and env_config.layout == "hwc":
        planes = planes.transpose(0, 3, 1, 2)
    if planes.ndim == 3:
        planes = planes[:, None]
    if planes.shape[1:] != spec.plane:
        raise DemonstrationError(
            f"its observations are {metadata.observation_shape}, those of {spec.env} {spec.plane}"
        )
    if spec.dtype == "uint8" and planes.dtype.kind not in "iu":
        raise DemonstrationError(
            f"its observations are {planes.dtype}, those of {spec.env} integers"
        )
    planes = np.ascontiguousarray(planes, spec.dtype)
    rewards = raw.rewards.astype(np.float32)
    episode = Episode(planes, raw.actions, rewards, raw.terminal, raw.seed)
    return replace(episode, audit=verify_episode(episode, spec, env_config))


def _convert_atari_episode(
    raw: RawEpisode, metadata: MinariMetadata, spec: Spec, env_config: EnvConfig
) -> Episode:
    """Replay the stored actions, and take the observations of the emulator if the replay matches.

    The replay restores frames that JPEG, resizing or frame skipping has changed.
    """
    variant = normalise_variant(find_game(spec.env), metadata.mode, metadata.difficulty)
    seed = 0
    if raw.seed is not None:  # as ale-py's Gymnasium environment derives it
        seed = int(np.random.SeedSequence(raw.seed).generate_state(2)[1].astype(np.int32))
    emulator = Emulator(spec.env, 1, metadata.sticky_prob, seed, variant=variant)
    action_ids = _to_emulator_actions(raw, metadata, emulator)
    template = InputLog(action_ids[:0], seed=seed, variant=variant)
    log = _find_input_log(action_ids, raw, metadata, template, emulator)
    repeat = env_config.action_repeat
    if log is None:
        mismatch = "its actions do not lead to its rewards and pictures"
        if variant != DEFAULT_VARIANT or metadata.frames_per_step != repeat:
            played = f"{metadata.frames_per_step} frames per step{_format_variant(variant)}"
            raise DemonstrationError(f"{mismatch} with {played}: only a replay can convert it")
        actions = np.searchsorted(emulator.legal_actions, action_ids)
        return _convert_stored_observations(raw._replace(actions=actions), metadata, spec, mismatch)
    log = with_best_phase(log, repeat)
    episode = episode_from_log(log, spec.env, repeat, env_config.sticky_prob)
    ambiguous = count_ambiguous_steps(log, repeat)
    score = float(raw.rewards.sum())
    checks = {"rewards": len(raw.rewards), "end": 1, "last_picture": 1}
    audit = Audit(True, score, episode.score, len(log.frame_actions), ambiguous, "", checks)
    return replace(episode, audit=audit)


def _format_variant(variant: GameVariant) -> str:
    options = variant._asdict().items()
    return "".join(f", {name} {value}" for name, value in options if value is not None)


def _to_emulator_actions(
    raw: RawEpisode, metadata: MinariMetadata, emulator: Emulator
) -> np.ndarray:
    """Return the ALE action id of each step, [T] uint8."""
    action_sets = {len(ids): ids for ids in (emulator.legal_actions, emulator.minimal_actions)}
    if metadata.num_actions not in action_sets:
        raise DemonstrationError(
            f"the minimal action set of {emulator.game} has {min(action_sets)} actions,"
            f" not {metadata.num_actions}"
        )
    return np.array(action_sets[metadata.num_actions], np.uint8)[raw.actions]


def _find_input_log(
    action_ids: np.ndarray,
    raw: RawEpisode,
    metadata: MinariMetadata,
    template: InputLog,
    emulator: Emulator,
) -> InputLog | None:
    """Find the number of no-ops before the first step with which the replay matches.

    It must reproduce the stored rewards and the last observation.
    """
    frames_per_step = metadata.frames_per_step
    frame_actions = np.repeat(action_ids, frames_per_step)
    last_observation = raw.read_observations(len(raw.actions), len(raw.actions) + 1)[0]
    for noops in range(MAX_NOOPS + 1):
        noop_actions = np.zeros(noops * metadata.frames_per_noop, np.uint8)
        log = replace(template, frame_actions=np.concatenate([noop_actions, frame_actions]))
        if noops:
            emulator.reset()
        length = _count_reproduced_frames(log, len(noop_actions), raw, frames_per_step, emulator)
        if length and _matches_screen(last_observation, emulator, metadata):
            return truncate_log(log, length)
    return None


def _count_reproduced_frames(
    input_log: InputLog, noop_frames: int, raw: RawEpisode, frames_per_step: int, emulator: Emulator
) -> int:
    """Count the frames played if every reward and the end match the recording, else return 0."""
    phased_log = replace(input_log, phase=noop_frames % frames_per_step)
    steps = (step.reward for step in play_steps(phased_log, emulator, frames_per_step))
    noop_steps = -(-noop_frames // frames_per_step)
    if sum(islice(steps, 1 + noop_steps)) or any(next(steps, None) != r for r in raw.rewards):
        return 0
    return emulator.frame_number if emulator.is_over == raw.terminal else 0


def _matches_screen(
    last_observation: np.ndarray, emulator: Emulator, metadata: MinariMetadata
) -> bool:
    """Whether the last observation shows the current screen of the emulator."""
    screen = emulator.rgb_screen()
    if last_observation.shape == screen.shape and not metadata.is_jpeg:
        return bool((last_observation == screen).all())
    if last_observation.shape != screen.shape:
        last_observation = _newest_plane(last_observation, metadata)
        screen = resize_by_area(_to_grayscale(screen))
    difference = np.abs(last_observation.astype(float) - screen)
    return bool(difference.mean() <= MAX_MEAN_PIXEL_DIFFERENCE)


def _to_grayscale(rgb: np.ndarray) -> np.ndarray:
    return np.rint(rgb @ np.array(LUMA_WEIGHTS)).astype(np.uint8)


def _newest_plane(observation: np.ndarray, metadata: MinariMetadata) -> np.ndarray:
    """Return the newest [84, 84] plane of an observation: a screen, a plane or a stack."""
    shape = observation.shape
    if observation.dtype.kind == "f" and 0 <= observation.min() <= observation.max() <= 1:
        observation = np.rint(255 * observation).astype(
            np.uint8
        )  # AtariPreprocessing(scale_obs=True)
    if observation.ndim == 3 and shape[1:] == (160, 3):
        return resize_by_area(_to_grayscale(observation))
    has_three = 3 in (shape[0], shape[-1])  # three colours or three planes: ambiguous
    if observation.dtype == np.uint8 and not has_three:
        if shape[-2:] == (84, 84):
            return observation.reshape(-1, 84, 84)[-1]
        if shape[:2] == (84, 84):
            return observation[..., -1]
    raise DemonstrationError(
        f"observations of shape {metadata.observation_shape} are neither screens"
        " nor grayscale planes of an Atari game"
    )


def _convert_stored_observations(
    raw: RawEpisode, metadata: MinariMetadata, spec: Spec, mismatch: str
) -> Episode:
    """Convert the stored observations of an episode that does not replay."""
    steps = len(raw.actions)
    planes = np.empty((steps + 1, *spec.plane), np.uint8)
    for low in range(0, steps + 1, CONVERSION_BATCH):
        for i, observation in enumerate(raw.read_observations(low, low + CONVERSION_BATCH), low):
            planes[i, 0] = _newest_plane(observation, metadata)
    if not planes.any():
        raise DemonstrationError(f"{mismatch}, and its pictures are black")
    audit = Audit(False, float(raw.rewards.sum()), None, 0, 0, mismatch)
    rewards = raw.rewards.astype(np.float32)
    return Episode(planes, raw.actions, rewards, raw.terminal, raw.seed, audit=audit)
