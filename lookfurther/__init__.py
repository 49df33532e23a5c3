"""Ape-X DQfD: agents that learn from a few demonstrations and from reward.

from lookfurther import Agent, preset, train

summary = train(preset("no-demos", "small", env="CartPole-v1"))
agent = Agent.load(summary.folder)
actions = agent.act(observations)
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from lookfurther.system.openmp import set_brief_waits

if TYPE_CHECKING:
    from lookfurther.agent import Agent
    from lookfurther.config import Config, replace
    from lookfurther.demos.episode import Episode
    from lookfurther.demos.saved_demos import load_demos, save_demos
    from lookfurther.errors import LookFurtherError
    from lookfurther.evaluation.evaluate import evaluate
    from lookfurther.presets import preset
    from lookfurther.training.callbacks import Callback
    from lookfurther.training.clone import clone
    from lookfurther.training.monitoring.summary import Summary
    from lookfurther.training.train import train
    from lookfurther.types import Spec

set_brief_waits(os.environ)  # before anything imports torch

__version__ = "0.1.0"

_MODULE_OF = {
    "Agent": "lookfurther.agent",
    "Callback": "lookfurther.training.callbacks",
    "Config": "lookfurther.config",
    "Episode": "lookfurther.demos.episode",
    "LookFurtherError": "lookfurther.errors",
    "Spec": "lookfurther.types",
    "Summary": "lookfurther.training.monitoring.summary",
    "clone": "lookfurther.training.clone",
    "evaluate": "lookfurther.evaluation.evaluate",
    "load_demos": "lookfurther.demos.saved_demos",
    "preset": "lookfurther.presets",
    "replace": "lookfurther.config",
    "save_demos": "lookfurther.demos.saved_demos",
    "train": "lookfurther.training.train",
}

__all__ = [
    "Agent",
    "Callback",
    "Config",
    "Episode",
    "LookFurtherError",
    "Spec",
    "Summary",
    "clone",
    "evaluate",
    "load_demos",
    "preset",
    "replace",
    "save_demos",
    "train",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import on first use: `lookfurther --help` must not wait for torch."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'lookfurther' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)
