"""lookfurther analyse RUN [--demos SET ...] [--out DIR]"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Annotated

import tyro

from lookfurther.cli.options.minimums import check_minimums
from lookfurther.cli.options.parsing import check_writable, parse_options
from lookfurther.errors import ConfigError

if TYPE_CHECKING:
    from lookfurther.analysis import Analysis
    from lookfurther.analysis.standstill import EpisodeTrace


@dataclass(frozen=True)
class AnalyseOptions:
    """Show values along a demonstration, where an agent leaves it and where it stands still."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = tyro.MISSING
    """run folder, checkpoint or export"""
    demos: tuple[str, ...] = ()
    """demonstration sets; empty: those of the run"""
    episode: int | None = None
    """number of the demonstrated episode; None: the one with the highest score"""
    out: Path | None = None
    """folder for the page and its files; None: analysis-RUN, with the name of the run"""
    every: int = 0
    """steps of the demonstration between rollouts; 0: 40 rollouts, evenly spaced"""
    steps: int = 200
    """steps of each rollout from the demonstration"""
    episodes: int = 8
    """episodes from the evaluation's starts"""
    max_steps: int = 1_000
    """steps of each of these episodes"""
    still: int = 60
    """steps that an episode must repeat what it showed before to count as standing still"""
    epsilon: float = 0.001
    """probability of a random action in these episodes"""
    seed: int = 1_000_000
    """seed of the starts and of random actions"""
    device: str = "auto"
    """device of the network: auto, cpu, cuda or cuda:N; auto takes a GPU if there is one"""
    modules: tuple[str, ...] = ()
    """modules to import first: they register the environment or define its wrappers"""


def run(args: list[str]) -> int:
    """Write the page and print the main numbers."""
    options = parse_options(AnalyseOptions, AnalyseOptions(), args, "lookfurther analyse")
    _check_analyse_options(options)
    from lookfurther.agent import Agent
    from lookfurther.analysis import AnalysisSettings, analyse_agent, load_demonstration
    from lookfurther.analysis.standstill import EpisodeSettings
    from lookfurther.report.analysis_page import write_analysis
    from lookfurther.training import hardware

    device = hardware.resolve_device(options.device, setting="device")
    agent = Agent.load(options.run, device=device, modules=options.modules)
    demonstration = load_demonstration(agent, options.demos or agent.config.demos, options.episode)
    out = options.out or Path(f"analysis-{options.run.resolve().name}")
    check_writable("--out", out / "index.html")
    episodes = EpisodeSettings(
        options.episodes, options.max_steps, options.still, options.epsilon, options.seed
    )
    settings = AnalysisSettings(options.every, options.steps, episodes)
    log = partial(print, file=sys.stderr, flush=True)
    analysis = analyse_agent(agent, demonstration, settings, log)
    print(format_analysis_summary(analysis))
    print(f"analysis: {write_analysis(analysis, out)}")
    return 0


def _check_analyse_options(options: AnalyseOptions) -> None:
    """Raise a ConfigError for the first invalid option."""
    check_minimums(options, every=0, steps=1, episodes=0, max_steps=1, still=2)
    if not 0 <= options.epsilon <= 1:
        raise ConfigError(f"--epsilon must be 0 ... 1, not {options.epsilon:g}")
    if not 0 <= options.seed < 2**31:
        raise ConfigError(f"--seed must be 0 ... 2^31 - 1, not {options.seed}")


def format_analysis_summary(analysis: Analysis) -> str:
    """Format the main numbers for the terminal."""
    from lookfurther.analysis.reward_order import describe_orders

    values, rollouts = analysis.values, analysis.rollouts
    leaving = sum(rollout.divergence is not None for rollout in rollouts)
    still = sum(bool(trace.standstills) for trace in analysis.traces)
    orders = [trace.reward_order for trace in analysis.traces]
    return "\n".join(
        [
            f"demonstrated action: at {values.agreement:.1%} of the steps",
            f"values below the return by {values.shortfall:.2f} in h space,"
            f" median one-step error {values.noise:.2f}",
            f"{leaving} of {len(rollouts)} rollouts leave the demonstration",
            f"{still} of {len(analysis.traces)} episodes stand still",
            *_format_life_losses(analysis.traces),
            *([describe_orders(orders)] if orders else []),
        ]
    )


def _format_life_losses(traces: Sequence[EpisodeTrace]) -> list[str]:
    """One line about the first lost life of each episode; none if no life is lost."""
    first = [trace.life_losses[0] for trace in traces if trace.life_losses]
    if not first:
        return []
    line = f"{len(first)} of {len(traces)} episodes lose a life: value"
    line += f" {mean([loss.value_before for loss in first]):.2f} before"
    after = [loss.value_after for loss in first if loss.value_after is not None]
    return [line + (f", {mean(after):.2f} after" if after else "") + " (mean of the first)"]
