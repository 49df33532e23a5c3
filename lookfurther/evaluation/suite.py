"""Suites: environments x presets x seeds from one TOML file, each run in a process of its own."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from lookfurther.config import Config, replace, validate
from lookfurther.demos import catalog
from lookfurther.envs.factory import find
from lookfurther.envs.trust import import_modules, untrusted
from lookfurther.errors import CheckpointError, ConfigError
from lookfurther.evaluation.paper_scores import game_of
from lookfurther.presets import preset
from lookfurther.report.runs import fingerprint, settings
from lookfurther.system.processes import helper_environment, python_command
from lookfurther.training import checkpoint, checkpoint_metadata, metrics
from lookfurther.training.run_dir import FREE, read_config
from lookfurther.training.signals import StopSignals
from lookfurther.training.train import default_folder

POLL = 1.0  # seconds between two looks at a run
KEYS = {
    "envs": list,
    "presets": list,
    "seeds": list,
    "scale": str,
    "demos": list,
    "budget": dict,
    "settings": dict,
}
BUDGET = ("steps", "minutes")
OWN = ("env", "demos", "preset", "run__folder", "run__seed")


@dataclass
class Job:
    """One run of a suite."""

    config: Config
    scale: str
    state: str = "waiting"  # then running, and done, failed or stopped
    note: str = ""  # why it failed
    row: dict[str, Any] = field(default_factory=dict)  # its newest metrics

    @property
    def folder(self) -> Path:
        return Path(self.config.run.folder)

    @property
    def log(self) -> Path:
        """What its process printed."""
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def share(self) -> float:
        """How much of its budget is used."""
        run = self.config.run
        minutes = (metrics.number(self.row, "minutes") or 0.0) / run.minutes if run.minutes else 0.0
        return min(1.0, max(minutes, self.row.get("step", 0) / run.steps))

    def words(self) -> list[str]:
        """The command that trains it."""
        usual = settings(preset(self.config.preset, self.scale))
        own = {k: v for k, v in settings(self.config).items() if v != usual[k]}
        resume = ["--resume"] if (self.folder / "config.json").exists() else []
        options = [word for name, value in own.items() for word in _option(name, value)]
        return ["train", self.config.preset, "--scale", self.scale, *options, *resume]

    def refresh(self) -> None:
        """Look at its newest metrics."""
        path = self.folder / "metrics.jsonl"
        self.row = (metrics.read(path) or [{}])[-1] if path.exists() else {}

    def reached(self) -> bool:
        """Whether its newest checkpoint has used up the budget."""
        newest = max((self.folder / "checkpoints").glob("step_*/facts.json"), default=None)
        if newest is None:
            return False
        try:
            saved = checkpoint.read_facts(newest.parent)
            steps, seconds = (
                checkpoint_metadata.count(saved, "step"),
                checkpoint_metadata.measure(saved, "seconds"),
            )
        except CheckpointError:
            return False  # a broken checkpoint: training says so, and takes an older one
        run = self.config.run
        return steps >= run.steps or 0 < 60 * run.minutes <= seconds


def _option(name: str, value: Any) -> Iterator[str]:
    """A setting as the command line spells it."""
    section, _, leaf = name.rpartition(".")
    if isinstance(value, bool):
        yield f"--{section}.{'' if value else 'no-'}{leaf}"
        return
    yield f"--{name}"
    yield from map(str, value if isinstance(value, list | tuple) else [value])


# Reading


def shipped() -> list[str]:
    """The suites of the package."""
    return sorted(p.name[:-5] for p in _shelf().iterdir() if p.name.endswith(".toml"))


def _shelf() -> Any:
    return files("lookfurther.evaluation") / "suites"


def read(word: str) -> tuple[str, dict[str, Any]]:
    """A suite's name and what it says: a file's, or that of one of the package's."""
    source = _shelf() / f"{word}.toml" if word in shipped() else Path(word)
    try:
        data = tomllib.loads(source.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"no suite {word}: give a TOML file, or one of {', '.join(shipped())}"
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{word} cannot be read: {' '.join(str(error).split())}") from None
    for key, value in data.items():
        if key not in KEYS:
            raise ConfigError(f"{word}: unknown key {key}; a suite has {', '.join(KEYS)}")
        if not isinstance(value, KEYS[key]):
            kind = {list: "a list", str: "a text", dict: "a table"}[KEYS[key]]
            raise ConfigError(f"{word}: {key} must be {kind}, not {value!r}")
    return Path(word).stem, data


class Plan(NamedTuple):
    """What all runs of a suite share."""

    scale: str
    demos: Sequence[str]  # names of sets, with {game} where the environment's comes
    changes: dict[str, Any]  # in `config.replace`'s spelling
    out: Path

    def job(self, env: str, variant: str, seed: int) -> Job:
        """One cell of the grid; a preset without demonstrations is given none."""
        config = preset(variant, self.scale, env=env, run__seed=seed, **self.changes)
        if config.learner.expert_items:
            game = game_of(env) or re.sub(r"-v\d+$", "", re.split("[/:]", env)[-1])
            named = (str(name).replace("{game}", game) for name in self.demos)
            config = replace(config, demos=tuple(named))
        folder = self.out / Path(default_folder(config)).name
        return Job(validate(replace(config, run__folder=str(folder))), self.scale)


def jobs(data: dict[str, Any], out: Path, modules: Sequence[str] = ()) -> list[Job]:
    """The runs of a suite, every setting, environment and set of demonstrations checked.

    `modules` are those that the user names: a suite may name no others of its own.
    """
    import_modules(modules)
    changes = _changes(data)
    plan = Plan(data.get("scale", "paper"), data.get("demos", []), changes, out)
    envs, presets, seeds = (_several(data, key) for key in ("envs", "presets", "seeds"))
    found = [plan.job(*cell) for cell in product(envs, presets, seeds)]
    for job in found:
        if reason := untrusted(job.config.env, job.config.environment.wrappers, modules):
            raise ConfigError(f"the suite names {reason}")
    for env in envs:
        find(env)
    for word in dict.fromkeys(name for job in found for name in job.config.demos):
        catalog.find(word)
    for job in found:
        _settle(job)
    return found


def _changes(data: dict[str, Any]) -> dict[str, Any]:
    """Settings and budget as overrides; what the suite itself decides is refused."""
    changes, budget = dict(_flat(data.get("settings", {}))), data.get("budget", {})
    if unknown := set(budget) - set(BUDGET):
        raise ConfigError(f"unknown budget.{min(unknown)}: give steps, minutes or both")
    for key in OWN:
        if key in changes:
            raise ConfigError(f"settings.{key.replace('__', '.')} is the suite's own: drop it")
    return changes | {f"run__{name}": value for name, value in budget.items()}


def _several(data: dict[str, Any], key: str) -> list[Any]:
    """The values of one side of the grid, each once."""
    values = data.get(key, [0] if key == "seeds" else [])
    kind = int if key == "seeds" else str
    if not values or any(type(v) is not kind for v in values) or len(set(values)) < len(values):
        what = "whole numbers" if kind is int else "texts"
        raise ConfigError(f"{key} must be a list of {what}, each once, not {values!r}")
    return values


def _flat(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Settings as `config.replace` spells them, whether nested or dotted in the file."""
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}__")
        else:
            yield prefix + name.replace(".", "__"), value


def _settle(job: Job) -> None:
    """Note what is done already; a folder of other settings is refused."""
    record = job.folder / "config.json"
    if not record.exists():
        return
    begun = read_config(record)
    if fingerprint(begun, FREE) != fingerprint(job.config, FREE):
        raise ConfigError(f"{job.folder} holds a run of other settings: choose another --out")
    job.refresh()
    job.state = "done" if job.reached() else "waiting"


# Running


def perform(runs: Sequence[Job], show: Callable[[Job], None]) -> None:
    """Train what is not done, one after another; `show` is called as things change."""
    with StopSignals() as signals:
        for job in runs:
            if job.state == "done" or signals.requested:
                continue
            job.state = "running"
            show(job)
            code = _train(job, lambda job=job: show(job), signals)
            job.refresh()
            job.state = "failed" if code else "done" if job.reached() else "stopped"
            job.note = _reason(job, code) if code else ""
            show(job)


def _train(job: Job, tick: Callable[[], None], signals: StopSignals) -> int:
    """Train in a process of its own, which is asked to stop where this one is."""
    job.folder.parent.mkdir(parents=True, exist_ok=True)
    command = python_command("-m", "lookfurther", *job.words())
    # In a session of its own: a Ctrl-C of the terminal reaches it once, through us.
    with job.log.open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=helper_environment(user_modules=True),
            start_new_session=True,
        )
    asked = False
    while True:
        try:
            return process.wait(POLL)
        except subprocess.TimeoutExpired:
            if signals.requested and not asked:
                process.terminate()
                asked = True
            job.refresh()
            tick()


def _reason(job: Job, code: int) -> str:
    """The last thing a failed run said."""
    lines = job.log.read_text(encoding="utf-8", errors="replace").split("\n")
    said = next((line for line in reversed(lines) if line.strip()), "")
    how = f"killed by signal {-code}" if code < 0 else said.removeprefix("lookfurther: ")
    return f"{how} ({job.log})"
