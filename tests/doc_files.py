"""Files that documented commands need."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import pytest

from tests.minari_datasets import make_minari_dataset

MY_PACKAGE = """import gymnasium

entry = "gymnasium.envs.classic_control:CartPoleEnv"
gymnasium.register("MyEnv-v0", entry, max_episode_steps=50)
"""


def save_breakout_dataset(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Minari dataset of Breakout."""
    env = gymnasium.make("ALE/Breakout-v5", repeat_action_probability=0.0, frameskip=4)
    dataset = home / ".minari/datasets/atari/breakout/expert-v0"
    dataset.parent.mkdir(parents=True)
    with monkeypatch.context() as inner:
        make_minari_dataset(home, inner, env, jpeg_encoding=False).rename(dataset)


def prepare_comparison(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Minari dataset, and a module that registers an environment."""
    save_breakout_dataset(home, monkeypatch)
    (home / "my_package.py").write_text(MY_PACKAGE)
    monkeypatch.syspath_prepend(str(home))
