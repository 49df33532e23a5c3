"""Tiny training runs, and how to compare them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from torch import Tensor, nn

from lookfurther import Config, Spec, preset
from lookfurther.config import EnvConfig
from lookfurther.demos.collect import collect_episodes
from lookfurther.demos.storage import save_episodes
from lookfurther.training.checkpoints import checkpoint
from lookfurther.training.checkpoints.checkpoint import Checkpoint
from lookfurther.training.monitoring.metrics import read_metrics

TIME_METRICS = (
    "minutes",
    "steps_per_second",
    "updates_per_second",
    "memory_gib",
    "wait_environments",
    "wait_learner",
)


def tiny_config(folder: Path, demos: Path | None = None, **overrides: Any) -> Config:
    """A run of about a second: 4 lanes, batches of 16 items, 16 hidden units."""
    small: dict[str, Any] = {
        "env": "CartPole-v1",
        "actor__lanes": 4,
        "replay__capacity": 1000,
        "replay__learning_starts": 100,
        "network__name": "mlp",
        "network__hidden": (16,),
        "learner__agent_items": 16 if demos is None else 12,
        "learner__expert_items": 0 if demos is None else 4,
        "learner__learning_rate": 1e-3,
        "learner__target_period": 20,
        "learner__samples_per_insert": 4.0,
        "run__folder": str(folder),
        "run__steps": 400,
        "run__precision": "float32",
        "run__threads": 1,
        "run__log_period": 100,
        "run__checkpoint_period": 0,
        "run__checkpoint_minutes": 0.0,
    }
    name = "no-demos" if demos is None else "apex-dqfd"
    small |= {} if demos is None else {"demos": (str(demos),)}
    return preset(name, **(small | overrides))


def newest_checkpoint(folder: Path) -> Checkpoint:
    saved, broken = checkpoint.load_newest(folder / "checkpoints")
    assert saved is not None
    assert not broken
    return saved


def flatten_tensors(saved: Checkpoint) -> dict[str, Tensor]:
    """Every tensor of a checkpoint, by file and name."""
    return {f"{file}.{k}": v for file, part in saved.files.items() for k, v in part.items()}


def assert_checkpoints_equal(a: Checkpoint, b: Checkpoint, ignored: tuple[str, ...] = ()) -> None:
    """The same tensors bit for bit, and the same counters."""
    ours, theirs = flatten_tensors(a), flatten_tensors(b)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        if not name.startswith(ignored):
            assert value.dtype == theirs[name].dtype
            assert value.numpy().tobytes() == theirs[name].numpy().tobytes(), name
    assert [a.metadata[k] for k in ("step", "updates")] == [
        b.metadata[k] for k in ("step", "updates")
    ]


def rows_without_times(folder: Path) -> list[dict[str, Any]]:
    """The rows of metrics without those that depend on the clock or the machine."""
    rows = read_metrics(folder / "metrics.jsonl")
    return [{k: v for k, v in row.items() if k not in TIME_METRICS} for row in rows]


def balancing_policy(env: gymnasium.Env) -> Callable[[], int]:
    """Push the cart in the direction the pole leans: about a hundred steps."""
    cart: Any = env.unwrapped
    return lambda: int(cart.state[2] + 0.5 * cart.state[3] > 0)


def save_balance_demos(folder: Path) -> Path:
    """Save a set of two CartPole episodes."""
    episodes, spec = collect_episodes("CartPole-v1", EnvConfig(), balancing_policy, range(2))
    short = [e for e in episodes if len(e) < 10_000]
    return save_episodes("tests/balance-v0", short, spec, "a rule", folder)


class WalkEnv(gymnasium.Env):
    """Five states in a row, starting in the middle: the right end gives reward 1, the left 0."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = Box(0, 1, (5,), np.float32), Discrete(2)
        self.place = 2

    def observe_position(self) -> np.ndarray:
        return np.eye(5, dtype=np.float32)[self.place]

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        self.place = 2
        return self.observe_position(), {}

    def step(self, action: int) -> Any:
        self.place += 2 * int(action) - 1
        over = self.place in (0, 4)
        return self.observe_position(), float(self.place == 4), over, False, {}


def build_noisy_network(spec: Spec) -> nn.Module:
    """A network that uses torch's random generator while it learns and acts."""
    return nn.Sequential(nn.Dropout(0.5), nn.Linear(spec.observation_shape[0], spec.actions))
