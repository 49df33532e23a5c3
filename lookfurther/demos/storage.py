"""Demonstrations on disk: Minari datasets, lossless, holding exactly what training sees.

A dataset's stored environment spec is never built: our own description of the environment
lies beside it as plain JSON, with the SHA-256 of every array.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from lookfurther.config import EnvConfig
from lookfurther.demos import episode_hdf5
from lookfurther.demos.bounded_json import check_json, read_json
from lookfurther.demos.env_spec import env_spec_json
from lookfurther.demos.episode import Episode, InputLog, check_episodes
from lookfurther.demos.episode_hdf5 import ExpectedArray
from lookfurther.demos.metadata import (
    DemoSetDescription,
    EpisodeMetadata,
    check_compatible,
    check_same_origin,
    describe_episode,
    make_origin,
)
from lookfurther.demos.playback import PAD_ACTION, frames_by_step
from lookfurther.errors import DemonstrationError
from lookfurther.system.files import atomic_replace, sync_to_disk, write_text
from lookfurther.types import Spec

# Minari's arrays that make an episode, and the kinds of numbers they may hold; frames is the
# action of every emulator frame, in rows: the first is blank, one for each step follows.
ARRAY_KINDS = {"observations": "uf", "actions": "iu", "rewards": "f", "terminations": "b"}
FRAMES_FIELD = "infos/frames"
MAX_EPISODE_STEPS = 10_000_000  # steps of an episode
VERSION_SUFFIX = re.compile(r"-v(\d+)$")  # of a set, at the end of its name


def save_episodes(
    name: str,
    episodes: Sequence[Episode],
    spec: Spec,
    author: str,
    root: Path | None = None,
    env_config: EnvConfig | None = None,
) -> Path:
    """Write a new set under a Minari id such as "unlock/bot-v0", in Minari's folder or `root`."""
    check_episodes(episodes, spec, name)
    name = with_version(name)
    folder = _new_set_dir(name, root)
    if folder.exists():
        raise DemonstrationError(f"a set named {name} exists: delete it or choose another name")
    source = make_origin(spec, env_config or EnvConfig())
    with _staging_dir(folder) as data:
        digests = episode_hdf5.write_episodes(
            data / episode_hdf5.DATA_FILE, (_episode_to_arrays(e, source.repeat) for e in episodes)
        )
        facts = tuple(map(describe_episode, episodes, digests))
        _write_metadata(data, name, DemoSetDescription(spec, author, source, facts))
    for space in folder.relative_to(datasets_dir(root)).parents[:-1]:
        facts_of = (
            datasets_dir(root) / space / "namespace_metadata.json"
        )  # where Minari looks for it
        if not facts_of.exists():
            facts_of.write_text("{}")
    return folder


def append_episodes(
    name: str,
    episodes: Sequence[Episode],
    spec: Spec,
    author: str,
    root: Path | None = None,
    env_config: EnvConfig | None = None,
) -> Path:
    """Add episodes to a set, or begin it with them.

    The metadata is what counts: replaced last, it makes the new episodes part of the set.
    """
    folder = _data_dir(name, root)
    if not folder.is_dir():
        return save_episodes(name, episodes, spec, author, root, env_config)
    check_episodes(episodes, spec, name)
    before = read_description(name, root)
    source = make_origin(spec, env_config or EnvConfig())
    check_same_origin(name, before, DemoSetDescription(spec, author, source, ()))
    data_file = folder / episode_hdf5.DATA_FILE
    try:
        with atomic_replace(data_file) as draft:
            shutil.copyfile(data_file, draft)
            episode_hdf5.check_file(draft)
            arrays = (_episode_to_arrays(e, source.repeat) for e in episodes)
            digests = episode_hdf5.write_episodes(draft, arrays, len(before.episodes))
        facts = before.episodes + tuple(map(describe_episode, episodes, digests))
        _write_metadata(folder, name, before._replace(episodes=facts))
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        raise DemonstrationError(f"{name} could not be added to: {error}") from error
    return folder.parent


def load_episodes(
    name: str, spec: Spec, root: Path | None = None, env_config: EnvConfig | None = None
) -> list[Episode]:
    """The episodes of a set, by Minari id or by path; anything that is not `spec`'s is refused.

    Minari itself would build whatever environment a set names, so it has no part in reading.
    """
    description = read_description(name, root)
    check_compatible(name, description, spec, env_config or EnvConfig())
    try:
        episodes = _read_episodes(_data_dir(name, root) / episode_hdf5.DATA_FILE, description)
    except Exception as error:  # whatever a cut, altered or hostile file leads h5py and zlib to
        raise _unreadable_error(name, error) from error
    check_episodes(episodes, spec, name)
    return episodes


def read_description(name: str, root: Path | None = None) -> DemoSetDescription:
    """What a set says of itself, without reading its arrays."""
    folder = _data_dir(name, root)
    if not folder.is_dir():
        raise DemonstrationError(f"no demonstrations named {name}: make or import them first")
    try:
        metadata = read_json(folder / "metadata.json")
        description = DemoSetDescription.from_json(metadata["lookfurther"])
        if len(description.episodes) != metadata["total_episodes"]:
            raise ValueError(f"{len(description.episodes)} episodes are described")
    except Exception as error:  # whatever a cut, altered or hostile file leads json to
        raise _unreadable_error(name, error) from error
    return description


def list_readable_ids(root: Path | None = None) -> list[str]:
    """Every readable set of ours in Minari's folder or `root`."""
    found = []
    for name in list_ids(root):
        with contextlib.suppress(DemonstrationError):
            read_description(name, root)
            found.append(name)
    return sorted(found)


def list_ids(root: Path | None = None) -> Iterator[str]:
    """All that looks like a dataset in Minari's folder or `root`."""
    top = datasets_dir(root)
    for folder, inner, _ in os.walk(top):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        if "data" in inner:
            inner.clear()
            yield Path(folder).relative_to(top).as_posix()


def _unreadable_error(name: str, error: Exception) -> DemonstrationError:
    reason = " ".join(f"{type(error).__name__}: {str(error)[:300]}".split())
    return DemonstrationError(f"{name} is not a readable set of ours: {reason}")


def recorded_env_config(description: DemoSetDescription) -> EnvConfig:
    """The settings under which a set was made, as far as a replay needs them."""
    how = description.origin
    if how.game:
        return EnvConfig(action_repeat=how.repeat, sticky_prob=how.sticky)
    return EnvConfig(wrappers=how.wrappers, layout=how.layout)  # type: ignore[arg-type]


def _episode_to_arrays(episode: Episode, action_repeat: int) -> dict[str, np.ndarray]:
    """An episode as Minari's arrays."""
    steps = len(episode)
    ends = np.arange(1, steps + 1) == steps
    arrays = {
        "observations": episode.planes,
        "actions": episode.actions,
        "rewards": episode.rewards.astype(np.float64),
        "terminations": ends & episode.terminal,
        "truncations": ends & (not episode.terminal),
    }
    if episode.input_log is None:
        return arrays
    frames = frames_by_step(episode.input_log.frame_actions, action_repeat, episode.input_log.phase)
    if len(frames) != steps:
        raise DemonstrationError(f"a tape of {len(frames)} steps cannot be an episode of {steps}")
    return arrays | {FRAMES_FIELD: np.concatenate([np.full_like(frames[:1], PAD_ACTION), frames])}


def _read_episodes(path: Path, description: DemoSetDescription) -> list[Episode]:
    """The episodes of a set, each as it was described when it was written."""
    spec, repeat = description.spec, description.origin.repeat
    if spec.dtype not in ("uint8", "float32") or min(spec.plane, default=0) < 1 or repeat < 1:
        raise ValueError(f"it shows no planes that can be: {spec}")
    expected = []
    for facts in description.episodes:
        if not 0 < facts.steps <= MAX_EPISODE_STEPS:
            raise ValueError(f"an episode cannot have {facts.steps} steps")
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(ARRAY_KINDS, (facts.steps,))
        shapes["observations"] = (facts.steps + 1, *spec.plane)
        if facts.reel is not None:
            if not 0 <= facts.reel.phase < repeat:
                raise ValueError(f"a phase cannot be {facts.reel.phase}")
            shapes[FRAMES_FIELD] = (facts.steps + 1, repeat)
        kinds = ARRAY_KINDS | {"observations": np.dtype(spec.dtype).kind, FRAMES_FIELD: "u"}
        expected.append({f: ExpectedArray(shapes[f], kinds[f], facts.digests[f]) for f in shapes})
    arrays = episode_hdf5.read_episodes(path, expected)
    return list(map(_arrays_to_episode, arrays, description.episodes))


def _arrays_to_episode(arrays: dict[str, np.ndarray], metadata: EpisodeMetadata) -> Episode:
    """An episode from Minari's arrays and our facts, which must agree."""
    tape = None
    if metadata.reel is not None:
        length, writes, seed, phase, variant = metadata.reel
        rows = arrays[FRAMES_FIELD][1:]
        missing = -phase % rows.shape[1]  # frames before the first of a shorter first step
        frames = rows.reshape(-1)[missing : missing + length]
        if not np.array_equal(frames_by_step(frames, rows.shape[1], phase), rows):
            raise ValueError(f"its frames are not {length} in steps of phase {phase}")
        tape = InputLog(frames, np.array(writes, np.int32).reshape(-1, 3), seed, phase, variant)
    episode = Episode(
        planes=arrays["observations"],
        actions=arrays["actions"].astype(np.int64),
        rewards=arrays["rewards"].astype(np.float32),
        terminal=bool(arrays["terminations"][-1]),
        seed=metadata.seed,
        input_log=tape,
        audit=metadata.audit,
    )
    if (episode.score, episode.terminal) != (metadata.score, metadata.terminal):
        raise ValueError(
            f"a score of {metadata.score:g} is claimed, the rewards are {episode.score:g}"
        )
    return episode


def _write_metadata(data: Path, name: str, description: DemoSetDescription) -> None:
    """Write the metadata, in Minari's words and in ours."""
    import minari
    from gymnasium import spaces
    from minari.serialization import serialize_space

    spec, size = description.spec, (data / episode_hdf5.DATA_FILE).stat().st_size
    low, high = (0, spec.high) if spec.dtype == "uint8" else (-np.inf, np.inf)
    box = spaces.Box(low, high, spec.plane, np.dtype(spec.dtype).type)
    metadata = {
        "dataset_id": name,
        "minari_version": minari.__version__,
        "data_format": "hdf5",
        "jpeg_encoding": False,
        "observation_space": serialize_space(box),
        "action_space": serialize_space(spaces.Discrete(spec.actions)),
        "total_episodes": len(description.episodes),
        "total_steps": sum(facts.steps for facts in description.episodes),
        "dataset_size": round(size / 1e6, 1),
        "algorithm_name": description.author,
        "lookfurther": description.to_json(),
    }
    if env_spec := env_spec_json(description):
        metadata["env_spec"] = env_spec  # for others; we never read it
    text = json.dumps(metadata)
    try:
        check_json(text)
    except ValueError as error:
        raise DemonstrationError(
            f"{name} is too large: make several sets of it ({error})"
        ) from None
    write_text(data / "metadata.json", text)


def datasets_dir(root: Path | None = None) -> Path:
    """Minari's folder of datasets, unless told."""
    given = os.environ.get("MINARI_DATASETS_PATH")
    return root or (Path(given) if given else Path.home() / ".minari" / "datasets")


def with_version(name: str) -> str:
    """A name with the version that Minari wants at its end; a new set begins with 0."""
    return name if VERSION_SUFFIX.search(name) else f"{name}-v0"


def _data_dir(name: str, root: Path | None) -> Path:
    """Where the files of a set lie."""
    folder = Path(name) / "data"
    return folder if folder.is_dir() else datasets_dir(root) / with_version(name) / "data"


def _new_set_dir(name: str, root: Path | None) -> Path:
    """Where a new set goes; its name must be one that Minari takes."""
    from minari.dataset.minari_dataset import parse_dataset_id

    try:
        parse_dataset_id(name)
    except ValueError:
        given = name.removesuffix("-v0")
        raise DemonstrationError(
            f"Malformed dataset ID: {given}. Take letters, digits, - and _, as in my/set-v0"
        ) from None
    return datasets_dir(root) / name


@contextlib.contextmanager
def _staging_dir(folder: Path) -> Iterator[Path]:
    """A hidden folder to write a set in, which becomes `folder` when all is well."""
    try:
        with atomic_replace(folder) as draft:
            (draft / "data").mkdir(parents=True)
            yield draft / "data"
            sync_to_disk(draft / "data" / episode_hdf5.DATA_FILE)
    except (OSError, RuntimeError) as error:  # the second is how h5py says that the disk is full
        raise DemonstrationError(f"{folder} could not be written: {error}") from error
