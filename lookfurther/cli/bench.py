"""lookfurther bench [PRESET] [--scale SCALE] [--seconds S] [--json FILE] [settings]"""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from lookfurther.cli.parsing import check_writable, parse_options
from lookfurther.cli.train import split_preset
from lookfurther.config import Config, replace
from lookfurther.presets import preset
from lookfurther.system.files import write_text
from lookfurther.validation import validate

BENCH_ENV = "ALE/MontezumaRevenge-v5"


@dataclass(frozen=True)
class BenchOptions:
    """Measure this machine: environments, actor, learner, replay, and all of them together."""

    config: Annotated[Config, tyro.conf.arg(name="")]
    seconds: float = 3.0
    """length of each measurement"""
    json: Path | None = None
    """also write the figures to this file"""


def parse_bench_options(args: list[str]) -> BenchOptions:
    """What the words of a command line ask for."""
    named = args and not args[0].startswith("-")
    name, scale, rest = split_preset(args if named else add_default_preset(args))
    base = replace(preset(name, scale), env=BENCH_ENV)
    return parse_options(BenchOptions, BenchOptions(base), rest, f"lookfurther bench {name}")


def run(args: list[str]) -> int:
    """Measure, print a table, and say what limits."""
    options = parse_bench_options(args)
    noise = ("noise",) if options.config.learner.expert_items else ()
    config = validate(replace(options.config, demos=noise))
    if options.json:
        check_writable("--json", options.json)
    figures = measure_all(config, options.seconds)
    print(format_bench_table(figures))
    if options.json:
        write_text(options.json, json.dumps(figures | {"config": asdict(config)}, indent=2) + "\n")
    return 0


def add_default_preset(args: list[str]) -> list[str]:
    """These words with a preset for this machine, and its scale if they have none."""
    import torch

    if torch.cuda.is_available():
        return ["apex-dqfd-deeper", *args]
    scaled = any(word.partition("=")[0] == "--scale" for word in args)
    return ["apex-dqfd", *([] if scaled else ["--scale", "small"]), *args]


def measure_all(config: Config, seconds: float) -> dict[str, Any]:
    """Every figure, by the name of its measurement."""
    from lookfurther.training.throughput import ThroughputBenchmark

    bench = ThroughputBenchmark(config, seconds)
    figures: dict[str, Any] = {"device": str(bench.device), "precision": str(bench.precision)}
    print(
        f"{config.preset}, {config.env}: {config.actor.lanes} lanes, a full replay of"
        f" {config.replay.capacity:,} steps, {str(bench.precision).partition('.')[2]} on"
        f" {bench.device}; {seconds:g} s each",
        flush=True,
    )

    def note(name: str, *given: float) -> None:
        figures[name] = getattr(bench, name)(*given)
        print(
            f"{name}: " + ", ".join(f"{k} {v:,.2f}" for k, v in figures[name].items()), flush=True
        )

    with closing(bench):
        for name in ("environments", "actor", "learner", "replay"):
            note(name)
        note("together", figures["actor"]["steps"], figures["learner"]["updates"])
    note("first_update")  # in a process of its own, which needs the memory
    note("memory")
    return figures


def format_bench_table(figures: dict[str, Any]) -> str:
    """The figures as people read them, with ratios and what limits."""
    bare, acting = figures["environments"]["steps"], figures["actor"]["steps"]
    alone, both = figures["learner"]["updates"], figures["together"]
    rows = [
        ("environments alone", f"{bare:,.0f} steps/s", ""),
        ("actor", f"{acting:,.0f} steps/s", f"{acting / bare:.0%} of the environments alone"),
        ("learner", f"{alone:,.1f} updates/s", ""),
        (
            "together, acting",
            f"{both['steps']:,.0f} steps/s",
            f"{both['steps'] / acting:.0%} of alone",
        ),
        (
            "together, learning",
            f"{both['updates']:,.1f} updates/s",
            f"{both['updates'] / alone:.0%} of alone",
        ),
        (
            "replay",
            f"{figures['replay']['items']:,.0f} items/s",
            "sampled and given new priorities",
        ),
        ("memory of a step", f"{figures['replay']['bytes_per_step']:,.0f} bytes", ""),
        (
            "first update",
            f"{figures['first_update']['seconds']:.1f} s",
            "from the start, cold caches",
        ),
        *(("most memory", f"{size:.1f} GiB", where) for where, size in figures["memory"].items()),
    ]
    waits = both["wait_environments"], both["wait_learner"]
    limit = "the environments" if waits[0] > waits[1] else "the learner"
    lines = [f"{name:20}{value:>20}  {note}".rstrip() for name, value, note in rows]
    said = f"{waits[0]:.0%} of the time waits for environments, {waits[1]:.0%} for the learner"
    return "\n".join([*lines, f"what limits: {limit} ({said})"])
