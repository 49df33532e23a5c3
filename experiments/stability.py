"""Learned values and true returns on a long chain, by discount factor, with and without TC.

    python -m experiments.stability [--out DIR] [--parallel N] [--json FILE]

Trains the runs of stability.toml once for each discount factor; runs that are done are skipped.
The chain is deterministic, so the true return of a greedy policy is known at every position.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from experiments.tasks import LongChain
from lookfurther import Agent
from lookfurther.evaluation import suite, suite_runs
from lookfurther.networks.dueling import network_value_transform
from lookfurther.system.files import write_text

DISCOUNTS = (0.99, 0.997, 0.999, 0.9997, 0.9999)
SUITE_FILE = Path(__file__).with_name("stability.toml")
RESULTS_FILE = Path(__file__).with_name("results") / "stability.json"
MODULE = "experiments.tasks"
STORED_POSITIONS = np.arange(0, LongChain.length, 20)


class ChainValues(NamedTuple):
    """Values at every position of the chain [length]."""

    learned: np.ndarray
    policy_return: np.ndarray  # discounted, of the greedy policy
    best_return: np.ndarray  # discounted, of the best policy


def discounted_chain_returns(rewards: np.ndarray, gamma: float) -> np.ndarray:
    """The discounted return from each position to the end."""
    returns = np.zeros(len(rewards) + 1)
    for i in reversed(range(len(rewards))):
        returns[i] = rewards[i] + gamma * returns[i + 1]
    return returns[:-1]


def evaluate_chain(agent: Agent) -> ChainValues:
    """The values of an agent and the returns of its greedy policy."""
    q = agent.q_values(LongChain.observe(np.arange(LongChain.length)))
    _, h_inv = network_value_transform(agent.network, agent.config.learner)
    learned = h_inv(torch.from_numpy(q.max(-1)).double()).numpy()
    paying = np.array([LongChain.paying_action(i) for i in range(LongChain.length)])
    gamma = agent.config.learner.gamma
    rewards = (q.argmax(-1) == paying).astype(float)
    return ChainValues(
        learned,
        discounted_chain_returns(rewards, gamma),
        discounted_chain_returns(np.ones(LongChain.length), gamma),
    )


def summarize_chain(values: ChainValues) -> dict[str, Any]:
    """The numbers of one run: errors relative to the mean true return, and some of the curve."""
    error = values.learned - values.policy_return
    scale = values.policy_return.mean()
    return {
        "error": float(np.abs(error).mean() / scale),
        "bias": float(error.mean() / scale),
        "share_of_best": float(values.policy_return[0] / values.best_return[0]),
        "learned": np.round(values.learned[STORED_POSITIONS], 2).tolist(),
        "policy_return": np.round(values.policy_return[STORED_POSITIONS], 2).tolist(),
    }


def build_stability_jobs(out: Path, data: dict[str, Any]) -> dict[float, list[suite.SuiteJob]]:
    """The jobs of the suite for each discount factor."""
    jobs = {}
    for gamma in DISCOUNTS:
        settings = data["settings"] | {"learner": data["settings"]["learner"] | {"gamma": gamma}}
        folder = out / f"gamma_{gamma}"
        jobs[gamma] = suite.build_jobs(data | {"settings": settings}, folder, [MODULE])
    return jobs


def collect_results(jobs: dict[float, list[suite.SuiteJob]]) -> list[dict[str, Any]]:
    """One row for each run that is done or failed, for example by divergence."""
    rows = []
    for gamma, members in jobs.items():
        for job in members:
            row = {"gamma": gamma, "preset": job.config.preset, "seed": job.config.run.seed}
            if job.state == "done":
                agent = Agent.load(job.folder, modules=[MODULE])
                rows.append(row | summarize_chain(evaluate_chain(agent)))
            elif job.state == "failed":
                rows.append(row | {"failure": job.failure.partition(" (")[0]})
    return rows


def print_state(job: suite.SuiteJob) -> None:
    if job.state != "running":
        print(f"{job.state}: {job.folder}", flush=True)


def run_study(out: Path, parallel: int, data: dict[str, Any]) -> list[dict[str, Any]]:
    """Train what is missing and return the rows of all runs."""
    jobs = build_stability_jobs(out, data)
    every_job: Sequence[suite.SuiteJob] = [job for members in jobs.values() for job in members]
    suite_runs.run_jobs(every_job, print_state, parallel)
    return collect_results(jobs)


def write_results(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write the rows as JSON with one line per run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(f" {json.dumps(row)}" for row in rows)
    write_text(path, f'{{"rows": [\n{lines}\n]}}\n')


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/stability"))
    parser.add_argument("--parallel", type=int, default=2, help="runs at the same time")
    parser.add_argument("--json", type=Path, default=RESULTS_FILE, help="file for the results")
    options = parser.parse_args()
    _, data = suite.read_suite(str(SUITE_FILE))
    rows = run_study(options.out, options.parallel, data)
    write_results(options.json, rows)
    for row in rows:
        print(row["gamma"], row["preset"], row["seed"], row.get("error", row.get("failure")))


if __name__ == "__main__":
    main()
