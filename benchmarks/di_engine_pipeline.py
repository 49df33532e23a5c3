"""DI-engine's DQfD pipeline on recorded demonstrations, the peer of benchmarks.di_engine.

`serial_pipeline_dqfd` runs unchanged, with three of its parts replaced: the environment is
Gymnasium's CartPole-v1 (its own needs the old `gym`), the collector of expert steps returns
recorded episodes (its own plays a trained network), and the evaluator plays at given steps.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import contextlib
import copy
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import ding.entry.serial_entry_dqfd as entry
import gymnasium
import numpy as np
import torch
from ding.envs import BaseEnv, BaseEnvTimestep
from ding.policy import DQFDPolicy
from dizoo.classic_control.cartpole.config.cartpole_dqfd_config import create_config, main_config
from torch import Tensor, nn

from lookfurther.demos.episode import Episode

EVALUATION_ENVS = 10


class CartPole(BaseEnv):
    """Gymnasium's CartPole-v1 in the interface of DI-engine, where a time limit is `done`."""

    def __init__(self, cfg: dict) -> None:
        self.env = gymnasium.make("CartPole-v1")
        self.next_seed: int | None = None
        self.episode_return = 0.0
        self.observation_space = self.env.observation_space
        self.action_space = self.env.action_space
        self.reward_space = gymnasium.spaces.Box(0.0, 1.0, (1,))

    def seed(self, seed: int, dynamic_seed: bool = True) -> None:
        self.next_seed = seed

    def reset(self) -> np.ndarray:
        observation, _ = self.env.reset(seed=self.next_seed)
        self.next_seed, self.episode_return = None, 0.0
        return observation

    def step(self, action: Any) -> BaseEnvTimestep:
        observation, reward, terminal, truncated, info = self.env.step(np.asarray(action).item())
        self.episode_return += float(reward)
        done = terminal or truncated
        if done:
            info["eval_episode_return"] = self.episode_return
        return BaseEnvTimestep(observation, np.array([reward], np.float32), done, info)

    def close(self) -> None:
        self.env.close()

    def __repr__(self) -> str:
        return "CartPole-v1"


class LogitModel(nn.Module):
    """A network with the output that DI-engine's policies take."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logit": self.network(x.float())}


def make_transitions(episode: Episode) -> list[dict[str, Any]]:
    """The steps of an episode, as DI-engine's collector stores them."""
    x = torch.from_numpy(np.ascontiguousarray(episode.planes)).float()
    count = len(episode.actions)
    return [
        {
            "obs": x[t],
            "next_obs": x[t + 1],
            "action": torch.tensor([int(episode.actions[t])]),
            "reward": torch.tensor([float(episode.rewards[t])]),
            "done": t == count - 1,
            "collect_iter": 0,
        }
        for t in range(count)
    ]


class RecordedEpisodes:
    """Instead of the collector of expert steps: samples of recorded episodes."""

    envstep = 0

    def __init__(self, policy: Any, episodes: list[Episode]) -> None:
        self.policy, self.episodes = policy, episodes

    def collect(self, n_sample: int, policy_kwargs: dict) -> list[dict[str, Any]]:
        parts = [self.policy.get_train_sample(make_transitions(e)) for e in self.episodes]
        return [sample for part in parts for sample in part]


class StepEvaluator:
    """Instead of the evaluator: plays greedily at equal intervals and stops after the last step.

    It also measures the CPU time of pre-training, which calls it before each update.
    """

    policy: Any

    def __init__(self, budget: tuple[int, int], pretraining: int, seed: int) -> None:
        (self.steps, self.period), self.seed = budget, seed
        self.pretraining, self.next_step = pretraining, self.period
        self.scores: list[tuple[int, float]] = []  # steps, mean score
        self.updates = 0  # at the last evaluation
        self.pretraining_times: list[float] = []

    def should_eval(self, train_iter: int) -> bool:
        if train_iter < self.pretraining:
            self.pretraining_times.append(time.process_time())
        return True

    def eval(self, save: Any, train_iter: int, envstep: int) -> tuple[bool, None]:
        if envstep >= self.next_step:
            self.scores.append((envstep, self.play_episodes()))
            self.updates = train_iter
            self.next_step += self.period
        return self.next_step > self.steps, None

    def play_episodes(self) -> float:
        """The mean score of one greedy episode in each environment."""
        envs = [gymnasium.make("CartPole-v1") for _ in range(EVALUATION_ENVS)]
        seeds = np.random.SeedSequence((self.seed, self.next_step)).generate_state(len(envs))
        observations = {i: e.reset(seed=int(seeds[i]))[0] for i, e in enumerate(envs)}
        total = 0.0
        while observations:
            inputs = {i: torch.from_numpy(x).float() for i, x in observations.items()}
            for i, output in self.policy.forward(inputs).items():
                observation, reward, terminal, truncated, _ = envs[i].step(int(output["action"]))
                total += float(reward)
                observations[i] = observation
                if terminal or truncated:
                    del observations[i]
        return total / len(envs)

    def seconds_per_update(self) -> float:
        """Mean seconds of an update of pre-training, with sampling and new priorities."""
        times = self.pretraining_times
        return (times[-1] - times[0]) / (len(times) - 1)


def matched_settings() -> dict[str, dict[str, Any]]:
    """The settings of benchmarks.di_engine in the words of DI-engine; one environment.

    Its trajectories have n_sample / collector_env_num steps: 64 here, 1 in its own configuration.
    """
    return {
        "policy": {"nstep": 10, "discount_factor": 0.99},
        "learn": {
            "batch_size": 128,
            "learning_rate": 1e-3,
            "target_update_freq": 50,
            "lambda1": 1.0,
            "lambda2": 1.0,
            "lambda3": 1e-5,
            "margin_function": 0.8,
            "update_per_collect": 8,
        },
        "collect": {"n_sample": 64},
        "eps": {"type": "linear", "start": 0.01, "end": 0.01, "decay": 1},
        "env": {"collector_env_num": 1},
    }


def make_config(settings: dict[str, dict[str, Any]], demo_steps: int) -> Any:
    """DI-engine's CartPole configuration with some settings changed."""
    config = copy.deepcopy(main_config)
    config.exp_name, policy = "run", config.policy
    policy.cuda = False
    policy.update(settings.get("policy", {}))
    policy.learn.update(settings.get("learn", {}))
    policy.learn.expert_replay_buffer_size = demo_steps
    policy.collect.update(settings.get("collect", {}))
    policy.collect.model_path = "expert.pth"
    policy.other.eps.update(settings.get("eps", {}))
    policy.other.replay_buffer.replay_buffer_size = 50_000
    config.env.update(settings.get("env", {}))
    config.env.stop_value = 1e9
    return config


@contextlib.contextmanager
def replace_parts(episodes: list[Episode], evaluator: StepEvaluator) -> Iterator[None]:
    """Let the pipeline use the recorded episodes and the evaluator."""
    make_collector = entry.create_serial_collector
    collectors: list[Any] = []

    def make_collector_or_recording(cfg: Any, env: Any, policy: Any, **rest: Any) -> Any:
        """The pipeline makes the agent's collector first, then the expert's."""
        collectors.append(
            RecordedEpisodes(policy, episodes)
            if collectors
            else make_collector(cfg, env=env, policy=policy, **rest)
        )
        return collectors[-1]

    def use_evaluator(cfg: Any, env: Any, policy: Any, *_: Any, **__: Any) -> StepEvaluator:
        evaluator.policy = policy
        return evaluator

    with (
        mock.patch.object(entry, "InteractionSerialEvaluator", use_evaluator),
        mock.patch.object(entry, "create_serial_collector", make_collector_or_recording),
    ):
        yield


def run_pipeline(
    episodes: list[Episode],
    settings: dict[str, dict[str, Any]],
    network: nn.Module | None,
    budget: tuple[int, int],
    seed: int,
) -> dict[str, Any]:
    """Train for budget[0] steps, evaluate every budget[1]; no network: that of DI-engine."""
    config = make_config(settings, sum(len(e.actions) for e in episodes))
    evaluator = StepEvaluator(budget, config.policy.learn.per_train_iter_k, seed)
    expert = LogitModel(nn.Linear(4, 2))  # the pipeline loads an expert, which is not used
    env_configs = [{} for _ in range(config.env.collector_env_num)]
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        Path("output.txt").open("w") as output,
        contextlib.redirect_stdout(output),
        replace_parts(episodes, evaluator),
    ):
        torch.save({"model": expert.state_dict()}, "expert.pth")
        entry.serial_pipeline_dqfd(
            (config, copy.deepcopy(create_config)),
            (copy.deepcopy(config), copy.deepcopy(create_config)),
            seed,
            [CartPole, env_configs, env_configs[:1]],
            model=LogitModel(network) if network else None,
            expert_model=expert,
        )
    return {
        "curve": evaluator.scores,
        "updates": evaluator.updates,
        "seconds_per_update": evaluator.seconds_per_update(),
    }


def piece_discounts(length: int, horizon: int, gamma: float) -> list[float]:
    """The factor of the bootstrap value of each step of a piece of an episode."""
    policy = DQFDPolicy.__new__(DQFDPolicy)
    policy._gamma, policy._nstep, policy._unroll_len = gamma, horizon, 1
    planes = np.zeros((length + 1, 4), np.float32)
    episode = Episode(planes, np.zeros(length, np.int64), np.ones(length, np.float32), False)
    samples = policy._get_train_sample(make_transitions(episode))
    return [float(sample["value_gamma"]) for sample in samples]
