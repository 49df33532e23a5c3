"""Render the tables of docs/results.md from benchmarks/results/*.json.

python -m benchmarks.results_page
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import REPOSITORY_ROOT
from lookfurther.evaluation.paper_scores import game_titles, printed_scores
from lookfurther.training.run_dir import write_text

RESULTS = Path(__file__).with_name("results")
PAGE = REPOSITORY_ROOT / "docs" / "results.md"
STARTS = {"noop": "no-op", "human": "human"}
TABLE = re.compile(r"(?<=<!-- table: )(\w+)( -->\n).*?(?=<!-- end -->)", re.DOTALL)


def load_result(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main_job() -> str:
    result = load_result("main_job")
    rows = [
        [
            str(demos["seed"]),
            *(f"{demos['return']:.3f}", f"{demos['success']:.1%}"),
            *(f"{none['return']:.3f}", f"{none['success']:.1%}"),
            f"{demos['updates']:,}",
        ]
        for demos, none in zip(result["demos"], result["no_demos"], strict=True)
    ]
    rows.append(["expert", f"{result['demos'][0]['expert']:.3f}", "100.0%", "", "", ""])
    header = ["seed", "return, 8 demonstrations", "success", "return, none", "success", "updates"]
    return markdown_table(header, rows)


def atari() -> str:
    rows = []
    for row in load_result("atari")["rows"]:
        starts = row.get("starts", "noop")
        paper = printed_scores(starts)[row["game"]]
        rows.append(
            [
                game_titles()[row["game"]],
                row["settings"],
                f"{row['minutes']:.0f}",
                f"{row['updates'] / 1e6:.1f}",
                f"{row['frames'] / 1e6:.0f}",
                f"{row['episodes']} {STARTS[starts]}, {row['epsilon']:g}",
                f"**{row['mean']:,}** ({row['low']:,} to {row['high']:,})",
                f"{row['median']:,}",
                f"{row['best']:,}",
                _score(paper.get("random")),
                f"{row['demonstration']:,}",
                *(_score(paper.get(name)) for name in ("apex_dqfd_deeper", "dqfd")),
            ]
        )
    header = [
        "game",
        "settings",
        "minutes",
        "million updates",
        "million frames",
        "episodes, starts, ε",
        "mean (95 %)",
        "median",
        "best",
        "random",
        "demonstration",
    ]
    return markdown_table([*header, "paper, deeper", "DQfD"], rows)


def _score(score: float | None) -> str:
    if score is None:
        return ""
    return f"{score:,.0f}" if abs(score) >= 100 else f"{score:.1f}".removesuffix(".0")


def throughput() -> str:
    gpu, cores = load_result("bench_one_gpu"), load_result("bench_two_cores")
    measurements = {
        "environments alone, steps/s": ("environments", "steps"),
        "actor, steps/s": ("actor", "steps"),
        "learner, updates/s": ("learner", "updates"),
        "both at once, steps/s": ("together", "steps"),
        "both at once, updates/s": ("together", "updates"),
        "first update, seconds": ("first_update", "seconds"),
    }
    rows = [
        [name, *(_number(result[part][key]) for result in (gpu, cores))]
        for name, (part, key) in measurements.items()
    ]
    return markdown_table(["", "one H200, 16 cores", "two ARM cores"], rows)


def peers() -> str:
    rows = []
    for name, place in (("one_gpu", "one H200"), ("end_to_end", "two ARM cores")):
        candidates = load_result(name)["contestants"]
        ours = candidates["lookfurther"]["steps_per_second"]
        for candidate, figures in candidates.items():
            rates = [figures["steps_per_second"], figures["updates_per_second"]]
            ratio = f"{ours / rates[0]:.2g}"
            rows.append([place, candidate, *map(_number, rates), ratio])
    return markdown_table(["machine", "", "steps/s", "updates/s", "ours / theirs"], rows)


def replay() -> str:
    candidates = load_result("replay")["contestants"]
    ours = candidates["lookfurther"]["seconds_per_batch"]
    keys = ("adds_per_second", "samples_per_second", "updates_per_second")
    rows = [
        [
            name,
            *(f"{figures[key]:,}" for key in keys),
            f"{1000 * figures['seconds_per_batch']:.2f}",
            f"{figures['seconds_per_batch'] / ours:.2f}",
            f"{figures['bytes_per_step']:,}",
        ]
        for name, figures in candidates.items()
    ]
    header = ["", "adds/s", "samples/s", "priority updates/s", "ms/batch", "theirs / ours"]
    return markdown_table([*header, "bytes/step"], rows)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:g}"


TABLES: dict[str, Callable[[], str]] = {
    function.__name__: function for function in (main_job, atari, throughput, peers, replay)
}


def render(page: str) -> str:
    """The page with the content of every table replaced."""
    return TABLE.sub(lambda match: f"{match[1]}{match[2]}{TABLES[match[1]]()}", page)


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    write_text(PAGE, render(PAGE.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
