"""Save the demonstrations of every task as a set named study/TASK-v0.

    python -m experiments.demonstrations

A set that exists is kept. MinAtar is part of the extra `bench`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib.util import find_spec

import gymnasium
import numpy as np

from experiments.experts import TASKS, Task
from lookfurther.config import EnvConfig
from lookfurther.demos.collect import ScriptedExpert, collect_episodes
from lookfurther.demos.storage import datasets_dir, save_episodes

REFERENCE_SEEDS = range(1000, 1100)  # of the episodes behind the references


def set_name(task: str) -> str:
    return f"study/{task}-v0"


def is_available(task: Task) -> bool:
    """Whether the packages of the task are installed."""
    return "MinAtar" not in task.env or find_spec("minatar") is not None


def save_demonstrations(name: str, task: Task) -> None:
    """Save the expert's episodes unless the set exists."""
    if not (datasets_dir() / set_name(name)).exists():
        episodes, spec = collect_episodes(task.env, EnvConfig(), task.expert, task.demo_seeds)
        save_episodes(set_name(name), episodes, spec, "scripted expert")


def make_random_policy() -> ScriptedExpert:
    """Uniformly random actions, other ones in every episode."""
    generator = np.random.default_rng(0)

    def begin_episode(env: gymnasium.Env) -> Callable[[], int]:
        actions: int = env.action_space.n  # type: ignore[attr-defined]
        return lambda: int(generator.integers(actions))

    return begin_episode


def mean_score(task: Task, policy: ScriptedExpert) -> float:
    """The mean return of a policy over the reference episodes."""
    episodes, _ = collect_episodes(task.env, EnvConfig(), policy, REFERENCE_SEEDS)
    return float(np.mean([episode.score for episode in episodes]))


def reference_scores(task: Task) -> dict[str, float]:
    """The mean returns of random play and of the best policy, 0 % and 100 % of the study."""
    best = task.best_return
    return {
        "random": mean_score(task, make_random_policy()),
        "best": mean_score(task, task.expert) if best is None else best,
    }


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    for name, task in TASKS.items():
        if is_available(task):
            save_demonstrations(name, task)
            print(f"saved {set_name(name)}")
        else:
            print(f"left out {set_name(name)}: install lookfurther[bench]")


if __name__ == "__main__":
    main()
