"""Search for settings with Optuna: each trial is a short run, scored by an evaluation."""

from __future__ import annotations

import math
import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from lookfurther.agent import Agent
from lookfurther.config import Config, flatten_settings, replace, unknown_setting
from lookfurther.errors import ConfigError, LookFurtherError
from lookfurther.evaluation.evaluate import evaluate
from lookfurther.system.files import write_text
from lookfurther.system.output import print_line
from lookfurther.training.callbacks import Callback, RunContext
from lookfurther.training.train import train
from lookfurther.validation import validate

STUDY_NAME, JOURNAL_FILE, BEST_FILE = "tune", "trials.log", "best.toml"
INTERRUPTED = "interrupted"  # the mark of a trial that was stopped by a signal
RANGE_KEYS, CHOICE_KEYS = {"low", "high", "log"}, {"choices"}
Space = dict[str, dict[str, Any]]  # setting -> its range or choices


@dataclass(frozen=True)
class TuningResult:
    """The best trial so far."""

    score: float
    settings: dict[str, Any]  # dotted name -> value
    trials: int  # finished ones


def read_space(path: Path | None, config: Config) -> Space:
    """A search space from a TOML file, or the one of the package; every name is checked."""
    source = path or files("lookfurther.evaluation") / "spaces" / "default.toml"
    try:
        data = tomllib.loads(source.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{source} cannot be read: {' '.join(str(error).split())}") from None
    known = flatten_settings(config)
    for name, choice in data.items():
        if name not in known:
            raise unknown_setting(name)
        keys = set(choice) if isinstance(choice, dict) else set()
        if not ({"low", "high"} <= keys <= RANGE_KEYS or keys == CHOICE_KEYS):
            raise ConfigError(f"{source}: {name} needs low and high (and log), or choices")
        if keys == CHOICE_KEYS and not (isinstance(choice["choices"], list) and choice["choices"]):
            raise ConfigError(f"{source}: {name} needs a list of choices")
        if keys != CHOICE_KEYS and type(known[name]) not in (int, float):
            raise ConfigError(f"{source}: {name} is not a number: give choices")
    if not data:
        raise ConfigError(f"{source} names no setting to search over")
    return data


def suggest_settings(trial: Any, space: Space, config: Config) -> dict[str, Any]:
    """The values that a trial tries, by dotted name."""
    defaults, values = flatten_settings(config), {}
    for name, choice in space.items():
        if "choices" in choice:
            index = trial.suggest_categorical(name, list(range(len(choice["choices"]))))
            values[name] = choice["choices"][index]
            continue
        is_whole = type(defaults[name]) is int
        suggest = trial.suggest_int if is_whole else trial.suggest_float
        values[name] = suggest(name, choice["low"], choice["high"], log=choice.get("log", False))
    return values


def apply_settings(config: Config, settings: Mapping[str, Any]) -> Config:
    """The configuration with settings by dotted name."""
    return replace(config, **{name.replace(".", "__"): value for name, value in settings.items()})


class PruningCallback(Callback):
    """Stops a trial whose return is below the median of earlier trials at the same step."""

    def __init__(self, trial: Any) -> None:
        self.trial = trial

    def on_log(self, run: RunContext, row: Mapping[str, Any]) -> None:
        if math.isfinite(row["return_low_epsilon"]):
            self.trial.report(row["return_low_epsilon"], run.step)
            if self.trial.should_prune():
                run.stop("pruned")


class TrialRunner:
    """Trains with the settings of a trial and returns its score."""

    def __init__(self, config: Config, space: Space, out: Path, episodes: int) -> None:
        self.config, self.space, self.out, self.episodes = config, space, out, episodes

    def __call__(self, trial: Any) -> float:
        import optuna

        settings = suggest_settings(trial, self.space, self.config)
        folder = self.out / f"trial_{trial.number:04d}"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            config = validate(apply_settings(self.config, settings))
        except ConfigError as error:
            print_line(f"trial {trial.number}: left out, {error}")
            raise optuna.TrialPruned from None
        summary = train(
            replace(config, run__folder=str(folder)), callbacks=[PruningCallback(trial)]
        )
        if summary.stop_reason == "pruned":
            shutil.rmtree(folder / "checkpoints")
            raise optuna.TrialPruned
        if summary.stop_reason not in ("done", "time"):
            trial.set_user_attr(INTERRUPTED, True)
            raise KeyboardInterrupt
        results = evaluate(Agent.load(folder), self.episodes)
        shutil.rmtree(folder / "checkpoints")  # they contain the replay
        score = float(np.mean([episode.score for episode in results]))
        print_line(f"trial {trial.number}: score {score:g} with {settings}")
        return score


def tune(config: Config, space: Space, trials: int, out: Path, episodes: int = 20) -> TuningResult:
    """Run trials until `trials` are finished, counting those of earlier calls in `out`.

    A trial that diverges counts as failed, one that was interrupted is tried again.
    """
    try:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend
    except ImportError as error:
        raise ConfigError(f"tune needs Optuna ({error}): pip install 'lookfurther[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    out.mkdir(parents=True, exist_ok=True)
    storage = JournalStorage(JournalFileBackend(str(out / JOURNAL_FILE)))
    study = optuna.create_study(
        storage=storage, study_name=STUDY_NAME, direction="maximize", load_if_exists=True
    )
    finished = count_finished(study)
    study.sampler = optuna.samplers.TPESampler(seed=config.run.seed + len(study.trials))
    study.pruner = optuna.pruners.MedianPruner(n_startup_trials=5)
    runner = TrialRunner(config, space, out, episodes)
    study.optimize(runner, n_trials=max(0, trials - finished), catch=LookFurtherError)
    return _finish_study(study, runner)


def count_finished(study: Any) -> int:
    """The number of trials that ended: scored, pruned or failed, but not interrupted."""
    trials = (trial for trial in study.trials if trial.state.is_finished())
    return sum(INTERRUPTED not in trial.user_attrs for trial in trials)


def _finish_study(study: Any, runner: TrialRunner) -> TuningResult:
    """The best trial, which is also written to best.toml."""
    import optuna

    complete = study.get_trials(states=(optuna.trial.TrialState.COMPLETE,))
    if not complete:
        raise LookFurtherError(f"no trial in {runner.out} has a score: see its trial folders")
    best = max(complete, key=lambda trial: trial.value)
    fixed = optuna.trial.FixedTrial(best.params)
    settings = suggest_settings(fixed, runner.space, runner.config)
    result = TuningResult(best.value, settings, count_finished(study))
    write_text(runner.out / BEST_FILE, format_result(runner.config, result, runner.episodes))
    return result


def format_result(config: Config, result: TuningResult, episodes: int) -> str:
    """A result as TOML."""
    lines = [f"env = {format_toml(config.env)}", f"preset = {format_toml(config.preset)}"]
    lines += [f"steps = {config.run.steps}", f"seed = {config.run.seed}"]
    lines += [f"score = {result.score!r}", f"episodes = {episodes}", "", "[settings]"]
    lines += [f'"{name}" = {format_toml(value)}' for name, value in result.settings.items()]
    return "\n".join(lines) + "\n"


def format_toml(value: Any) -> str:
    """A text, number, boolean or list as TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(format_toml, value))}]"
    return (
        '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        if isinstance(value, str)
        else repr(value)
    )
