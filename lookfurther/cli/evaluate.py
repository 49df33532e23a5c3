"""lookfurther evaluate RUN [--starts noop|human] [options]"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from lookfurther.cli.options.parsing import check_writable, parse_options
from lookfurther.config import EnvConfig
from lookfurther.envs.naming import is_atari
from lookfurther.errors import ConfigError, DemonstrationError
from lookfurther.evaluation.paper_scores import START_TITLES, StartType
from lookfurther.system.formatting import format_score, pluralize
from lookfurther.system.printable import make_printable

if TYPE_CHECKING:
    from lookfurther.agent import Agent
    from lookfurther.demos.catalog import DemoSet
    from lookfurther.evaluation.results import Evaluation
    from lookfurther.rollout import EpisodeResult

RANDOM_PLAY = "random"


@dataclass(frozen=True)
class EvaluateOptions:
    """Play whole episodes with the best weights of a run and store the scores in its folder."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = tyro.MISSING
    """run folder, or the word random for random play of --env"""
    env: str = ""
    """environment id of random play"""
    episodes: int = 200
    """episodes to play"""
    epsilon: float = 0.001
    """probability of a random action"""
    starts: StartType = "noop"
    """noop: up to 30 no-op frames; human: states from demonstrations, Atari only"""
    demos: tuple[str, ...] = ()
    """demonstration sets for human starts and the expert's curve; empty: those of the run"""
    sticky: float | None = None
    """probability that the emulator repeats the last action; None: as in training"""
    device: str = "auto"
    """device of the network: auto, cpu, cuda or cuda:N; auto takes a GPU if there is one"""
    lanes: int | None = None
    """environments played in parallel; None: 20, on a GPU one for each episode, at most 256"""
    seed: int = 1_000_000
    """seed of starts and random actions; the same seed gives the same scores"""
    json: Path | None = None
    """also write conditions, statistics and every score to this file"""
    modules: tuple[str, ...] = ()
    """modules to import first: they register the environment or define its wrappers"""


def run(args: list[str]) -> int:
    """Evaluate, and print the statistics and the folder."""
    options = parse_options(EvaluateOptions, EvaluateOptions(), args, "lookfurther evaluate")
    _check_evaluate_options(options)
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


def _check_evaluate_options(options: EvaluateOptions) -> None:
    """Raise a ConfigError for the first invalid option."""
    for is_valid, message in (
        (options.episodes > 0, f"--episodes must be at least 1, not {options.episodes}"),
        (
            options.lanes is None or options.lanes > 0,
            f"--lanes must be at least 1, not {options.lanes}",
        ),
        (0 <= options.epsilon <= 1, f"--epsilon must be 0 ... 1, not {options.epsilon:g}"),
        (
            0 <= (options.sticky or 0) < 1,
            f"--sticky must be 0 or more and below 1, not {options.sticky}",
        ),
        (0 <= options.seed < 2**31, f"--seed must be 0 ... 2^31 - 1, not {options.seed}"),
        (
            (options.run == RANDOM_PLAY) == bool(options.env),
            "--env ENV is only for random play: lookfurther evaluate random --env ENV",
        ),
        (
            options.run != RANDOM_PLAY or (options.starts == "noop" and not options.demos),
            "random play uses no-op starts: remove --starts and --demos",
        ),
    ):
        if not is_valid:
            raise ConfigError(message)


def _evaluate_random(options: EvaluateOptions) -> Evaluation:
    """Evaluate random play with the paper's environment settings."""
    from lookfurther.evaluation.evaluate import evaluate_random, evaluation_env_config

    env_config = evaluation_env_config(EnvConfig(), _sticky_prob(options, options.env, 0.0))
    return evaluate_random(
        options.env,
        env_config,
        episodes=options.episodes,
        lanes=options.lanes,
        seed=options.seed,
        on_episode=_episode_counter(options.episodes),
    )


def _evaluate_agent(options: EvaluateOptions) -> Evaluation:
    """Evaluate the agent of a run."""
    from lookfurther.agent import Agent
    from lookfurther.evaluation.evaluate import run_evaluation
    from lookfurther.evaluation.results import EvaluationConditions
    from lookfurther.training import hardware
    from lookfurther.training.checkpoints import checkpoint

    if (Path(options.run) / checkpoint.MANIFEST_FILE).exists():
        raise ConfigError(f"{options.run} is a checkpoint: give the run folder that contains it")
    device = hardware.resolve_device(options.device, setting="device")
    agent = Agent.load(options.run, device=device, modules=options.modules)
    env = agent.config.env
    conditions = EvaluationConditions(
        env=env,
        starts=options.starts,
        sticky=_sticky_prob(options, env, agent.config.environment.sticky_prob),
        epsilon=options.epsilon,
        step=agent.step,
        seed=options.seed,
    )
    if options.starts == "human" and not is_atari(env):
        raise ConfigError(f"--starts human needs an Atari game; {env} is not one")
    return run_evaluation(
        agent,
        conditions,
        _open_demos(options, agent),
        episodes=options.episodes,
        lanes=options.lanes,
        on_episode=_episode_counter(options.episodes),
    )


def _open_demos(options: EvaluateOptions, agent: Agent) -> list[DemoSet]:
    """Open the sets of --demos, or those of the run; no-op starts do not need the latter."""
    from lookfurther.demos import catalog

    demo_sets = []
    for name in options.demos or agent.config.demos:
        try:
            demo_sets.append(catalog.open_set(name))
        except DemonstrationError as error:
            if options.demos or options.starts == "human":
                raise
            print(f"no expert curve: {error}", file=sys.stderr)
            continue
        demo_env = demo_sets[-1].description.spec.env
        if demo_env != agent.spec.env:
            raise DemonstrationError(
                f"{name} contains {demo_env}, but the agent plays {agent.spec.env}"
            )
    return demo_sets


def _sticky_prob(options: EvaluateOptions, env: str, run_value: float) -> float:
    """Return the probability from --sticky, or that of the run."""
    if options.sticky and not is_atari(env):
        raise ConfigError(f"--sticky needs an Atari game; {env} is not one")
    sticky = run_value if options.sticky is None else options.sticky
    return sticky if is_atari(env) else 0.0


def _episode_counter(episodes: int) -> Callable[[EpisodeResult], None]:
    """Return a callback that prints progress: each episode on a terminal, otherwise every 10 %."""
    finished = 0

    def on_episode(_: EpisodeResult) -> None:
        nonlocal finished
        finished += 1
        if sys.stderr.isatty():
            print(
                f"\r{finished} of {pluralize(episodes, 'episode')}",
                end="",
                file=sys.stderr,
                flush=True,
            )
            print(end="\n" if finished == episodes else "", file=sys.stderr)
        elif 10 * finished // episodes > 10 * (finished - 1) // episodes:
            print(f"{finished} of {pluralize(episodes, 'episode')}", file=sys.stderr, flush=True)

    return on_episode


def format_evaluation_summary(evaluation: Evaluation) -> str:
    """Format the statistics for the terminal."""
    summary, conditions = evaluation.summary(), evaluation.conditions
    details = [START_TITLES[conditions.starts]] if is_atari(conditions.env) else []
    details += [f"ε {conditions.epsilon:g}"]
    details += [f"sticky {conditions.sticky:g}"] if conditions.sticky else []
    details += [f"step {conditions.step:,}"] if conditions.step else []
    lines = [
        f"{make_printable(conditions.env)}: {pluralize(summary['episodes'], 'episode')},"
        f" {', '.join(details)}"
    ]
    for name in ("mean", "median", "iqm"):
        value, low, high = summary[name].values()
        interval = f"{format_score(low)} to {format_score(high)}"
        lines.append(f"  {name:20}{format_score(value):>12}   95% {interval}")
    lines.append(f"  {'best':20}{format_score(summary['best']):>12}")
    for name, unit in (("expert", ""), ("human_normalised", " %"), ("expert_relative", " %")):
        if summary[name] is not None:
            lines.append(f"  {name.replace('_', '-'):20}{format_score(summary[name]):>12}{unit}")
    return "\n".join(lines)


def _write_json(path: Path, evaluation: Evaluation) -> None:
    """Write conditions, statistics and episodes as JSON."""
    from lookfurther.evaluation import results
    from lookfurther.system.files import write_text

    episodes = {"scores": evaluation.scores.tolist(), "lengths": evaluation.steps.tolist()}
    text = json.dumps(results.evaluation_to_dict(evaluation) | episodes, indent=2, allow_nan=False)
    write_text(path, text + "\n")
