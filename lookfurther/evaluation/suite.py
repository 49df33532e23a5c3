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

from lookfurther.config import Config, config_fingerprint, flatten_settings, flatten_tree, replace
from lookfurther.demos import catalog
from lookfurther.envs.factory import find_env_spec
from lookfurther.envs.trust import find_untrusted, import_modules
from lookfurther.errors import CheckpointError, ConfigError
from lookfurther.evaluation.paper_scores import game_of
from lookfurther.presets import preset
from lookfurther.system.processes import python_command, subprocess_environment
from lookfurther.training import checkpoint, checkpoint_metadata, metrics
from lookfurther.training.run_dir import CHANGEABLE_SETTINGS, read_config
from lookfurther.training.signals import StopSignals
from lookfurther.training.train import default_run_dir
from lookfurther.validation import validate

POLL_SECONDS = 1.0  # seconds between two looks at a run
KEY_TYPES = {
    "envs": list,
    "presets": list,
    "seeds": list,
    "scale": str,
    "demos": list,
    "budget": dict,
    "settings": dict,
}
BUDGET_KEYS = ("steps", "minutes")
RESERVED_SETTINGS = ("env", "demos", "preset", "run__folder", "run__seed")


@dataclass
class SuiteJob:
    """One run of a suite."""

    config: Config
    scale: str
    state: str = "waiting"  # then running, and done, failed or stopped
    failure: str = ""  # why it failed
    newest_row: dict[str, Any] = field(default_factory=dict)  # its newest metrics

    @property
    def folder(self) -> Path:
        return Path(self.config.run.folder)

    @property
    def log_file(self) -> Path:
        """What its process printed."""
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def budget_used(self) -> float:
        """How much of its budget is used."""
        run = self.config.run
        minutes = (
            (metrics.get_metric(self.newest_row, "minutes") or 0.0) / run.minutes
            if run.minutes
            else 0.0
        )
        return min(1.0, max(minutes, self.newest_row.get("step", 0) / run.steps))

    def train_arguments(self) -> list[str]:
        """The command that trains it."""
        usual = flatten_settings(preset(self.config.preset, self.scale))
        own = {k: v for k, v in flatten_settings(self.config).items() if v != usual[k]}
        resume = ["--resume"] if (self.folder / "config.json").exists() else []
        options = [word for name, value in own.items() for word in _format_option(name, value)]
        return ["train", self.config.preset, "--scale", self.scale, *options, *resume]

    def read_newest_row(self) -> None:
        """Look at its newest metrics."""
        path = self.folder / "metrics.jsonl"
        self.newest_row = (metrics.read_metrics(path) or [{}])[-1] if path.exists() else {}

    def has_used_budget(self) -> bool:
        """Whether its newest checkpoint has used up the budget."""
        newest = max((self.folder / "checkpoints").glob("step_*/facts.json"), default=None)
        if newest is None:
            return False
        try:
            saved = checkpoint.read_metadata(newest.parent)
            steps, seconds = (
                checkpoint_metadata.get_count(saved, "step"),
                checkpoint_metadata.get_number(saved, "seconds"),
            )
        except CheckpointError:
            return False  # a broken checkpoint: training says so, and takes an older one
        run = self.config.run
        return steps >= run.steps or 0 < 60 * run.minutes <= seconds


def _format_option(name: str, value: Any) -> Iterator[str]:
    """A setting as the command line spells it."""
    section, _, leaf = name.rpartition(".")
    if isinstance(value, bool):
        yield f"--{section}.{'' if value else 'no-'}{leaf}"
        return
    yield f"--{name}"
    yield from map(str, value if isinstance(value, list | tuple) else [value])


# Reading


def list_shipped_suites() -> list[str]:
    """The suites of the package."""
    return sorted(p.name[:-5] for p in _shipped_suites_dir().iterdir() if p.name.endswith(".toml"))


def _shipped_suites_dir() -> Any:
    return files("lookfurther.evaluation") / "suites"


def read_suite(name: str) -> tuple[str, dict[str, Any]]:
    """A suite's name and what it says: a file's, or that of one of the package's."""
    source = _shipped_suites_dir() / f"{name}.toml" if name in list_shipped_suites() else Path(name)
    try:
        data = tomllib.loads(source.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"no suite {name}: give a TOML file, or one of {', '.join(list_shipped_suites())}"
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name} cannot be read: {' '.join(str(error).split())}") from None
    for key, value in data.items():
        if key not in KEY_TYPES:
            raise ConfigError(f"{name}: unknown key {key}; a suite has {', '.join(KEY_TYPES)}")
        if not isinstance(value, KEY_TYPES[key]):
            kind = {list: "a list", str: "a text", dict: "a table"}[KEY_TYPES[key]]
            raise ConfigError(f"{name}: {key} must be {kind}, not {value!r}")
    return Path(name).stem, data


class SuitePlan(NamedTuple):
    """What all runs of a suite share."""

    scale: str
    demo_names: Sequence[str]  # names of sets, with {game} where the environment's comes
    overrides: dict[str, Any]  # in `config.replace`'s spelling
    output_dir: Path

    def build_job(self, env: str, variant: str, seed: int) -> SuiteJob:
        """One cell of the grid; a preset without demonstrations is given none."""
        config = preset(variant, self.scale, env=env, run__seed=seed, **self.overrides)
        if config.learner.expert_items:
            game = game_of(env) or re.sub(r"-v\d+$", "", re.split("[/:]", env)[-1])
            named = (str(name).replace("{game}", game) for name in self.demo_names)
            config = replace(config, demos=tuple(named))
        folder = self.output_dir / Path(default_run_dir(config)).name
        return SuiteJob(validate(replace(config, run__folder=str(folder))), self.scale)


def build_jobs(
    data: dict[str, Any], output_dir: Path, modules: Sequence[str] = ()
) -> list[SuiteJob]:
    """The runs of a suite, every setting, environment and set of demonstrations checked.

    `modules` are those that the user names: a suite may name no others of its own.
    """
    import_modules(modules)
    changes = _parse_overrides(data)
    plan = SuitePlan(data.get("scale", "paper"), data.get("demos", []), changes, output_dir)
    envs, presets, seeds = (_parse_axis(data, key) for key in ("envs", "presets", "seeds"))
    found = [plan.build_job(*cell) for cell in product(envs, presets, seeds)]
    for job in found:
        if reason := find_untrusted(job.config.env, job.config.environment.wrappers, modules):
            raise ConfigError(f"the suite names {reason}")
    for env in envs:
        find_env_spec(env)
    for word in dict.fromkeys(name for job in found for name in job.config.demos):
        catalog.find_set(word)
    for job in found:
        _check_earlier_run(job)
    return found


def _parse_overrides(data: dict[str, Any]) -> dict[str, Any]:
    """Settings and budget as overrides; what the suite itself decides is refused."""
    settings = flatten_tree(data.get("settings", {}))  # nested or dotted in the file
    changes = {name.replace(".", "__"): value for name, value in settings}
    budget = data.get("budget", {})
    if unknown := set(budget) - set(BUDGET_KEYS):
        raise ConfigError(f"unknown budget.{min(unknown)}: give steps, minutes or both")
    for key in RESERVED_SETTINGS:
        if key in changes:
            raise ConfigError(f"settings.{key.replace('__', '.')} is the suite's own: drop it")
    return changes | {f"run__{name}": value for name, value in budget.items()}


def _parse_axis(data: dict[str, Any], key: str) -> list[Any]:
    """The values of one side of the grid, each once."""
    values = data.get(key, [0] if key == "seeds" else [])
    kind = int if key == "seeds" else str
    if not values or any(type(v) is not kind for v in values) or len(set(values)) < len(values):
        what = "whole numbers" if kind is int else "texts"
        raise ConfigError(f"{key} must be a list of {what}, each once, not {values!r}")
    return values


def _check_earlier_run(job: SuiteJob) -> None:
    """Note what is done already; a folder of other settings is refused."""
    record = job.folder / "config.json"
    if not record.exists():
        return
    begun = read_config(record)
    if config_fingerprint(begun, CHANGEABLE_SETTINGS) != config_fingerprint(
        job.config, CHANGEABLE_SETTINGS
    ):
        raise ConfigError(f"{job.folder} holds a run of other settings: choose another --out")
    job.read_newest_row()
    job.state = "done" if job.has_used_budget() else "waiting"


# Running


def run_jobs(jobs: Sequence[SuiteJob], on_change: Callable[[SuiteJob], None]) -> None:
    """Train what is not done, one after another; `show` is called as things change."""
    with StopSignals() as signals:
        for job in jobs:
            if job.state == "done" or signals.received_signal:
                continue
            job.state = "running"
            on_change(job)
            code = _train_job(job, lambda job=job: on_change(job), signals)
            job.read_newest_row()
            job.state = "failed" if code else "done" if job.has_used_budget() else "stopped"
            job.failure = _failure_reason(job, code) if code else ""
            on_change(job)


def _train_job(job: SuiteJob, on_poll: Callable[[], None], signals: StopSignals) -> int:
    """Train in a process of its own, which is asked to stop where this one is."""
    job.folder.parent.mkdir(parents=True, exist_ok=True)
    command = python_command("-m", "lookfurther", *job.train_arguments())
    # In a session of its own: a Ctrl-C of the terminal reaches it once, through us.
    with job.log_file.open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=subprocess_environment(user_modules=True),
            start_new_session=True,
        )
    asked = False
    while True:
        try:
            return process.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            if signals.received_signal and not asked:
                process.terminate()
                asked = True
            job.read_newest_row()
            on_poll()


def _failure_reason(job: SuiteJob, code: int) -> str:
    """The last thing a failed run said."""
    lines = job.log_file.read_text(encoding="utf-8", errors="replace").split("\n")
    said = next((line for line in reversed(lines) if line.strip()), "")
    how = f"killed by signal {-code}" if code < 0 else said.removeprefix("lookfurther: ")
    return f"{how} ({job.log_file})"
