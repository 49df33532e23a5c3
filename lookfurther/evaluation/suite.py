"""Suites: environments x presets x seeds from one TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from lookfurther.config import Config, flatten_settings, replace
from lookfurther.demos import catalog
from lookfurther.envs.factory import find_env_spec
from lookfurther.envs.naming import base_name, game_of
from lookfurther.envs.trust import find_untrusted, import_modules
from lookfurther.errors import CheckpointError, ConfigError
from lookfurther.evaluation.suite_evaluation import SuiteEvaluation, parse_evaluation
from lookfurther.presets import preset
from lookfurther.settings.setting_names import flatten_tree
from lookfurther.training.checkpoints import checkpoint, checkpoint_metadata
from lookfurther.training.config_json import config_fingerprint
from lookfurther.training.monitoring import metrics
from lookfurther.training.run_dir import CHANGEABLE_SETTINGS, read_config
from lookfurther.training.train import default_run_dir
from lookfurther.validation import validate

KEY_TYPES = {
    "envs": list,
    "presets": list,
    "seeds": list,
    "scale": str,
    "demos": list,
    "budget": dict,
    "evaluation": dict,
    "settings": dict,
}
BUDGET_KEYS = ("steps", "minutes")
RESERVED_SETTINGS = ("env", "demos", "preset", "run__folder", "run__seed")


@dataclass
class SuiteJob:
    """One run of a suite."""

    config: Config
    scale: str
    evaluation: SuiteEvaluation | None = None  # after the training
    state: str = "waiting"  # then running, evaluating, and done, failed or stopped
    failure: str = ""  # the reason
    newest_row: dict[str, Any] = field(default_factory=dict)  # of its metrics

    @property
    def folder(self) -> Path:
        return Path(self.config.run.folder)

    @property
    def log_file(self) -> Path:
        """The output of its processes."""
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def budget_used(self) -> float:
        """The fraction of its budget that is used."""
        run, minutes = self.config.run, metrics.get_metric(self.newest_row, "minutes") or 0.0
        by_time = minutes / run.minutes if run.minutes else 0.0
        return min(1.0, max(by_time, self.newest_row.get("step", 0) / run.steps))

    def demo_names(self) -> tuple[str, ...]:
        """The demonstrations of its training and its evaluation."""
        return (*self.config.demos, *(self.evaluation.human_demos() if self.evaluation else ()))

    def is_done(self) -> bool:
        """Whether its budget is used and its evaluations are there."""
        return self.has_used_budget() and not self.evaluation_commands()

    def evaluation_commands(self) -> list[list[str]]:
        """The command-line arguments of each evaluation that is missing."""
        return self.evaluation.missing_commands(self.config) if self.evaluation else []

    def train_arguments(self) -> list[str]:
        """The command-line arguments that train it."""
        env = self.config.env
        defaults = flatten_settings(preset(self.config.preset, self.scale, env=env)) | {"env": ""}
        changed = {k: v for k, v in flatten_settings(self.config).items() if v != defaults[k]}
        resume = ["--resume"] if (self.folder / "config.json").exists() else []
        options = [text for name, value in changed.items() for text in _format_option(name, value)]
        return ["train", self.config.preset, "--scale", self.scale, *options, *resume]

    def read_newest_row(self) -> None:
        """Read its newest metrics."""
        path = self.folder / "metrics.jsonl"
        self.newest_row = (metrics.read_metrics(path) or [{}])[-1] if path.exists() else {}

    def has_used_budget(self) -> bool:
        """Whether its newest checkpoint is at the end of its budget."""
        newest = max((self.folder / "checkpoints").glob("step_*/facts.json"), default=None)
        if newest is None:
            return False
        try:
            saved = checkpoint.read_metadata(newest.parent)
            steps = checkpoint_metadata.get_count(saved, "step")
            seconds = checkpoint_metadata.get_number(saved, "seconds")
        except CheckpointError:
            return False  # training prints a warning and resumes from an older one
        run = self.config.run
        return steps >= run.steps or 0 < 60 * run.minutes <= seconds


def _format_option(name: str, value: Any) -> Iterator[str]:
    """A setting as a command-line option."""
    section, _, leaf = name.rpartition(".")
    if isinstance(value, bool):
        yield f"--{section}.{'' if value else 'no-'}{leaf}"
        return
    yield f"--{name}"
    yield from map(str, value if isinstance(value, list | tuple) else [value])


# Reading a suite


def list_shipped_suites() -> list[str]:
    """The names of the suites in the package."""
    return sorted(p.name[:-5] for p in _shipped_suites_dir().iterdir() if p.name.endswith(".toml"))


def _shipped_suites_dir() -> Any:
    return files("lookfurther.evaluation") / "suites"


def read_suite(name: str) -> tuple[str, dict[str, Any]]:
    """The name and content of a suite, from a file or from the package."""
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
    """What all jobs of a suite have in common."""

    scale: str
    demo_names: Sequence[str]  # {game} in a name stands for the environment's game
    overrides: dict[str, Any]  # for `config.replace`
    output_dir: Path

    def build_job(self, env: str, variant: str, seed: int) -> SuiteJob:
        """One cell of the grid; a preset without demonstrations gets none."""
        config = preset(variant, self.scale, env=env, run__seed=seed, **self.overrides)
        if config.uses_demos and self.demo_names:
            config = replace(config, demos=self.find_demos(env))
        folder = self.output_dir / Path(default_run_dir(config)).name
        config = validate(replace(config, run__folder=str(folder)))
        return SuiteJob(config, self.scale)

    def find_demos(self, env: str) -> tuple[str, ...]:
        """The names of an environment's demonstrations."""
        game = game_of(env) or base_name(env)
        return tuple(str(name).replace("{game}", game) for name in self.demo_names)


def build_jobs(
    data: dict[str, Any], output_dir: Path, modules: Sequence[str] = ()
) -> list[SuiteJob]:
    """The jobs of a suite, with every setting, environment and demonstration set checked.

    `modules` are given by the user. A suite cannot name others.
    """
    import_modules(modules)
    overrides = _parse_overrides(data)
    scale, demos = data.get("scale", "paper"), data.get("demos", [])
    plan = SuitePlan(scale, demos, overrides, output_dir)
    envs, presets, seeds = (_parse_axis(data, key) for key in ("envs", "presets", "seeds"))
    jobs = [plan.build_job(*cell) for cell in product(envs, presets, seeds)]
    for job in jobs:
        if reason := find_untrusted(job.config.env, job.config.environment.wrappers, modules):
            raise ConfigError(f"the suite names {reason}")
    evaluation = parse_evaluation(data.get("evaluation"), modules)
    action_repeat = jobs[0].config.environment.action_repeat
    for env in envs:
        find_env_spec(env)
    if evaluation:
        by_env = {e: evaluation.for_env(e, action_repeat, plan.find_demos(e)) for e in envs}
        for job in jobs:
            job.evaluation = by_env[job.config.env]
    for name in dict.fromkeys(name for job in jobs for name in job.demo_names()):
        catalog.find_set(name)
    for job in jobs:
        _check_earlier_run(job)
    return jobs


def _parse_overrides(data: dict[str, Any]) -> dict[str, Any]:
    """Settings and budget as overrides, without settings that the suite itself decides."""
    settings = flatten_tree(data.get("settings", {}))  # nested or dotted in the file
    overrides = {name.replace(".", "__"): value for name, value in settings}
    budget = data.get("budget", {})
    if unknown := set(budget) - set(BUDGET_KEYS):
        raise ConfigError(f"unknown budget.{min(unknown)}: give steps, minutes or both")
    for key in RESERVED_SETTINGS:
        if key in overrides:
            raise ConfigError(f"settings.{key.replace('__', '.')} is the suite's own: drop it")
    return overrides | {f"run__{name}": value for name, value in budget.items()}


def _parse_axis(data: dict[str, Any], key: str) -> list[Any]:
    """The values of one axis of the grid, each once."""
    values = data.get(key, [0] if key == "seeds" else [])
    kind = int if key == "seeds" else str
    if not values or any(type(v) is not kind for v in values) or len(set(values)) < len(values):
        what = "whole numbers" if kind is int else "texts"
        raise ConfigError(f"{key} must be a list of {what}, each once, not {values!r}")
    return values


def _check_earlier_run(job: SuiteJob) -> None:
    """Set the state of a job by its run folder, which must not have other settings."""
    config_file = job.folder / "config.json"
    if not config_file.exists():
        return
    configs = (read_config(config_file), job.config)
    if len({config_fingerprint(config, CHANGEABLE_SETTINGS) for config in configs}) > 1:
        raise ConfigError(f"{job.folder} holds a run of other settings: choose another --out")
    job.read_newest_row()
    job.state = "done" if job.is_done() else "waiting"
