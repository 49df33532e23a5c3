"""lookfurther evaluate RUN [--starts noop|human] [options]"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from lookfurther.cli.parsing import check_writable, parse_options
from lookfurther.config import EnvConfig
from lookfurther.errors import ConfigError, DemonstrationError
from lookfurther.evaluation.paper_scores import START_TITLES, StartType
from lookfurther.system.printable import make_printable

if TYPE_CHECKING:
    from lookfurther.agent import Agent
    from lookfurther.demos.catalog import DemoSet
    from lookfurther.evaluation.results import Evaluation
    from lookfurther.rollout import EpisodeResult

RANDOM_PLAY = "random"


@dataclass(frozen=True)
class EvaluateOptions:
    """Play whole episodes with the best weights of a run, and keep the scores in its folder."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = tyro.MISSING
    """run folder, or the word random for random play of --env"""
    env: str = ""
    """environment id of random play"""
    episodes: int = 200
    """episodes to play"""
    epsilon: float = 0.001
    """share of random actions"""
    starts: StartType = "noop"
    """noop: up to 30 no-op frames; human: moments of demonstrations, Atari alone"""
    demos: tuple[str, ...] = ()
    """demonstration sets, of human starts and of the expert's curve; none: the run's own"""
    sticky: float | None = None
    """probability that the emulator repeats the last action; None: as in training"""
    lanes: int = 20
    """environments played in parallel"""
    seed: int = 1_000_000
    """of starts and random actions; the same gives the same scores"""
    json: Path | None = None
    """also write conditions, statistics and every score to this file"""
    modules: tuple[str, ...] = ()
    """modules to import first: those that register the environment or hold its wrappers"""


def run(args: list[str]) -> int:
    """Evaluate, print the statistics, and say where they are."""
    options = parse_options(EvaluateOptions, EvaluateOptions(), args, "lookfurther evaluate")
    _validate_options(options)
    if options.json:
        check_writable("--json", options.json)
    evaluation = (
        _evaluate_random(options) if options.run == RANDOM_PLAY else _evaluate_agent(options)
    )
    print(format_evaluation_summary(evaluation))
    if options.run != RANDOM_PLAY:
        from lookfurther.evaluation import results

        print(f"episodes and statistics: {results.write_evaluation(Path(options.run), evaluation)}")
    if options.json:
        _write_json(options.json, evaluation)
    return 0


def _validate_options(options: EvaluateOptions) -> None:
    """Refuse what cannot be played."""
    for holds, rule in (
        (options.episodes > 0, f"--episodes must be at least 1, not {options.episodes}"),
        (options.lanes > 0, f"--lanes must be at least 1, not {options.lanes}"),
        (0 <= options.epsilon <= 1, f"--epsilon must be 0 ... 1, not {options.epsilon:g}"),
        (
            0 <= (options.sticky or 0) < 1,
            f"--sticky must be 0 or more and below 1, not {options.sticky}",
        ),
        (0 <= options.seed < 2**31, f"--seed must be 0 ... 2^31 - 1, not {options.seed}"),
        (
            (options.run == RANDOM_PLAY) == bool(options.env),
            "--env ENV belongs to random play: lookfurther evaluate random --env ENV",
        ),
        (
            options.run != RANDOM_PLAY or (options.starts == "noop" and not options.demos),
            "random play is from no-op starts: leave --starts and --demos out",
        ),
    ):
        if not holds:
            raise ConfigError(rule)


def _evaluate_random(options: EvaluateOptions) -> Evaluation:
    """Random play in the paper's environment."""
    from lookfurther.evaluation.evaluate import evaluate_random, evaluation_env_config

    environment = evaluation_env_config(EnvConfig(), _sticky_prob(options, options.env, 0.0))
    return evaluate_random(
        options.env,
        environment,
        episodes=options.episodes,
        lanes=options.lanes,
        seed=options.seed,
        on_episode=_episode_counter(options.episodes),
    )


def _evaluate_agent(options: EvaluateOptions) -> Evaluation:
    """Play of a run's agent."""
    from lookfurther.agent import Agent
    from lookfurther.evaluation.evaluate import run_evaluation
    from lookfurther.evaluation.results import EvaluationConditions
    from lookfurther.training import checkpoint, hardware

    if checkpoint.is_checkpoint(Path(options.run)):
        raise ConfigError(f"{options.run} is a checkpoint: give the run folder it lies in")
    agent = Agent.load(options.run, device=hardware.resolve_device("auto"), modules=options.modules)
    env = agent.config.env
    conditions = EvaluationConditions(
        env=env,
        starts=options.starts,
        sticky=_sticky_prob(options, env, agent.config.environment.sticky_prob),
        epsilon=options.epsilon,
        step=agent.step,
        seed=options.seed,
    )
    if options.starts == "human" and not _is_atari(env):
        raise ConfigError(f"human starts are for Atari games, {env} is none: leave --starts out")
    return run_evaluation(
        agent,
        conditions,
        _open_demos(options, agent),
        episodes=options.episodes,
        lanes=options.lanes,
        on_episode=_episode_counter(options.episodes),
    )


def _open_demos(options: EvaluateOptions, agent: Agent) -> list[DemoSet]:
    """The sets that are named, or the run's; without the latter no-op starts do well enough."""
    from lookfurther.demos import catalog

    held = []
    for name in options.demos or agent.config.demos:
        try:
            held.append(catalog.open_set(name))
        except DemonstrationError as error:
            if options.demos or options.starts == "human":
                raise
            print(f"no expert's curve: {error}", file=sys.stderr)
            continue
        theirs = held[-1].description.spec.env
        if theirs != agent.spec.env:
            raise DemonstrationError(f"{name} shows {theirs}, the agent plays {agent.spec.env}")
    return held


def _sticky_prob(options: EvaluateOptions, env: str, run_value: float) -> float:
    """The probability asked for, else the run's own."""
    if options.sticky and not _is_atari(env):
        raise ConfigError(f"--sticky is for Atari games, {env} is none")
    sticky = run_value if options.sticky is None else options.sticky
    return sticky if _is_atari(env) else 0.0


def _is_atari(env: str) -> bool:
    from lookfurther.envs.factory import find_env_spec

    return find_env_spec(env).namespace == "ALE"


def _episode_counter(episodes: int) -> Callable[[EpisodeResult], None]:
    """Counts episodes as they end: each on a terminal, every tenth part of them elsewhere."""
    ended = 0

    def tell(_: EpisodeResult) -> None:
        nonlocal ended
        ended += 1
        if sys.stderr.isatty():
            print(f"\r{ended} of {episodes} episodes", end="", file=sys.stderr, flush=True)
            print(end="\n" if ended == episodes else "", file=sys.stderr)
        elif 10 * ended // episodes > 10 * (ended - 1) // episodes:
            print(f"{ended} of {episodes} episodes", file=sys.stderr, flush=True)

    return tell


def format_evaluation_summary(evaluation: Evaluation) -> str:
    """The statistics as people read them."""
    facts, conditions = evaluation.summary(), evaluation.conditions
    how = [START_TITLES[conditions.starts], f"ε {conditions.epsilon:g}"]
    how += [f"sticky {conditions.sticky:g}"] if conditions.sticky else []
    how += [f"step {conditions.step:,}"] if conditions.step else []
    lines = [f"{make_printable(conditions.env)}: {facts['episodes']} episodes, {', '.join(how)}"]
    for name in ("mean", "median", "iqm"):
        value, low, high = facts[name].values()
        lines.append(f"  {name:20}{value:>12,.1f}   95% {low:,.1f} to {high:,.1f}")
    lines.append(f"  {'best':20}{facts['best']:>12,.1f}")
    for name, unit in (("expert", ""), ("human_normalised", " %"), ("expert_relative", " %")):
        if facts[name] is not None:
            lines.append(f"  {name.replace('_', '-'):20}{facts[name]:>12,.1f}{unit}")
    return "\n".join(lines)


def _write_json(path: Path, evaluation: Evaluation) -> None:
    """Conditions, statistics and episodes as JSON."""
    from lookfurther.evaluation import results
    from lookfurther.system.files import write_text

    episodes = {"scores": evaluation.scores.tolist(), "lengths": evaluation.steps.tolist()}
    text = json.dumps(results.evaluation_to_dict(evaluation) | episodes, indent=2, allow_nan=False)
    write_text(path, text + "\n")
