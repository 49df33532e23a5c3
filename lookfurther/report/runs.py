"""Run folders read, and grouped so that only runs that differ in their seed are averaged."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from lookfurther.config import SEED_SETTINGS, Config, config_fingerprint, flatten_settings
from lookfurther.errors import ConfigError, LookFurtherError
from lookfurther.evaluation import results
from lookfurther.evaluation.results import Evaluation
from lookfurther.presets import PRESETS
from lookfurther.system.printable import make_printable
from lookfurther.training import metrics
from lookfurther.training.run_dir import read_config

# A variant is compared across tasks: these say what the task is, not how it is learned.
TASK_SETTINGS = frozenset(
    {"env", "demos", "environment.wrappers", "environment.layout", "environment.frame_stack"}
)
MAX_LABEL_SETTINGS = 3  # differing settings in a label
MAX_LABEL_LENGTH = 160  # characters


@dataclass(frozen=True)
class RunData:
    """One run folder."""

    path: Path
    config: Config
    rows: list[dict[str, Any]]
    evaluations: dict[str, Evaluation]
    commit: str | None

    def last_value(self, key: str) -> float | None:
        """The newest known value of a metric."""
        values = (metrics.get_metric(row, key) for row in reversed(self.rows))
        return next((v for v in values if v is not None), None)


@dataclass(frozen=True)
class RunGroup:
    """Runs of the same settings, with different seeds."""

    env: str
    variant: str  # the label of how it learns, the same across environments
    runs: tuple[RunData, ...]

    @property
    def config(self) -> Config:
        return self.runs[0].config


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """The run folders among paths: a folder that is no run stands for the runs in it."""
    found: dict[Path, Path] = {}
    for path in paths:
        inside = [path] if (path / "config.json").exists() else sorted(path.glob("*/config.json"))
        if not inside:
            raise ConfigError(f"{path} holds no run: give run folders, or a folder of them")
        for run in inside:
            run = run.parent if run.name == "config.json" else run
            found.setdefault(run.resolve(), run)
    return list(found.values())


def load_run(path: Path) -> RunData:
    """What a run folder holds; the run may still go on."""
    config = read_config(path / "config.json")
    rows = metrics.read_metrics(path / "metrics.jsonl") if (path / "metrics.jsonl").exists() else []
    return RunData(
        path, config, rows, results.read_evaluations(path), _read_commit(path / "versions.json")
    )


def _read_commit(path: Path) -> str | None:
    """The version of the code a run was trained with, where it is known."""
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8")).get("commit")
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise LookFurtherError(f"{path} cannot be read: {error}") from None
    return None if found is None else make_printable(found)


def group_runs(runs: Sequence[RunData]) -> list[RunGroup]:
    """Runs by environment and settings, in the order of the presets; a seed may come once."""
    groups: dict[str, list[RunData]] = defaultdict(list)
    for run in runs:
        mates = groups[config_fingerprint(run.config)]
        for mate in mates:
            if mate.config.run.seed == run.config.run.seed:
                raise ConfigError(
                    f"{mate.path} and {run.path} have the same settings and seed:"
                    " give one of them, a run counts once"
                )
        mates.append(run)
    labels = _variant_labels([mates[0].config for mates in groups.values()])
    found = [
        RunGroup(mates[0].config.env, labels[key], tuple(mates)) for key, mates in groups.items()
    ]
    return sorted(found, key=lambda g: (g.env, preset_order(g)))


def preset_order(group: RunGroup) -> tuple[int, str]:
    """The paper's order of presets; one's own come last."""
    preset = group.config.preset
    return list(PRESETS).index(preset) if preset in PRESETS else len(PRESETS), group.variant


def _variant_labels(configs: Sequence[Config]) -> dict[str, str]:
    """Fingerprint to label: the preset, and what sets it apart from others of that preset."""
    hidden = SEED_SETTINGS | TASK_SETTINGS
    if len({(c.env, config_fingerprint(c, hidden)) for c in configs}) < len(configs):
        hidden = SEED_SETTINGS | {
            "env"
        }  # the same learner on other demonstrations or wrappers of one task
    variants = {config_fingerprint(c, hidden): c for c in configs}
    labels = {
        key: _variant_label(c, list(variants.values()), hidden) for key, c in variants.items()
    }
    for label, count in Counter(labels.values()).items():
        if count > 1:  # they differ in more settings than a label shows
            same = [key for key, text in labels.items() if text == label]
            labels |= {key: f"{label}, {sha256(key.encode()).hexdigest()[:6]}" for key in same}
    return {config_fingerprint(c): labels[config_fingerprint(c, hidden)] for c in configs}


def _variant_label(config: Config, all_configs: Sequence[Config], hidden: Iterable[str]) -> str:
    """A preset with the settings in which it differs from others of its name; sticky, always."""
    own = flatten_settings(config)
    mates = [flatten_settings(other) for other in all_configs if other.preset == config.preset]
    apart = [n for n in own if n not in hidden and any(mate[n] != own[n] for mate in mates)]
    apart = [n for n in apart if n != "environment.sticky_prob"][:MAX_LABEL_SETTINGS]
    words = [config.preset, *(f"{n.rpartition('.')[2]} {format_setting(own[n])}" for n in apart)]
    words += [f"sticky {config.environment.sticky_prob:g}"] * (config.environment.sticky_prob > 0)
    return make_printable(", ".join(words), MAX_LABEL_LENGTH)


def format_setting(value: Any) -> str:
    """A setting's value as a reader writes it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return " ".join(map(format_setting, value)) or "none"
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:g}"
    return make_printable(value) or "none"
