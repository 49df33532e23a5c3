"""Demonstrations and calls for the tests of `lookfurther demos`."""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lookfurther.cli.main import main
from lookfurther.config import EnvConfig
from lookfurther.demos import storage
from lookfurther.demos.episode import Episode, InputLog
from lookfurther.demos.playback import episode_from_log
from lookfurther.demos.verify import verify_episode
from lookfurther.envs import get_spec

PONG, BREAKOUT = "ALE/Pong-v5", "ALE/Breakout-v5"


def random_input_log(frames: int, seed: int) -> InputLog:
    """Random actions, each demo_set for five frames, with one RAM write."""
    rng = np.random.default_rng(seed)
    buttons = rng.integers(0, 6, frames).astype(np.uint8).repeat(5)[:frames]
    return InputLog(buttons, np.array([[frames // 2, 5, 7]], np.int32))


@lru_cache
def episode(frames: int = 202, seed: int = 0, env: str = PONG) -> Episode:
    played = episode_from_log(random_input_log(frames, seed), env)
    audit = verify_episode(played, get_spec(env, EnvConfig()), EnvConfig())
    return dataclasses.replace(played, audit=audit)


def save_demo_set(name: str, *episodes: Episode, env: str = PONG) -> list[Episode]:
    storage.save_episodes(name, episodes, get_spec(env, EnvConfig()), "a test")
    return list(episodes)


def run_command(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> str:
    """Run a command, check its exit code and return the output of both streams."""
    capsys.readouterr()
    assert main(["demos", *args]) == code
    output = capsys.readouterr()
    if code:
        assert output.err.count("\n") <= 1
    return output.out + output.err


def write_sequence(path: Path, frames: np.ndarray, **members: Any) -> Path:
    """Write an action sequence with NumPy, as documented."""
    path.parent.mkdir(exist_ok=True)
    arrays: dict[str, Any] = {"ale_actions": frames, "rom": "pong"} | members
    np.savez(path, **arrays)
    return path
