"""Demonstrations on disk: Minari datasets, lossless, with exactly the observations of training.

The environment spec of a dataset is never built. Our own description of the environment is stored
next to it as plain JSON, with the SHA-256 of every array.
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
from lookfurther.demos.bounded_json import check_json, read_json
from lookfurther.demos.env_spec import env_spec_json
from lookfurther.demos.episode import Episode, check_episodes
from lookfurther.demos.episode_hdf5 import DATA_FILE, check_file, read_episodes, write_episodes
from lookfurther.demos.metadata import (
    DemoSetDescription,
    check_compatible,
    check_same_origin,
    describe_episode,
    make_origin,
)
from lookfurther.envs.trust import find_untrusted, import_modules
from lookfurther.errors import DemonstrationError
from lookfurther.system.files import (
    TEMPORARY_PREFIX,
    atomic_replace,
    exchange_paths,
    sync_to_disk,
    write_text,
)
from lookfurther.types import Spec

VERSION_SUFFIX = re.compile(r"-v(\d+)$")  # at the end of the name of a set


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
    origin = make_origin(spec, env_config or EnvConfig())
    with _staging_dir(folder) as data_dir:
        digests = write_episodes(data_dir / DATA_FILE, episodes, origin.repeat)
        metadata = tuple(map(describe_episode, episodes, digests))
        _write_metadata(data_dir, name, DemoSetDescription(spec, author, origin, metadata))
    for namespace in folder.relative_to(datasets_dir(root)).parents[:-1]:
        path = datasets_dir(root) / namespace / "namespace_metadata.json"  # Minari expects it
        if not path.exists():
            path.write_text("{}")
    return folder


def append_episodes(
    name: str,
    episodes: Sequence[Episode],
    spec: Spec,
    author: str,
    root: Path | None = None,
    env_config: EnvConfig | None = None,
) -> Path:
    """Add episodes to a set, or create the set with them.

    The metadata is replaced last: only then are the new episodes part of the set.
    """
    data_dir = _data_dir(name, root)
    if not data_dir.is_dir():
        return save_episodes(name, episodes, spec, author, root, env_config)
    check_episodes(episodes, spec, name)
    existing = read_description(name, root)
    origin = make_origin(spec, env_config or EnvConfig())
    check_same_origin(name, existing, DemoSetDescription(spec, author, origin, ()))
    data_file = data_dir / DATA_FILE
    try:
        with atomic_replace(data_file) as draft:
            shutil.copyfile(data_file, draft)
            check_file(draft)
            digests = write_episodes(draft, episodes, origin.repeat, len(existing.episodes))
        metadata = existing.episodes + tuple(map(describe_episode, episodes, digests))
        _write_metadata(data_dir, name, existing._replace(episodes=metadata))
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        raise DemonstrationError(f"{name} could not be added to: {error}") from error
    return data_dir.parent


def remove_episode(name: str, index: int, root: Path | None = None) -> None:
    """Remove an episode from a set, or the set with its last episode.

    Arrays and metadata are written to a second folder, which then takes the place of the first at
    once: a set always has all of its episodes or all but this one.
    """
    data_dir = _data_dir(name, root)
    description = read_description(name, root)
    kept = description.episodes[:index] + description.episodes[index + 1 :]
    draft = data_dir.with_name(f"{TEMPORARY_PREFIX}data.{os.getpid()}")
    try:
        if not kept:
            folder = data_dir.parent
            draft = folder.with_name(f"{TEMPORARY_PREFIX}{folder.name}.{os.getpid()}")
            os.rename(folder, draft)
            return
        episodes = read_episodes(data_dir / DATA_FILE, description)
        draft.mkdir()
        write_episodes(
            draft / DATA_FILE, episodes[:index] + episodes[index + 1 :], description.origin.repeat
        )
        _write_metadata(draft, name, description._replace(episodes=kept))
        sync_to_disk(draft / DATA_FILE)
        exchange_paths(draft, data_dir)
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        raise DemonstrationError(f"{name} could not be changed: {error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def load_episodes(
    name: str, spec: Spec, root: Path | None = None, env_config: EnvConfig | None = None
) -> list[Episode]:
    """The episodes of a set, by Minari id or by path; raises if they do not match `spec`.

    Minari would build any environment that a set names, so it is not used for reading.
    """
    description = read_description(name, root)
    check_compatible(name, description, spec, env_config or EnvConfig())
    try:
        episodes = read_episodes(_data_dir(name, root) / DATA_FILE, description)
    except Exception as error:  # h5py and zlib may raise anything for a damaged or hostile file
        raise _unreadable_error(name, error) from error
    check_episodes(episodes, spec, name)
    return episodes


def read_description(name: str, root: Path | None = None) -> DemoSetDescription:
    """The description of a set; its arrays are not read."""
    data_dir = _data_dir(name, root)
    if not data_dir.is_dir():
        raise DemonstrationError(f"no demonstrations named {name}: make or import them first")
    try:
        metadata = read_json(data_dir / "metadata.json")
        description = DemoSetDescription.from_json(metadata["lookfurther"])
        if len(description.episodes) != metadata["total_episodes"]:
            raise ValueError(f"{len(description.episodes)} episodes are described")
    except Exception as error:  # json may raise anything for a damaged or hostile file
        raise _unreadable_error(name, error) from error
    return description


def list_ids(root: Path | None = None) -> Iterator[str]:
    """Every folder that looks like a dataset in Minari's folder or `root`."""
    top = datasets_dir(root)
    for folder, subfolders, _ in os.walk(top):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        if "data" in subfolders:
            subfolders.clear()
            yield Path(folder).relative_to(top).as_posix()


def _unreadable_error(name: str, error: Exception) -> DemonstrationError:
    reason = " ".join(f"{type(error).__name__}: {str(error)[:300]}".split())
    return DemonstrationError(f"{name} is not a readable demonstration set: {reason}")


def recorded_env_config(description: DemoSetDescription) -> EnvConfig:
    """The settings of the recording that a replay needs."""
    origin = description.origin
    if origin.game:
        return EnvConfig(action_repeat=origin.repeat, sticky_prob=origin.sticky)
    return EnvConfig(wrappers=origin.wrappers, layout=origin.layout)  # type: ignore[arg-type]


def trusted_env_config(description: DemoSetDescription, modules: Sequence[str] = ()) -> EnvConfig:
    """The settings of the recording; raises if they name a module that is not trusted.

    The user trusts `modules` by naming them.
    """
    import_modules(modules)
    env_config = recorded_env_config(description)
    if reason := find_untrusted(description.spec.env, env_config.wrappers, modules):
        raise DemonstrationError(f"the set was made with {reason}")
    return env_config


def _write_metadata(data_dir: Path, name: str, description: DemoSetDescription) -> None:
    """Write Minari's metadata and our description."""
    import minari
    from gymnasium import spaces
    from minari.serialization import serialize_space

    spec, num_bytes = description.spec, (data_dir / DATA_FILE).stat().st_size
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
        "total_steps": sum(episode.steps for episode in description.episodes),
        "dataset_size": round(num_bytes / 1e6, 1),
        "algorithm_name": description.author,
        "lookfurther": description.to_json(),
    }
    if env_spec := env_spec_json(description):
        metadata["env_spec"] = env_spec  # for other programs; this package never reads it
    text = json.dumps(metadata)
    try:
        check_json(text)
    except ValueError as error:
        raise DemonstrationError(
            f"{name} is too large: make several sets of it ({error})"
        ) from None
    write_text(data_dir / "metadata.json", text)


def datasets_dir(root: Path | None = None) -> Path:
    """`root` if it is given, otherwise Minari's folder of datasets."""
    minari_path = os.environ.get("MINARI_DATASETS_PATH")
    return root or (Path(minari_path) if minari_path else Path.home() / ".minari" / "datasets")


def with_version(name: str) -> str:
    """A name with the version suffix that Minari requires; a new set has version 0."""
    return name if VERSION_SUFFIX.search(name) else f"{name}-v0"


def _data_dir(name: str, root: Path | None) -> Path:
    """The folder with the files of a set."""
    data_dir = Path(name) / "data"
    return data_dir if data_dir.is_dir() else datasets_dir(root) / with_version(name) / "data"


def _new_set_dir(name: str, root: Path | None) -> Path:
    """The folder of a new set; raises if Minari does not accept its name."""
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
    """A hidden folder to write a set in. It becomes `folder` if no error occurs."""
    try:
        with atomic_replace(folder) as draft:
            (draft / "data").mkdir(parents=True)
            yield draft / "data"
            sync_to_disk(draft / "data" / DATA_FILE)
    except (OSError, RuntimeError) as error:  # h5py raises RuntimeError if the disk is full
        raise DemonstrationError(f"{folder} could not be written: {error}") from error
