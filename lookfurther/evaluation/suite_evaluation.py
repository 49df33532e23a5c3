"""The evaluation of every run of a suite, after its training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

from lookfurther.errors import ConfigError
from lookfurther.evaluation.paper_scores import StartType
from lookfurther.evaluation.results import DEFAULT_EPSILON, read_evaluations

EVALUATION_KEYS = ("episodes", "starts")


class SuiteEvaluation(NamedTuple):
    """How the best weights of each run, otherwise its newest, are evaluated."""

    episodes: int
    starts: tuple[StartType, ...]
    modules: tuple[str, ...]  # that the command may import

    def missing_commands(self, run: Path) -> list[list[str]]:
        """The arguments of the commands that make the missing evaluations of a run."""
        step = find_weights_step(run)
        done = {
            evaluation.conditions.starts
            for evaluation in read_evaluations(run).values()
            if evaluation.conditions.step == step
            and evaluation.conditions.epsilon == DEFAULT_EPSILON
            and len(evaluation.scores) >= self.episodes
        }
        return [self._arguments(run, starts) for starts in self.starts if starts not in done]

    def _arguments(self, run: Path, starts: StartType) -> list[str]:
        modules = ["--modules", *self.modules] if self.modules else []
        return [
            "evaluate",
            str(run),
            "--episodes",
            str(self.episodes),
            "--starts",
            starts,
            *modules,
        ]


def parse_evaluation(table: Mapping[str, Any], modules: Sequence[str]) -> SuiteEvaluation | None:
    """The table `evaluation` of a suite; None if there is none."""
    if not table:
        return None
    if unknown := set(table) - set(EVALUATION_KEYS):
        raise ConfigError(f"unknown evaluation.{min(unknown)}: give episodes, starts or both")
    episodes, starts = table.get("episodes", 200), table.get("starts", ["noop"])
    if type(episodes) is not int or episodes < 1:
        raise ConfigError(f"evaluation.episodes must be 1 or more, not {episodes!r}")
    choices = get_args(StartType)
    if not isinstance(starts, list) or not starts or any(s not in choices for s in starts):
        raise ConfigError(
            f"evaluation.starts must be a list of {' and '.join(choices)}, not {starts!r}"
        )
    return SuiteEvaluation(episodes, tuple(dict.fromkeys(starts)), tuple(modules))


def find_weights_step(run: Path) -> int | None:
    """The step of the weights that `evaluate` takes: the best ones, otherwise the newest."""
    for folder in (run / "best", run / "checkpoints"):
        saved = max(folder.glob("step_*/facts.json"), default=None)
        if saved is not None:
            return int(saved.parent.name.removeprefix("step_"))
    return None
