"""Exports: a small run folder with weights, configuration and a model card."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lookfurther.agent import Agent, read_agent
from lookfurther.config import replace, to_json
from lookfurther.envs.naming import is_atari
from lookfurther.errors import ConfigError, LookFurtherError
from lookfurther.evaluation import results
from lookfurther.evaluation.paper_scores import START_TITLES
from lookfurther.evaluation.results import Evaluation
from lookfurther.networks import count_parameters
from lookfurther.presets import PRESETS
from lookfurther.system.files import atomic_replace, write_text
from lookfurther.system.printable import make_printable
from lookfurther.training import checkpoint, metrics


def export_run(run: Path, out: Path) -> Path:
    """Write the weights of a run with all that says what they are, whole or not at all.

    out/README.md     the card
    out/config.json   every setting
    out/best/         the weights, as a checkpoint that Agent.load takes
    out/evaluation/   what `lookfurther evaluate` found of these weights, where it has looked
    out/versions.json what they were trained with
    """
    agent = read_agent(run)
    agent.config = replace(agent.config, run__folder="")  # a place on another machine
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is not an empty folder: choose another --out")
    played = {
        n: e for n, e in results.read_evaluations(run).items() if e.conditions.step == agent.step
    }
    known = _read_versions(run / "versions.json")
    card = render_card(agent, metrics_at_step(run, agent.step), played, known)
    try:
        with atomic_replace(out) as writing:
            writing.mkdir()
            _write_weights(agent, writing)
            write_text(writing / "config.json", to_json(agent.config))
            write_text(writing / "versions.json", json.dumps(known, indent=2) + "\n")
            write_text(writing / "README.md", card)
            for evaluation in played.values():
                results.write_evaluation(writing, evaluation)
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be written: {error}") from None
    return out


def _write_weights(agent: Agent, folder: Path) -> None:
    facts = {
        "step": agent.step,
        "spec": agent.spec._asdict(),
        "config": dataclasses.asdict(agent.config),
    }
    weights = {"weights": dict(agent.network.state_dict())}
    checkpoint.save(folder / "best", agent.step, weights, facts, keep=1)


def metrics_at_step(run: Path, step: int) -> dict[str, Any]:
    """The metrics of a run when its weights were saved, as far as they are there."""
    path = run / "metrics.jsonl"
    rows = metrics.read_metrics(path) if path.exists() else []
    return max((r for r in rows if r["step"] <= step), key=lambda r: r["step"], default={})


def _read_versions(path: Path) -> dict[str, str | None]:
    """What a run was trained with; of a lone checkpoint it is not known."""
    if not path.exists():
        return {}
    try:
        return {str(k): v and str(v) for k, v in json.loads(path.read_bytes()).items()}
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise LookFurtherError(f"{path} cannot be read: {error}") from None


def render_card(
    agent: Agent,
    metrics_row: dict[str, Any],
    evaluations: dict[str, Evaluation],
    versions: dict[str, str | None],
) -> str:
    """The model card, in Markdown with the header that model hubs read."""
    config, env = agent.config, agent.spec.env
    parts = [
        _yaml_header(env),
        f"# {_escape_markdown(config.preset)} on {_escape_markdown(env)}",
        "An action-value network trained with lookfurther, the system of [Observe and Look Further:"
        " Achieving Consistent Performance on Atari](https://arxiv.org/abs/1805.11593).",
        "## What it is",
        _markdown_table(("", ""), _fact_rows(agent, metrics_row)),
        "## Evaluation",
        _markdown_table(*_score_table(evaluations)) if evaluations else "Not evaluated.",
        "## How to load it",
        "```python\n"
        "from lookfurther import Agent, evaluate\n\n"
        'agent = Agent.load("this/folder")\n'
        "played = evaluate(agent, episodes=20)\n"
        "```",
        "The weights are in `best/`, in safetensors with a SHA-256 of every file; every setting of"
        " the training is in `config.json`.",
        "## Trained with",
        _markdown_table(("", "version"), _version_rows(versions)) if versions else "Not known.",
    ]
    return "\n\n".join(parts) + "\n"


def _yaml_header(env: str) -> str:
    lines = ["library_name: lookfurther", "pipeline_tag: reinforcement-learning", "tags:"]
    tags = ["reinforcement-learning", "ape-x-dqfd", env]
    # A JSON text is a YAML text, whatever it holds.
    return "\n".join(
        ["---", *lines, *(f"- {json.dumps(make_printable(tag))}" for tag in tags), "---"]
    )


def _escape_markdown(value: object) -> str:
    """Text of a file in Markdown, with nothing that Markdown or HTML would take for its own."""
    return re.sub(r"([\\`*_\[\]<>|&~$#!])", r"\\\1", make_printable(value))


def _code_span(value: object) -> str:
    """The same as code in a table."""
    return f"`{make_printable(value).replace('`', chr(39)).replace('|', chr(92) + '|')}`"


def _version_rows(versions: dict[str, str | None]) -> list[tuple[str, str]]:
    return [
        (_escape_markdown(name), _escape_markdown(version))
        for name, version in versions.items()
        if version
    ]


def _fact_rows(agent: Agent, metrics_row: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What the weights are and how they came to be."""
    config, spec = agent.config, agent.spec
    place = PRESETS[config.preset].description if config.preset in PRESETS else "of one's own"
    yield "environment", _code_span(spec.env)
    yield "observations", f"{spec.observation_shape}, {spec.dtype}"
    yield "actions", f"{spec.actions}"
    yield "preset", f"{_code_span(config.preset)} ({place})"
    yield "parameters", f"{count_parameters(agent.network):,}"
    if is_atari(spec.env):
        sticky = config.environment.sticky_prob
        yield "sticky actions in training", f"probability {sticky:g}" if sticky else "no"
    yield (
        "demonstrations",
        ", ".join(_code_span(Path(name).name) for name in config.demos[:20]) or "none",
    )
    updates, minutes = (metrics.get_metric(metrics_row, key) for key in ("updates", "minutes"))
    more = f", {updates:,} updates" if updates is not None else ""
    more += f", {minutes:,.1f} minutes" if minutes is not None else ""
    yield "training length", f"{agent.step:,} agent steps{more}"
    yield "seed", f"{config.run.seed}"


def _score_table(
    evaluations: dict[str, Evaluation],
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """A row for each evaluation, means with their 95 % intervals."""
    head = ("starts", "sticky", "epsilon", "episodes", "mean", "median", "IQM", "best")
    rows = []
    for evaluation in evaluations.values():
        how, found = evaluation.conditions, evaluation.summary()
        means = [_format_estimate(found[name]) for name in ("mean", "median", "iqm")]
        sticky = f"{how.sticky:g}" if how.sticky else "no"
        played = START_TITLES[how.starts], sticky, f"{how.epsilon:g}", f"{found['episodes']}"
        rows.append((*played, *means, f"{found['best']:,.5g}"))
    return head, rows


def _format_estimate(estimate: dict[str, float]) -> str:
    value, low, high = estimate.values()
    return f"{value:,.5g} ({low:,.5g} to {high:,.5g})"


def _markdown_table(head: tuple[str, ...], rows: Any) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
