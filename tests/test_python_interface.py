"""The Python interface: what users pass, right and wrong, and what they get back."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

import lookfurther
from lookfurther import (
    Agent,
    Config,
    Episode,
    LookFurtherError,
    evaluate,
    load_demos,
    preset,
    replace,
    train,
)
from lookfurther.presets import PRESETS, SCALES
from lookfurther.rollout import EpisodeResult
from lookfurther.types import Spec
from tests.training_runs import tiny_config


def cartpole() -> gymnasium.Env:
    return gymnasium.make("CartPole-v1")


def play_cartpole(seed: int) -> Episode:
    """An episode of a simple rule, in arrays of the environment's own types."""
    env = cartpole()
    observation, _ = env.reset(seed=seed)
    observations, actions, rewards = [observation], [], []
    terminal = truncated = False
    while not (terminal or truncated):
        actions.append(int(observation[2] + 0.3 * observation[3] > 0))
        observation, reward, terminal, truncated, _ = env.step(actions[-1])
        observations.append(observation)
        rewards.append(reward)
    return Episode.from_arrays(observations, actions, rewards, terminal=bool(terminal), seed=seed)


# Wrong arguments of `train`


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"env": cartpole()},
            "env must be a function that makes a new environment at every call, not an"
            " environment: give a function such as lambda: gymnasium.make('CartPole-v1')",
        ),
        ({"env": 3}, "env must be a function that makes an environment, not int"),
        ({"env": lambda: 5}, "must give a gymnasium.Env, not int"),
        (
            {"network": nn.Linear(4, 2)},
            "network must be a function from the Spec to a module, not Linear",
        ),
        ({"network": lambda spec: 5}, "network must return a torch.nn.Module, not int"),
        ({"network": lambda spec: nn.Flatten()}, "the network Flatten has no parameters to learn"),
        (
            {"network": lambda spec: nn.Linear(4, 3)},
            "the network Linear must return one value per action, (2, 2) for observations (2, 4)"
            " of type float32, not (2, 3)",
        ),
        ({"network": lambda spec: nn.Linear(4, 1)}, "not (2, 1)"),
        (
            {"network": lambda spec: nn.Linear(5, 2)},
            "the network Linear fails for observations (2, 4) of type float32: mat1 and mat2",
        ),
        ({"network": lambda spec: nn.LSTM(4, 2)}, "not tuple"),
        ({"init": "nowhere"}, "nowhere holds no checkpoint"),
    ],
)
def test_wrong_argument_of_train_is_named(
    arguments: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """And no run folder is made: the corrected call can use it."""
    with pytest.raises(LookFurtherError, match=re.escape(message)) as caught:
        train(tiny_config(tmp_path / "run"), **arguments)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


class UnusedEnv(gymnasium.Env):
    """Must not be built."""

    def __init__(self) -> None:
        raise AssertionError("an environment was built")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"run__folder": "used"}, "used already holds a run: add --resume to continue"),
        ({"demos": ("shipped/freewy",)}, "did you mean shipped/freeway?"),
    ],
)
def test_folders_and_sets_are_checked_before_environments_are_built(
    overrides: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    Path("used").mkdir()
    Path("used", "config.json").write_text("{}")
    config = tiny_config(tmp_path / "run")
    if "demos" in overrides:
        config = replace(config, learner__agent_items=4, learner__expert_items=4)
    with pytest.raises(LookFurtherError, match=re.escape(message)):
        train(replace(config, **overrides), env=UnusedEnv)


@pytest.mark.parametrize("config", [None, {}, "no-demos"])
def test_train_names_a_wrong_configuration(config: Any) -> None:
    for call in (lambda: train(config), lambda: replace(config, env="CartPole-v1")):
        with pytest.raises(LookFurtherError, match=r"^config must be a Config, not \w+: preset"):
            call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: preset("nope"), "unknown preset 'nope': choose one of apex-dqfd,"),
        (lambda: preset(["no-demos"]), "unknown preset ['no-demos']: choose"),  # type: ignore[arg-type]
        (lambda: preset("no-demos", 5), "unknown scale 5: choose one of paper"),  # type: ignore[arg-type]
        (lambda: preset("no-demos", gama=1), "unknown setting gama: did you mean learner.gamma?"),
        (lambda: Agent.load("nowhere"), "nowhere holds no checkpoint"),
        (lambda: Agent.load("nowhere", device="tpu"), "device 'tpu' is none of auto, cpu, cuda"),
        (lambda: evaluate("nowhere"), "agent must be an Agent, not str"),  # type: ignore[arg-type]
        (lambda: load_demos("nope"), "no demonstrations named nope"),
        (lambda: load_demos(""), "no demonstrations named"),
    ],
)
def test_wrong_argument_is_named(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(LookFurtherError, match=re.escape(message)):
        call()


VECTORS = np.zeros((3, 4))


# Agents


class OneHotImage(nn.Module):
    """Q-values that are the pixels of the top row, for images [1, 2, 3]."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Any) -> Any:
        return x.float()[:, 0, 0] * self.scale


def image_agent(layout: str = "hwc") -> Agent:
    config = replace(Config(), env="Grid-v0", environment__layout=layout)
    return Agent(OneHotImage(), Spec("Grid-v0", (1, 2, 3), 1, "uint8", 3, 255.0), config)


def test_agent_takes_images_in_both_layouts() -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 1, 2, 3), np.uint8)
    expected = images[:, 0, 0].argmax(-1)
    agent = image_agent()
    for batch in (images, images.transpose(0, 2, 3, 1), images.astype(np.int64)):
        assert agent.act(batch).tolist() == expected.tolist()
        assert [int(agent.act(image)) for image in batch] == expected.tolist()
        assert agent.q_values(batch).shape == (5, 3)
        assert agent.q_values(batch[0]).tolist() == images[0, 0, 0].tolist()
    with pytest.raises(ValueError, match=r"must have shape \(1, 2, 3\) or \(m, 1, 2, 3\)"):
        image_agent("chw").act(images.transpose(0, 2, 3, 1))
    with pytest.raises(ValueError, match="observations must be integers, not of type float64"):
        agent.act(images / 255)
    with pytest.raises(ValueError, match="observations must be integers, not of type <U1"):
        agent.act(["a"])
    with pytest.raises(ValueError, match=r"epsilon must be 0 \.\.\. 1, not 2"):
        agent.act(images, epsilon=2)


def test_predict_returns_action_and_state() -> None:
    """The signature of stable-baselines3."""
    agent, image = image_agent(), np.zeros((1, 2, 3), np.uint8)
    image[0, 0, 1] = 9
    action, state = agent.predict(image, state="kept", episode_start=[True], deterministic=True)
    assert (int(action), state) == (1, "kept")
    actions, state = agent.predict(np.repeat(image[None], 20_000, axis=0))
    assert state is None
    assert 0 < (actions != 1).mean() < 0.002  # two thirds of 0.001


@pytest.mark.parametrize("episodes", [0, -1, 1.5, "many"])
def test_evaluate_names_a_wrong_number_of_episodes(episodes: Any) -> None:
    with pytest.raises(LookFurtherError, match=r"^episodes must be a whole number of 1 or more"):
        evaluate(image_agent(), episodes)


def test_reprs_are_short() -> None:
    assert repr(image_agent()) == "Agent(Grid-v0, apex-dqfd, step 0, 1 parameters on cpu)"
    assert repr(EpisodeResult(array("d", [1.0, 0.5]))) == "EpisodeResult(score=1.5, steps=2)"
    assert repr(Episode.from_arrays(VECTORS, [0, 1], [1, 1])) == (
        "Episode(2 steps, return 2, terminal, planes (4,) float32)"
    )
    summary = lookfurther.Summary(Path("run"), 5, 1, 2, 1.0, 2.0, 3.0, 0.51, "done")
    assert repr(summary) == (
        "Summary(folder='run', step=5, episodes=2, return_low_epsilon=2, minutes=0.5,"
        " stop_reason='done')"
    )


def test_help_of_preset_lists_presets_and_scales() -> None:
    text = preset.__doc__ or ""
    for name, preset_data in (PRESETS | SCALES).items():
        line = rf"^ +{re.escape(name)} +{re.escape(preset_data.description)}$"
        assert re.search(line, text, re.MULTILINE), name


def test_public_names_are_listed_by_dir() -> None:
    assert set(lookfurther.__all__) <= set(dir(lookfurther))
