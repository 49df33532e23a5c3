"""Export a run: a small folder with weights, configuration and a model card."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lookfurther.agent import Agent, read_agent
from lookfurther.config import replace
from lookfurther.envs.naming import is_atari
from lookfurther.errors import ConfigError
from lookfurther.evaluation import results
from lookfurther.evaluation.paper_scores import START_TITLES
from lookfurther.evaluation.results import Evaluation
from lookfurther.networks.dueling import count_parameters
from lookfurther.presets import PRESETS, TUNED
from lookfurther.report.markdown import code_span, escape_markdown, markdown_table
from lookfurther.system.files import atomic_replace, write_text
from lookfurther.system.printable import make_printable
from lookfurther.training.checkpoints import checkpoint
from lookfurther.training.config_json import to_json
from lookfurther.training.monitoring import metrics
from lookfurther.training.run_dir import read_versions


def export_run(run: Path, out: Path, half: bool = False) -> Path:
    """Write the weights of a run with their description, completely or not at all.

    `half` stores the weights in float16, in half of the space.

    out/README.md     the model card
    out/config.json   all settings
    out/best/         the weights, as a checkpoint for Agent.load
    out/evaluation/   the evaluations of these weights, if there are any
    out/versions.json the versions of the libraries they were trained with
    """
    agent = read_agent(run)
    weights = dict(agent.network.state_dict())
    if half:
        weights = {name: round_to_half(name, tensor) for name, tensor in weights.items()}
    agent.config = replace(agent.config, run__folder="")  # a path on this machine
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is not an empty folder: choose another --out")
    evaluations = {
        name: evaluation
        for name, evaluation in results.read_evaluations(run).items()
        if evaluation.conditions.step == agent.step
    }
    versions = read_versions(run / "versions.json")
    is_rounded = half or all(map(is_exact_in_half, weights.values()))
    card = render_card(agent, metrics_at_step(run, agent.step), evaluations, versions, is_rounded)
    try:
        with atomic_replace(out) as folder:
            folder.mkdir()
            _write_weights(agent, weights, folder)
            write_text(folder / "config.json", to_json(agent.config))
            write_text(folder / "versions.json", json.dumps(versions, indent=2) + "\n")
            write_text(folder / "README.md", card)
            for evaluation in evaluations.values():
                results.write_evaluation(folder, evaluation)
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be written: {error}") from None
    return out


def round_to_half(name: str, tensor: Tensor) -> Tensor:
    """A tensor of weights in float16; raises if a weight is outside its range."""
    if tensor.dtype != torch.float32:  # a counter of a user's network, or PopArt's moments
        return tensor
    if not tensor.half().isfinite().all():
        raise ConfigError(f"{name} has a weight that float16 cannot hold: export without --half")
    return tensor.half()


def is_exact_in_half(tensor: Tensor) -> bool:
    """Whether float16 holds every weight, as after an export with `half`."""
    return tensor.dtype != torch.float32 or torch.equal(tensor.half().float(), tensor)


def _write_weights(agent: Agent, weights: dict[str, Tensor], folder: Path) -> None:
    facts = {
        "step": agent.step,
        "spec": agent.spec._asdict(),
        "config": dataclasses.asdict(agent.config),
    }
    checkpoint.save(folder / "best", agent.step, {"weights": weights}, facts, keep=1)


def metrics_at_step(run: Path, step: int) -> dict[str, Any]:
    """The last metrics up to this step; empty if there are none."""
    path = run / "metrics.jsonl"
    rows = metrics.read_metrics(path) if path.exists() else []
    return max((r for r in rows if r["step"] <= step), key=lambda r: r["step"], default={})


def render_card(
    agent: Agent,
    metrics_row: dict[str, Any],
    evaluations: dict[str, Evaluation],
    versions: dict[str, str],
    is_rounded: bool,
) -> str:
    """Render the model card: Markdown with the YAML header of model hubs."""
    config, env = agent.config, agent.spec.env
    parts = [
        _yaml_header(env),
        f"# {escape_markdown(config.preset)} on {escape_markdown(env)}",
        "An action-value network trained with lookfurther, the system of [Observe and Look Further:"
        " Achieving Consistent Performance on Atari](https://arxiv.org/abs/1805.11593).",
        "## What it is",
        markdown_table(("", ""), _fact_rows(agent, metrics_row, is_rounded)),
        "## Evaluation",
        markdown_table(*make_score_table(evaluations)) if evaluations else "Not evaluated.",
        "## How to load it",
        "```python\n"
        "from lookfurther import Agent, evaluate\n\n"
        'agent = Agent.load("this/folder")\n'
        "played = evaluate(agent, episodes=20)\n"
        "```",
        "The weights are in `best/`, in safetensors with a SHA-256 of every file; every setting of"
        " the training is in `config.json`.",
        "## Trained with",
        markdown_table(("", "version"), _version_rows(versions)) if versions else "Not known.",
    ]
    return "\n\n".join(parts) + "\n"


def _yaml_header(env: str) -> str:
    lines = ["library_name: lookfurther", "pipeline_tag: reinforcement-learning", "tags:"]
    tags = ["reinforcement-learning", "ape-x-dqfd", env]
    # A JSON string is also a YAML string.
    return "\n".join(
        ["---", *lines, *(f"- {json.dumps(make_printable(tag))}" for tag in tags), "---"]
    )


def _version_rows(versions: dict[str, str]) -> list[tuple[str, str]]:
    return [(escape_markdown(name), escape_markdown(v)) for name, v in versions.items()]


def _fact_rows(
    agent: Agent, metrics_row: dict[str, Any], is_rounded: bool
) -> Iterator[tuple[str, str]]:
    """Names and values that describe the agent and its training."""
    config, spec = agent.config, agent.spec
    names = {name: preset.description for name, preset in PRESETS.items()}
    description = (names | {TUNED: "the tuned settings of the environment"}).get(
        config.preset, "custom"
    )
    yield "environment", code_span(spec.env)
    yield "observations", f"{spec.observation_shape}, {spec.dtype}"
    yield "actions", f"{spec.actions}"
    yield "preset", f"{code_span(config.preset)} ({description})"
    yield "parameters", f"{count_parameters(agent.network):,}"
    if is_rounded:
        yield "weights", "rounded to float16; earlier evaluations used those before rounding"
    if is_atari(spec.env):
        sticky = config.environment.sticky_prob
        yield "sticky actions in training", f"probability {sticky:g}" if sticky else "no"
    yield (
        "demonstrations",
        ", ".join(code_span(Path(name).name) for name in config.demos[:20]) or "none",
    )
    updates, minutes = (metrics.get_metric(metrics_row, key) for key in ("updates", "minutes"))
    length = f"{agent.step:,} agent steps"
    length += f", {updates:,} updates" if updates is not None else ""
    length += f", {minutes:,.1f} minutes" if minutes is not None else ""
    yield "training length", length
    yield "seed", f"{config.run.seed}"


def make_score_table(
    evaluations: dict[str, Evaluation],
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The header and a row for each evaluation, statistics with their 95 % intervals."""
    header = ("epsilon", "episodes", "mean", "median", "IQM", "best")
    has_starts = any(is_atari(e.conditions.env) for e in evaluations.values())
    rows = []
    for evaluation in evaluations.values():
        conditions, summary = evaluation.conditions, evaluation.summary()
        sticky = f"{conditions.sticky:g}" if conditions.sticky else "no"
        rows.append(
            (
                *((START_TITLES[conditions.starts], sticky) if has_starts else ()),
                f"{conditions.epsilon:g}",
                f"{summary['episodes']}",
                *(_format_estimate(summary[name]) for name in ("mean", "median", "iqm")),
                f"{summary['best']:,.5g}",
            )
        )
    return (*(("starts", "sticky") if has_starts else ()), *header), rows


def _format_estimate(estimate: dict[str, float]) -> str:
    value, low, high = estimate.values()
    return f"{value:,.5g} ({low:,.5g} to {high:,.5g})"
