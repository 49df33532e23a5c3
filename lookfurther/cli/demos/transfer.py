"""lookfurther demos import, export, merge"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import tyro

from lookfurther.cli.demos.arguments import InputFiles, NewSetName, OutputPath, SetName, SetNames
from lookfurther.cli.demos.formatting import (
    format_audited_episode,
    format_episode_size,
)
from lookfurther.cli.options.parsing import Flag, check_writable
from lookfurther.config import Config, EnvConfig, replace
from lookfurther.demos import catalog, importers, storage
from lookfurther.demos.episode import Episode
from lookfurther.demos.importers import ImportedDemos, action_sequence
from lookfurther.demos.metadata import check_same_origin
from lookfurther.demos.playback import count_ambiguous_steps
from lookfurther.errors import ConfigError, DemonstrationError
from lookfurther.system.formatting import format_number, pluralize
from lookfurther.system.processes import parallel_map
from lookfurther.types import Spec
from lookfurther.validation import validate

RECORDING_SUFFIXES = (".demo", ".npz", ".hdf5")


@dataclass(frozen=True)
class ImportOptions:
    """Import recordings of other tools into a new set, after a replay of each."""

    files: InputFiles = ()
    """openai/atari-demo files, action sequences (.npz), Minari datasets, or folders of them"""
    name: NewSetName = ""
    """the new set, such as montezuma or montezuma/human-v0"""
    env: str = ""
    """environment id, if a file does not name its own"""
    force: Flag = False
    """also import episodes that do not replay as recorded; their audit holds the mismatch"""
    modules: tuple[str, ...] = ()
    """modules to import first, which register the environment or define its wrappers"""
    environment: EnvConfig = field(default_factory=EnvConfig)


@dataclass(frozen=True)
class ExportSetOptions:
    """Write the Atari episodes of a set as action sequences, one file each."""

    name: SetName = tyro.MISSING
    """the set"""
    out: OutputPath = tyro.MISSING
    """FILE.npz; several episodes are numbered: FILE-0.npz, FILE-1.npz"""


@dataclass(frozen=True)
class MergeOptions:
    """Merge the episodes of several sets into a new one."""

    sources: SetNames = ()
    """the sets, of one environment with the same settings"""
    name: NewSetName = ""
    """the new set"""


def import_files(options: ImportOptions) -> int:
    """Read all files, with one process per core, and save all of them or none."""
    paths = [path for file in options.files for path in find_recordings(file)]
    if not paths:
        raise ConfigError("import needs a file, such as lookfurther demos import Pong.demo")
    name = catalog.new_set_id(options.name)
    check_env_config(options.environment)
    reader = partial(
        importers.import_demos,
        env=options.env,
        env_config=options.environment,
        force=options.force,
        modules=options.modules,
    )
    imported: list[ImportedDemos] = []
    for path, demos in zip(paths, parallel_map(reader, paths), strict=True):
        imported.append(demos)
        _check_same_env(paths[0], imported[0], path, demos)
        for i, episode in enumerate(demos.episodes):
            label = path.name if len(demos.episodes) == 1 else f"{path.name}, episode {i}"
            gain = _format_phase_gain(episode, demos.env_config)
            print(format_audited_episode(label, episode) + gain, flush=True)
    episodes = [episode for demos in imported for episode in demos.episodes]
    source = f"import of {_join_names(paths)}"
    env_config = imported[0].env_config
    save_new_set(name, episodes, imported[0].spec, source, env_config)
    return 0


def check_env_config(env_config: EnvConfig) -> None:
    """Raise a ConfigError if training would reject the settings."""
    validate(replace(Config(), env="any", demos=("any",), environment=env_config))


def find_recordings(path: Path) -> list[Path]:
    """Return the path of a file or Minari dataset, or the recordings in a folder."""
    if not path.is_dir() or (path / "data").is_dir() or (path / "main_data.hdf5").is_file():
        return [path]
    files = sorted(file for file in path.iterdir() if file.suffix in RECORDING_SUFFIXES)
    if not files:
        raise DemonstrationError(f"{path} holds no {', '.join(RECORDING_SUFFIXES)} file")
    return files


def _check_same_env(
    first_path: Path, first_demos: ImportedDemos, path: Path, demos: ImportedDemos
) -> None:
    if (first_demos.spec, first_demos.env_config) != (demos.spec, demos.env_config):
        raise DemonstrationError(
            f"{path} is of {demos.spec.env}, {first_path} of {first_demos.spec.env},"
            " or their settings differ: import them into separate sets"
        )


def _format_phase_gain(episode: Episode, env_config: EnvConfig) -> str:
    """Format the number of ambiguous steps at phase 0, if another phase was chosen."""
    log = episode.input_log
    if log is None or log.phase == 0:
        return ""
    ambiguous = count_ambiguous_steps(dataclasses.replace(log, phase=0), env_config.action_repeat)
    return f"; {pluralize(ambiguous, 'ambiguous step')} at phase 0"


def _join_names(paths: Sequence[Path]) -> str:
    names = ", ".join(path.name for path in paths[:3])
    return names + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")


def save_new_set(
    name: str, episodes: Sequence[Episode], spec: Spec, source: str, env_config: EnvConfig
) -> None:
    """Save a set; print its name, size and folder, and commands that use it."""
    path = storage.save_episodes(name, episodes, spec, source, env_config=env_config)
    best = format_number(max(episode.score for episode in episodes))
    print(f"{name}: {pluralize(len(episodes), 'episode')}, best return {best}, in {path}")
    if ambiguous := sum(episode.audit.ambiguous for episode in episodes if episode.audit):
        print(
            f"{pluralize(ambiguous, 'ambiguous step')}: they mix several actions, which an agent"
            f" cannot do; run lookfurther demos align {name} --name NEW"
        )
    print(f"inspect it with lookfurther demos show {name}, train with --demos {name}")


def export_set(options: ExportSetOptions) -> int:
    """Write the files and print their names."""
    if options.out.suffix != ".npz":
        raise ConfigError(f"{options.out} must end in .npz")
    check_writable("OUT", options.out)
    name, description, episodes = catalog.open_set(options.name)
    if not description.origin.game:
        raise DemonstrationError(
            f"{name} is of {description.spec.env}, and only Atari episodes can be action sequences:"
            f" copy the Minari dataset {catalog.set_path(name)} instead"
        )
    if description.origin.sticky:
        raise DemonstrationError(
            f"{name} has sticky actions, which an action sequence cannot store"
        )
    for i, episode in enumerate(episodes):
        out = options.out
        if len(episodes) > 1:
            out = out.with_stem(f"{out.stem}-{i:0{len(str(len(episodes) - 1))}}")
        action_sequence.write_action_sequence(out, episode, description.spec.env)
        print(f"{out}: {format_episode_size(episode)}")
    print(f"the set itself is a Minari dataset, in {catalog.set_path(name)}")
    return 0


def merge_sets(options: MergeOptions) -> int:
    """Save a new set and keep the old ones."""
    if not options.sources:
        raise ConfigError("merge needs the names of the sets: lookfurther demos list shows them")
    name = catalog.new_set_id(options.name)
    demo_sets = [catalog.open_set(source) for source in options.sources]
    first = demo_sets[0].description
    for demo_set in demo_sets[1:]:
        check_same_origin(demo_set.name, demo_set.description, first)
    episodes = [episode for demo_set in demo_sets for episode in demo_set.episodes]
    source = f"merged from {', '.join(demo_set.name for demo_set in demo_sets)}"
    env_config = storage.recorded_env_config(first)
    save_new_set(name, episodes, first.spec, source, env_config)
    return 0
