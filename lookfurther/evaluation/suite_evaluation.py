"""The evaluation of every run of a suite, after its training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

from lookfurther.config import Config
from lookfurther.envs.human_starts import check_restorable
from lookfurther.envs.naming import is_atari
from lookfurther.errors import ConfigError, LookFurtherError
from lookfurther.evaluation.evaluate import DEFAULT_EPISODES
from lookfurther.evaluation.paper_scores import StartType
from lookfurther.evaluation.results import EVALUATION_FOLDER, EvaluationConditions, read_evaluation
from lookfurther.training.checkpoints import checkpoint_metadata
from lookfurther.training.checkpoints.saved_weights import find_checkpoint

EVALUATION_KEYS = ("episodes", "starts")


class SuiteEvaluation(NamedTuple):
    """How the best weights of each run, otherwise its newest, are evaluated."""

    episodes: int
    starts: tuple[StartType, ...]
    modules: tuple[str, ...] = ()  # that the command may import
    demos: tuple[str, ...] = ()

    def for_env(self, env: str, action_repeat: int, demos: tuple[str, ...]) -> SuiteEvaluation:
        """The evaluation of an environment whose demonstrations are `demos`."""
        if "human" in self.starts:
            if not is_atari(env):
                raise ConfigError(f"evaluation.starts human needs an Atari game; {env} is not one")
            if not demos:
                raise ConfigError("evaluation.starts human needs demonstrations: add demos")
            check_restorable(env, action_repeat, "remove human from evaluation.starts")
        return self._replace(demos=demos)

    def human_demos(self) -> tuple[str, ...]:
        """The sets that human starts are drawn from."""
        return self.demos if "human" in self.starts else ()

    def missing_commands(self, config: Config) -> list[list[str]]:
        """The arguments of the commands that make the missing evaluations of a run."""
        step = _find_weights_step(Path(config.run.folder))
        return [
            self._arguments(config, starts)
            for starts in self.starts
            if not self._is_made(config, starts, step)
        ]

    def _is_made(self, config: Config, starts: StartType, step: int | None) -> bool:
        """Whether the weights of this step are evaluated; not if the evaluation is damaged."""
        sticky = config.environment.sticky_prob if is_atari(config.env) else 0.0
        conditions = EvaluationConditions(config.env, starts, sticky)
        try:
            folder = Path(config.run.folder) / EVALUATION_FOLDER / conditions.folder_name
            made = read_evaluation(folder)
        except (LookFurtherError, OSError):
            return False
        return made.conditions.step == step and len(made.scores) >= self.episodes

    def _arguments(self, config: Config, starts: StartType) -> list[str]:
        demos = ["--demos", *self.human_demos()] if starts == "human" else []
        modules = ["--modules", *self.modules] if self.modules else []
        options = ["--episodes", str(self.episodes), "--starts", starts]
        return ["evaluate", config.run.folder, *options, *demos, *modules]


def _find_weights_step(run: Path) -> int | None:
    """The step of the weights that `evaluate` takes; None if there are none."""
    try:
        return checkpoint_metadata.get_count(find_checkpoint(run, ("weights",)), "step")
    except (LookFurtherError, OSError):
        return None


def parse_evaluation(
    table: Mapping[str, Any] | None, modules: Sequence[str]
) -> SuiteEvaluation | None:
    """The table `evaluation` of a suite; None if there is none."""
    if table is None:
        return None
    if unknown := set(table) - set(EVALUATION_KEYS):
        raise ConfigError(f"unknown evaluation.{min(unknown)}: give episodes, starts or both")
    episodes, starts = table.get("episodes", DEFAULT_EPISODES), table.get("starts", ["noop"])
    if type(episodes) is not int or episodes < 1:
        raise ConfigError(f"evaluation.episodes must be 1 or more, not {episodes!r}")
    choices = get_args(StartType)
    if not isinstance(starts, list) or not starts or any(s not in choices for s in starts):
        raise ConfigError(
            f"evaluation.starts must be a list of {' and '.join(choices)}, not {starts!r}"
        )
    return SuiteEvaluation(episodes, tuple(dict.fromkeys(starts)), tuple(modules))
