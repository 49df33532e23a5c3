"""lookfurther demos import, export, merge"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import tyro

from lookfurther.cli.demos.arguments import Flag, InputFiles, OutputPath, SetName, SetNames
from lookfurther.cli.demos.formatting import (
    format_audited_episode,
    format_episode_size,
    format_number,
    pluralize,
)
from lookfurther.config import Config, EnvConfig, replace
from lookfurther.demos import catalog, importers, storage
from lookfurther.demos.episode import Episode
from lookfurther.demos.importers import ImportedDemos, action_sequence
from lookfurther.demos.metadata import check_same_origin
from lookfurther.demos.playback import count_ambiguous_steps
from lookfurther.errors import ConfigError, DemonstrationError
from lookfurther.system.processes import parallel_map
from lookfurther.validation import validate

RECORDING_SUFFIXES = (".demo", ".npz", ".hdf5")


@dataclass(frozen=True)
class ImportOptions:
    """Bring recordings from elsewhere into a new set, each replayed first."""

    files: InputFiles = ()
    """openai/atari-demo's .demo, action sequences .npz, Minari datasets; or folders of them"""
    name: str = ""
    """the new set, such as montezuma or montezuma/human-v0"""
    env: str = ""
    """environment id, where a file does not tell its own"""
    force: Flag = False
    """take what does not replay as recorded too; its audit will say so"""
    modules: tuple[str, ...] = ()
    """modules to import first: those that register the environment or hold its wrappers"""
    environment: EnvConfig = field(default_factory=EnvConfig)


@dataclass(frozen=True)
class ExportOptions:
    """Write a set's Atari episodes as action sequences, a file each."""

    name: SetName = tyro.MISSING
    """the set"""
    out: OutputPath = tyro.MISSING
    """FILE.npz; of several episodes, the number of each follows: FILE-0.npz, FILE-1.npz"""


@dataclass(frozen=True)
class MergeOptions:
    """Put the episodes of several sets into a new one."""

    sources: SetNames = ()
    """the sets, of one environment played in one way"""
    name: str = ""
    """the new set"""


def import_files(options: ImportOptions) -> int:
    """Read every file, a process for each core, and save all of them or none."""
    paths = [path for given in options.files for path in find_recordings(given)]
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
    found: list[ImportedDemos] = []
    for path, imported in zip(paths, parallel_map(reader, paths), strict=True):
        found.append(imported)
        _check_same_env(paths[0], found[0], path, imported)
        for i, episode in enumerate(imported.episodes):
            label = path.name if len(imported.episodes) == 1 else f"{path.name}, episode {i}"
            print(
                format_audited_episode(label, episode)
                + _format_phase_gain(episode, imported.env_config),
                flush=True,
            )
    episodes = [episode for one in found for episode in one.episodes]
    spec, environment = found[0].spec, found[0].env_config
    place = storage.save_episodes(
        name, episodes, spec, f"import of {_join_names(paths)}", env_config=environment
    )
    print_saved_set(name, episodes, place)
    return 0


def check_env_config(env_config: EnvConfig) -> None:
    """Refuse settings that no training could have."""
    validate(replace(Config(), env="any", demos=("any",), environment=env_config))


def find_recordings(path: Path) -> list[Path]:
    """The recordings a path stands for: itself, a Minari dataset, or all in a folder."""
    if not path.is_dir() or (path / "data").is_dir() or (path / "main_data.hdf5").is_file():
        return [path]
    inside = sorted(file for file in path.iterdir() if file.suffix in RECORDING_SUFFIXES)
    if not inside:
        raise DemonstrationError(f"{path} holds none of {', '.join(RECORDING_SUFFIXES)}")
    return inside


def _check_same_env(
    first_path: Path, first_demos: ImportedDemos, path: Path, demos: ImportedDemos
) -> None:
    if (first_demos.spec, first_demos.env_config) != (demos.spec, demos.env_config):
        raise DemonstrationError(
            f"{path} is of {demos.spec.env}, {first_path} of {first_demos.spec.env},"
            " or played in another way:"
            " import them into sets of their own"
        )


def _format_phase_gain(episode: Episode, env_config: EnvConfig) -> str:
    """How many more steps would hold several actions if the first step was a whole one."""
    tape = episode.input_log
    if tape is None or tape.phase == 0:
        return ""
    several = count_ambiguous_steps(dataclasses.replace(tape, phase=0), env_config.action_repeat)
    return f"; {pluralize(several, 'ambiguous block')} at phase 0"


def _join_names(paths: Sequence[Path]) -> str:
    """A few names, and how many more there are."""
    names = ", ".join(path.name for path in paths[:3])
    return names + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")


def print_saved_set(name: str, episodes: Sequence[Episode], path: Path) -> None:
    """Say what a new set is called, where it is and what for."""
    top = format_number(max(episode.score for episode in episodes))
    print(f"{name}: {pluralize(len(episodes), 'episode')}, best return {top}, in {path}")
    if several := sum(episode.audit.ambiguous for episode in episodes if episode.audit):
        mend = f"lookfurther demos align {name} --name NEW"
        print(f"{pluralize(several, 'step')} with several actions, as no agent has them: {mend}")
    print(f"look at it with lookfurther demos show {name}, train with --demos {name}")


def export_set(options: ExportOptions) -> int:
    """Write the files and say which."""
    if options.out.suffix != ".npz":
        raise ConfigError(f"{options.out} must end in .npz")
    name, description, episodes = catalog.open_set(options.name)
    if not description.origin.game:
        raise DemonstrationError(
            f"{name} is of {description.spec.env}, and only Atari episodes are action sequences:"
            f" {catalog.set_path(name)} is a Minari dataset, to be copied as it is"
        )
    if description.origin.sticky:
        raise DemonstrationError(f"{name} has sticky actions, which no action sequence can say")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for i, episode in enumerate(episodes):
        out = options.out
        if len(episodes) > 1:
            out = out.with_stem(f"{out.stem}-{i:0{len(str(len(episodes) - 1))}}")
        action_sequence.write_action_sequence(out, episode, description.spec.env)
        print(f"{out}: {format_episode_size(episode)}")
    print(f"the set itself is a Minari dataset, in {catalog.set_path(name)}")
    return 0


def merge_sets(options: MergeOptions) -> int:
    """Write the new set; the old ones stay."""
    if not options.sources:
        raise ConfigError("merge needs the names of the sets: lookfurther demos list has them")
    name = catalog.new_set_id(options.name)
    held = [catalog.open_set(source) for source in options.sources]
    first = held[0].description
    for one in held[1:]:
        check_same_origin(one.name, one.description, first)
    episodes = [episode for one in held for episode in one.episodes]
    source = f"merged from {', '.join(one.name for one in held)}"
    how = storage.recorded_env_config(first)
    place = storage.save_episodes(name, episodes, first.spec, source, env_config=how)
    print_saved_set(name, episodes, place)
    return 0
