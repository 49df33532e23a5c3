"""lookfurther bench [PRESET] [--scale SCALE] [--seconds S] [--json FILE] [settings]"""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from lookfurther.cli.options.parsing import check_writable
from lookfurther.cli.options.preset_options import (
    PresetOptions,
    asks_for_help,
    find_defaults,
    parse_preset_options,
    split_preset,
)
from lookfurther.cli.tables import format_table
from lookfurther.config import Config, replace
from lookfurther.errors import ConfigError
from lookfurther.system.files import write_text
from lookfurther.validation import validate

BENCH_ENV = "ALE/MontezumaRevenge-v5"
MAX_SECONDS = 3600.0  # of each measurement


@dataclass(frozen=True)
class BenchOptions(PresetOptions):
    """Measure environments, actor, learner, replay and all of them together on this machine."""

    variant: Annotated[
        str,
        tyro.conf.Positional,
        tyro.conf.arg(metavar="PRESET", help_behavior_hint="(default: chosen for this machine)"),
    ] = "apex-dqfd"
    """variant of the algorithm; lookfurther presets lists them"""
    seconds: float = 3.0
    """length of each measurement"""
    json: Path | None = None
    """also write the results to this file"""


def parse_bench_options(args: list[str]) -> BenchOptions:
    """Parse the arguments; without a preset, choose one for this machine."""
    has_preset = args and not args[0].startswith("-")
    if not has_preset and not asks_for_help(args):
        args = add_default_preset(args)
    name, scale, rest = split_preset(args)
    defaults = BenchOptions(name, scale, replace(find_defaults(name, scale, rest), env=BENCH_ENV))
    options = parse_preset_options(defaults, rest, "lookfurther bench")
    if not 0 < options.seconds <= MAX_SECONDS:
        raise ConfigError(f"--seconds must be above 0 and at most 3,600, not {options.seconds:g}")
    return options


def run(args: list[str]) -> int:
    """Measure, and print a table and the bottleneck."""
    options = parse_bench_options(args)
    demos = ("noise",) if options.config.uses_demos else ()
    config = validate(replace(options.config, demos=demos))
    if options.json:
        check_writable("--json", options.json)
    figures = measure_all(config, options.seconds)
    print(format_bench_table(figures))
    if options.json:
        write_text(options.json, json.dumps(figures | {"config": asdict(config)}, indent=2) + "\n")
    return 0


def add_default_preset(args: list[str]) -> list[str]:
    """Add a preset for this machine, and a scale if the arguments have none."""
    import torch

    if torch.cuda.is_available():
        return ["apex-dqfd-deeper", *args]
    has_scale = any(arg.partition("=")[0] == "--scale" for arg in args)
    return ["apex-dqfd", *([] if has_scale else ["--scale", "small"]), *args]


def measure_all(config: Config, seconds: float) -> dict[str, Any]:
    """Return all results by the name of the measurement."""
    from lookfurther.training.throughput import ThroughputBenchmark

    bench = ThroughputBenchmark(config, seconds)
    figures: dict[str, Any] = {"device": str(bench.device), "precision": str(bench.precision)}
    print(
        f"{config.preset}, {config.env}: {config.actor.lanes} lanes, a full replay of"
        f" {config.replay.capacity:,} steps, {str(bench.precision).partition('.')[2]} on"
        f" {bench.device}; {seconds:g} s each",
        flush=True,
    )

    def measure(name: str, *args: float) -> None:
        figures[name] = getattr(bench, name)(*args)
        values = ", ".join(f"{k} {v:,.2f}" for k, v in figures[name].items())
        print(f"{name}: {values}", flush=True)

    with closing(bench):
        for name in ("environments", "actor", "learner", "replay"):
            measure(name)
        measure("together", figures["actor"]["steps"], figures["learner"]["updates"])
    measure("first_update")  # in a subprocess, which needs the memory
    measure("memory")
    return figures


def format_bench_table(figures: dict[str, Any]) -> str:
    """Format the results as a table with ratios and the bottleneck."""
    env_steps, actor_steps = figures["environments"]["steps"], figures["actor"]["steps"]
    updates, both, replay = figures["learner"]["updates"], figures["together"], figures["replay"]
    actor_share = f"{actor_steps / env_steps:.0%} of the environments alone"
    acting, learning = both["steps"] / actor_steps, both["updates"] / updates
    first_update = f"{figures['first_update']['seconds']:.1f} s"
    rows = [
        ("environments alone", f"{env_steps:,.0f} steps/s", ""),
        ("actor", f"{actor_steps:,.0f} steps/s", actor_share),
        ("learner", f"{updates:,.1f} updates/s", ""),
        ("together, acting", f"{both['steps']:,.0f} steps/s", f"{acting:.0%} of alone"),
        ("together, learning", f"{both['updates']:,.1f} updates/s", f"{learning:.0%} of alone"),
        ("replay", f"{replay['items']:,.0f} items/s", "sampled and reprioritized"),
        ("memory per step", f"{replay['bytes_per_step']:,.0f} bytes", ""),
        ("first update", first_update, "after the start, cold caches"),
        *(("peak memory", f"{size:.1f} GiB", where) for where, size in figures["memory"].items()),
    ]
    wait_envs, wait_learner = both["wait_environments"], both["wait_learner"]
    bottleneck = "the environments" if wait_envs > wait_learner else "the learner"
    waits = f"{wait_envs:.0%} of the time waiting for environments"
    return (
        f"{format_table((), rows, '<><')}\n"
        f"bottleneck: {bottleneck} ({waits}, {wait_learner:.0%} for the learner)"
    )
