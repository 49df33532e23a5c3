"""MiniGrid and BabyAI as environments of lookfurther."""

from __future__ import annotations

import pytest

from lookfurther.config import EnvConfig
from lookfurther.envs.factory import EnvFactory, find_env_spec


def test_babyai_levels_print_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """MiniGrid prints each level that it rejects: seeds 0 to 19 have some."""
    pytest.importorskip("minigrid")
    config = EnvConfig(wrappers=("lookfurther.envs.minigrid:OneHotGrid",))
    factory = EnvFactory(find_env_spec("BabyAI-GoToRedBallGrey-v0"), config)
    env = factory.build_env()
    for seed in range(20):
        env.reset(seed=seed)
    env.close()
    assert capsys.readouterr().out == ""
