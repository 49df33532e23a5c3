"""Read run folders and group them, so that only runs that learn in the same way are averaged."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from lookfurther.config import Config, flatten_settings
from lookfurther.errors import ConfigError
from lookfurther.evaluation import results
from lookfurther.evaluation.results import Evaluation
from lookfurther.presets import PRESETS, TUNED, preset
from lookfurther.settings.tuned import read_tuned_settings
from lookfurther.system.printable import make_printable
from lookfurther.training.config_json import config_fingerprint, settings_fingerprint
from lookfurther.training.monitoring import metrics
from lookfurther.training.run_dir import CHANGEABLE_SETTINGS, read_config, read_versions

# Settings in which the runs of one group may differ: none of them changes what is learned per step.
BOOKKEEPING_SETTINGS = CHANGEABLE_SETTINGS | {
    "run.seed",
    "run.compile",
    "environment.max_failures",
}
# Variants are compared across tasks: these settings define the task, not the learning.
TASK_SETTINGS = frozenset(
    {"env", "demos", "environment.wrappers", "environment.layout", "environment.frame_stack"}
)
MAX_LABEL_SETTINGS = 3
MAX_LABEL_LENGTH = 160  # characters


@dataclass(frozen=True)
class RunData:
    """The contents of one run folder."""

    path: Path
    config: Config
    rows: list[dict[str, Any]]
    evaluations: dict[str, Evaluation]
    versions: dict[str, str]  # of its code, its libraries and its machine

    def last_value(self, key: str) -> float | None:
        """The newest known value of a metric."""
        values = (metrics.get_metric(row, key) for row in reversed(self.rows))
        return next((v for v in values if v is not None), None)


@dataclass(frozen=True)
class RunGroup:
    """Runs with the same learning settings and different seeds, ordered by seed."""

    env: str
    variant: str  # the label of the learning settings, the same for all environments
    runs: tuple[RunData, ...]

    @property
    def config(self) -> Config:
        return self.runs[0].config


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """Find run folders: a path is a run folder or contains some. Each run is listed once."""
    runs: dict[Path, Path] = {}
    for path in paths:
        inside = [path] if (path / "config.json").exists() else sorted(path.glob("*/config.json"))
        if not inside:
            raise ConfigError(f"{path} holds no run: give run folders, or a folder of them")
        for run in inside:
            run = run.parent if run.name == "config.json" else run
            runs.setdefault(run.resolve(), run)
    return list(runs.values())


def load_run(path: Path) -> RunData:
    """Read a run folder; the run may still be training."""
    config = read_config(path / "config.json")
    rows = metrics.read_metrics(path / "metrics.jsonl") if (path / "metrics.jsonl").exists() else []
    versions = read_versions(path / "versions.json")
    return RunData(path, config, rows, results.read_evaluations(path), versions)


def group_runs(runs: Sequence[RunData]) -> list[RunGroup]:
    """Group runs by what changes learning, in the order of the presets; seeds must differ."""
    groups: dict[str, list[RunData]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.config.run.seed):
        members = groups[learning_fingerprint(run.config)]
        for member in members:
            if member.config.run.seed == run.config.run.seed:
                raise ConfigError(
                    f"{member.path} and {run.path} learn with the same settings and seed:"
                    " give one of them, a run counts once"
                )
        members.append(run)
    labels = _variant_labels([members[0].config for members in groups.values()])
    labelled = [
        RunGroup(members[0].config.env, labels[key], tuple(members))
        for key, members in groups.items()
    ]
    return sorted(labelled, key=lambda group: (group.env, preset_order(group)))


def learning_fingerprint(config: Config) -> str:
    """A text that is equal for configurations that learn in the same way, whatever the seed."""
    return config_fingerprint(config, BOOKKEEPING_SETTINGS)


def preset_order(group: RunGroup) -> tuple[int, str]:
    """A sort key: presets in the paper's order, then names that are not presets."""
    preset = group.config.preset
    return list(PRESETS).index(preset) if preset in PRESETS else len(PRESETS), group.variant


def _variant_labels(configs: Sequence[Config]) -> dict[str, str]:
    """Labels by fingerprint: the preset, and how it differs from others of that preset."""
    settings = [_label_settings(config) for config in configs]
    hidden = BOOKKEEPING_SETTINGS | TASK_SETTINGS
    if len({(s["env"], settings_fingerprint(s, hidden)) for s in settings}) < len(configs):
        # The same learner with different demonstrations or wrappers on one environment.
        hidden = BOOKKEEPING_SETTINGS | {"env"}
    variants = {settings_fingerprint(s, hidden): s for s in settings}
    labels = {
        key: _variant_label(s, list(variants.values()), hidden) for key, s in variants.items()
    }
    for label, count in Counter(labels.values()).items():
        if count > 1:  # the label does not show all the settings in which they differ
            same = [key for key, text in labels.items() if text == label]
            labels |= {key: f"{label}, {sha256(key.encode()).hexdigest()[:6]}" for key in same}
    return {
        learning_fingerprint(config): labels[settings_fingerprint(own, hidden)]
        for config, own in zip(configs, settings, strict=True)
    }


def _label_settings(config: Config) -> dict[str, Any]:
    """The settings that labels compare; tuned ones differ between environments and are equal."""
    settings = flatten_settings(config)
    if config.preset != TUNED or config.env not in read_tuned_settings():
        return settings
    tuned = flatten_settings(preset(TUNED, env=config.env)) | {"env": ""}
    return {name: TUNED if value == tuned[name] else value for name, value in settings.items()}


def _variant_label(
    own: dict[str, Any], variants: Sequence[dict[str, Any]], hidden: Iterable[str]
) -> str:
    """A preset with the settings that differ between its variants; sticky actions always."""
    same_preset = [other for other in variants if other["preset"] == own["preset"]]
    differing = [n for n in own if n not in hidden and any(s[n] != own[n] for s in same_preset)]
    sticky = own["environment.sticky_prob"]
    changed = [n for n in differing if n != "environment.sticky_prob" and own[n] != TUNED]
    shown = changed[:MAX_LABEL_SETTINGS]
    words = [own["preset"], *(f"{n.rpartition('.')[2]} {format_setting(own[n])}" for n in shown)]
    words += [f"sticky {sticky:g}"] if sticky not in (0, TUNED) else []
    return make_printable(", ".join(words), MAX_LABEL_LENGTH)


def format_setting(value: Any) -> str:
    """Format the value of a setting for a table or a label."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return " ".join(map(format_setting, value)) or "none"
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:g}"
    return make_printable(value) or "none"
