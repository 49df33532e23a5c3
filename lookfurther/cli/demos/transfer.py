"""lookfurther demos import, export, merge"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import tyro

from lookfurther.cli.demos.arguments import Files, Name, Names, Out, Switch
from lookfurther.cli.demos.formatting import audited, number, plural, sized
from lookfurther.config import Config, Environment, replace, validate
from lookfurther.demos import catalog, importers, storage
from lookfurther.demos.episode import Episode
from lookfurther.demos.importers import Imported, action_sequence
from lookfurther.demos.metadata import same
from lookfurther.demos.playback import ambiguous
from lookfurther.errors import ConfigError, DemonstrationError
from lookfurther.system.parallel import each

SUFFIXES = (".demo", ".npz", ".hdf5")


@dataclass(frozen=True)
class ImportOptions:
    """Bring recordings from elsewhere into a new set, each replayed first."""

    files: Files = ()
    """openai/atari-demo's .demo, action sequences .npz, Minari datasets; or folders of them"""
    name: str = ""
    """the new set, such as montezuma or montezuma/human-v0"""
    env: str = ""
    """environment id, where a file does not tell its own"""
    force: Switch = False
    """take what does not replay as recorded too; its audit will say so"""
    modules: tuple[str, ...] = ()
    """modules to import first: those that register the environment or hold its wrappers"""
    environment: Environment = field(default_factory=Environment)


@dataclass(frozen=True)
class ExportOptions:
    """Write a set's Atari episodes as action sequences, a file each."""

    name: Name = tyro.MISSING
    """the set"""
    out: Out = tyro.MISSING
    """FILE.npz; of several episodes, the number of each follows: FILE-0.npz, FILE-1.npz"""


@dataclass(frozen=True)
class MergeOptions:
    """Put the episodes of several sets into a new one."""

    sources: Names = ()
    """the sets, of one environment played in one way"""
    name: str = ""
    """the new set"""


def import_files(options: ImportOptions) -> int:
    """Read every file, a process for each core, and save all of them or none."""
    paths = [path for given in options.files for path in recordings(given)]
    if not paths:
        raise ConfigError("import needs a file, such as lookfurther demos import Pong.demo")
    name = catalog.new(options.name)
    usable(options.environment)
    reader = partial(
        importers.read,
        env=options.env,
        environment=options.environment,
        force=options.force,
        modules=options.modules,
    )
    found: list[Imported] = []
    for path, imported in zip(paths, each(reader, paths), strict=True):
        found.append(imported)
        _alike(paths[0], found[0], path, imported)
        for i, episode in enumerate(imported.episodes):
            label = path.name if len(imported.episodes) == 1 else f"{path.name}, episode {i}"
            print(audited(label, episode) + _gained(episode, imported.environment), flush=True)
    episodes = [episode for one in found for episode in one.episodes]
    spec, environment = found[0].spec, found[0].environment
    place = storage.save(name, episodes, spec, f"import of {_some(paths)}", environment=environment)
    announce(name, episodes, place)
    return 0


def usable(environment: Environment) -> None:
    """Refuse settings that no training could have."""
    validate(replace(Config(), env="any", demos=("any",), environment=environment))


def recordings(path: Path) -> list[Path]:
    """The recordings a path stands for: itself, a Minari dataset, or all in a folder."""
    if not path.is_dir() or (path / "data").is_dir() or (path / "main_data.hdf5").is_file():
        return [path]
    inside = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
    if not inside:
        raise DemonstrationError(f"{path} holds none of {', '.join(SUFFIXES)}")
    return inside


def _alike(first: Path, one: Imported, path: Path, other: Imported) -> None:
    if (one.spec, one.environment) != (other.spec, other.environment):
        raise DemonstrationError(
            f"{path} is of {other.spec.env}, {first} of {one.spec.env}, or played in another way:"
            " import them into sets of their own"
        )


def _gained(episode: Episode, environment: Environment) -> str:
    """How many more steps would hold several actions if the first step was a whole one."""
    tape = episode.tape
    if tape is None or tape.phase == 0:
        return ""
    several = ambiguous(dataclasses.replace(tape, phase=0), environment.repeat)
    return f"; {plural(several, 'ambiguous block')} at phase 0"


def _some(paths: Sequence[Path]) -> str:
    """A few names, and how many more there are."""
    names = ", ".join(path.name for path in paths[:3])
    return names + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")


def announce(name: str, episodes: Sequence[Episode], place: Path) -> None:
    """Say what a new set is called, where it is and what for."""
    top = number(max(episode.score for episode in episodes))
    print(f"{name}: {plural(len(episodes), 'episode')}, best return {top}, in {place}")
    if several := sum(episode.audit.ambiguous for episode in episodes if episode.audit):
        mend = f"lookfurther demos align {name} --name NEW"
        print(f"{plural(several, 'step')} with several actions, as no agent has them: {mend}")
    print(f"look at it with lookfurther demos show {name}, train with --demos {name}")


def export(options: ExportOptions) -> int:
    """Write the files and say which."""
    if options.out.suffix != ".npz":
        raise ConfigError(f"{options.out} must end in .npz")
    name, description, episodes = catalog.opened(options.name)
    if not description.origin.game:
        raise DemonstrationError(
            f"{name} is of {description.spec.env}, and only Atari episodes are action sequences:"
            f" {catalog.place(name)} is a Minari dataset, to be copied as it is"
        )
    if description.origin.sticky:
        raise DemonstrationError(f"{name} has sticky actions, which no action sequence can say")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for i, episode in enumerate(episodes):
        out = options.out
        if len(episodes) > 1:
            out = out.with_stem(f"{out.stem}-{i:0{len(str(len(episodes) - 1))}}")
        action_sequence.write(out, episode, description.spec.env)
        print(f"{out}: {sized(episode)}")
    print(f"the set itself is a Minari dataset, in {catalog.place(name)}")
    return 0


def merge_sets(options: MergeOptions) -> int:
    """Write the new set; the old ones stay."""
    if not options.sources:
        raise ConfigError("merge needs the names of the sets: lookfurther demos list has them")
    name = catalog.new(options.name)
    held = [catalog.opened(source) for source in options.sources]
    first = held[0].description
    for one in held[1:]:
        same(one.name, one.description, first)
    episodes = [episode for one in held for episode in one.episodes]
    source = f"merged from {', '.join(one.name for one in held)}"
    how = storage.environment_of(first)
    place = storage.save(name, episodes, first.spec, source, environment=how)
    announce(name, episodes, place)
    return 0
