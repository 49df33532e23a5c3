"""lookfurther evaluate RUN [--starts noop|human] [options]"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from lookfurther.cli.parsing import check_output, parse
from lookfurther.config import Environment
from lookfurther.errors import ConfigError, DemonstrationError
from lookfurther.evaluation.paper_scores import STARTS, Starts
from lookfurther.system.printable import printable

if TYPE_CHECKING:
    from lookfurther.agent import Agent
    from lookfurther.demos.catalog import Held
    from lookfurther.evaluation.results import Evaluation
    from lookfurther.rollout import Played

RANDOM = "random"


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
    starts: Starts = "noop"
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


def run(words: list[str]) -> int:
    """Evaluate, print the statistics, and say where they are."""
    options = parse(EvaluateOptions, EvaluateOptions(), words, "lookfurther evaluate")
    _validate(options)
    if options.json:
        check_output("--json", options.json)
    evaluation = _random(options) if options.run == RANDOM else _agent(options)
    print(summary(evaluation))
    if options.run != RANDOM:
        from lookfurther.evaluation import results

        print(f"episodes and statistics: {results.write(Path(options.run), evaluation)}")
    if options.json:
        _write(options.json, evaluation)
    return 0


def _validate(options: EvaluateOptions) -> None:
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
            (options.run == RANDOM) == bool(options.env),
            "--env ENV belongs to random play: lookfurther evaluate random --env ENV",
        ),
        (
            options.run != RANDOM or (options.starts == "noop" and not options.demos),
            "random play is from no-op starts: leave --starts and --demos out",
        ),
    ):
        if not holds:
            raise ConfigError(rule)


def _random(options: EvaluateOptions) -> Evaluation:
    """Random play in the paper's environment."""
    from lookfurther.evaluation.evaluate import assess_random, regime

    environment = regime(Environment(), _sticky(options, options.env, 0.0))
    return assess_random(
        options.env,
        environment,
        episodes=options.episodes,
        lanes=options.lanes,
        seed=options.seed,
        tell=_counter(options.episodes),
    )


def _agent(options: EvaluateOptions) -> Evaluation:
    """Play of a run's agent."""
    from lookfurther.agent import Agent
    from lookfurther.evaluation.evaluate import assess
    from lookfurther.evaluation.results import Conditions
    from lookfurther.training import checkpoint, hardware

    if (Path(options.run) / checkpoint.MANIFEST).exists():
        raise ConfigError(f"{options.run} is a checkpoint: give the run folder it lies in")
    agent = Agent.load(options.run, device=hardware.device("auto"), modules=options.modules)
    env = agent.config.env
    conditions = Conditions(
        env=env,
        starts=options.starts,
        sticky=_sticky(options, env, agent.config.environment.sticky),
        epsilon=options.epsilon,
        step=agent.step,
        seed=options.seed,
    )
    if options.starts == "human" and not _atari(env):
        raise ConfigError(f"human starts are for Atari games, {env} is none: leave --starts out")
    return assess(
        agent,
        conditions,
        _demos(options, agent),
        episodes=options.episodes,
        lanes=options.lanes,
        tell=_counter(options.episodes),
    )


def _demos(options: EvaluateOptions, agent: Agent) -> list[Held]:
    """The sets that are named, or the run's; without the latter no-op starts do well enough."""
    from lookfurther.demos import catalog

    held = []
    for name in options.demos or agent.config.demos:
        try:
            held.append(catalog.opened(name))
        except DemonstrationError as error:
            if options.demos or options.starts == "human":
                raise
            print(f"no expert's curve: {error}", file=sys.stderr)
            continue
        theirs = held[-1].description.spec.env
        if theirs != agent.spec.env:
            raise DemonstrationError(f"{name} shows {theirs}, the agent plays {agent.spec.env}")
    return held


def _sticky(options: EvaluateOptions, env: str, own: float) -> float:
    """The probability asked for, else the run's own."""
    if options.sticky and not _atari(env):
        raise ConfigError(f"--sticky is for Atari games, {env} is none")
    sticky = own if options.sticky is None else options.sticky
    return sticky if _atari(env) else 0.0


def _atari(env: str) -> bool:
    from lookfurther.envs.factory import find

    return find(env).namespace == "ALE"


def _counter(episodes: int) -> Callable[[Played], None]:
    """Counts episodes as they end: each on a terminal, every tenth part of them elsewhere."""
    ended = 0

    def tell(_: Played) -> None:
        nonlocal ended
        ended += 1
        if sys.stderr.isatty():
            print(f"\r{ended} of {episodes} episodes", end="", file=sys.stderr, flush=True)
            print(end="\n" if ended == episodes else "", file=sys.stderr)
        elif 10 * ended // episodes > 10 * (ended - 1) // episodes:
            print(f"{ended} of {episodes} episodes", file=sys.stderr, flush=True)

    return tell


def summary(evaluation: Evaluation) -> str:
    """The statistics as people read them."""
    facts, conditions = evaluation.summary(), evaluation.conditions
    how = [STARTS[conditions.starts], f"ε {conditions.epsilon:g}"]
    how += [f"sticky {conditions.sticky:g}"] if conditions.sticky else []
    how += [f"step {conditions.step:,}"] if conditions.step else []
    lines = [f"{printable(conditions.env)}: {facts['episodes']} episodes, {', '.join(how)}"]
    for name in ("mean", "median", "iqm"):
        value, low, high = facts[name].values()
        lines.append(f"  {name:20}{value:>12,.1f}   95% {low:,.1f} to {high:,.1f}")
    lines.append(f"  {'best':20}{facts['best']:>12,.1f}")
    for name, unit in (("expert", ""), ("human_normalised", " %"), ("expert_relative", " %")):
        if facts[name] is not None:
            lines.append(f"  {name.replace('_', '-'):20}{facts[name]:>12,.1f}{unit}")
    return "\n".join(lines)


def _write(path: Path, evaluation: Evaluation) -> None:
    """Conditions, statistics and episodes as JSON."""
    from lookfurther.evaluation import results
    from lookfurther.training.run_dir import write_text

    episodes = {"scores": evaluation.scores.tolist(), "lengths": evaluation.steps.tolist()}
    text = json.dumps(results.facts(evaluation) | episodes, indent=2, allow_nan=False)
    write_text(path, text + "\n")
