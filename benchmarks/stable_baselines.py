"""stable-baselines3's DQN, the peer of benchmarks.end_to_end and benchmarks.one_gpu."""

# pyright: reportMissingImports=false

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from ale_py.vector_env import AtariVectorEnv
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from lookfurther.config import NetworkConfig
from lookfurther.networks.dueling import make_network_builder
from lookfurther.system.processes import count_cores
from lookfurther.types import Spec

ACTIONS = 18
BUFFER_SIZE = 20_000  # transitions of 56 kB: its default of a million would take 56 GB


class AleVectorEnv(VecEnv):
    """ale-py's vector environment as a VecEnv, with the preprocessing of AtariWrapper."""

    def __init__(self, game: str, count: int, threads: int, full_actions: bool = False) -> None:
        self.envs = AtariVectorEnv(
            game,
            count,
            num_threads=threads,
            full_action_space=full_actions,
            episodic_life=True,
            reward_clipping=True,
            autoreset_mode=AutoresetMode.SAME_STEP,
        )
        space = self.envs.single_observation_space, self.envs.single_action_space
        super().__init__(count, *space)

    def reset(self) -> np.ndarray:
        return self.envs.reset(seed=0)[0]

    def step_async(self, actions: np.ndarray) -> None:
        self.envs.send(actions)

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict]]:
        observation, reward, terminal, truncated, info = self.envs.recv()
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        ended = terminal | truncated
        for i in np.flatnonzero(ended):
            infos[i]["terminal_observation"] = info["final_obs"][i]
            infos[i]["TimeLimit.truncated"] = bool(truncated[i] and not terminal[i])
        return observation, reward.astype(np.float32), ended, infos

    def close(self) -> None:
        self.envs.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self.envs, attr_name)] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list:
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs


def make_wrapped_envs(count: int) -> VecEnv:
    """stable-baselines3's own environments: stepped one after another, frames resized by cv2."""
    import cv2  # noqa: F401
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack

    plain = {"frameskip": 1, "repeat_action_probability": 0.0}
    return VecFrameStack(make_atari_env("ALE/Breakout-v5", count, env_kwargs=plain), 4)


class ThroughputCallback(BaseCallback):
    """Counts steps and updates for `seconds`, from `warm` seconds after learning starts.

    It measures at the first step after updates, so that it counts full cycles.
    """

    def __init__(self, warm: float, seconds: float) -> None:
        super().__init__()
        self.warm, self.seconds = warm, seconds
        self.updates, self.learning = 0, 0.0
        self.marks: list[tuple[float, int, int]] = []  # first and last: time, steps, updates

    def _on_step(self) -> bool:
        now, updates = time.perf_counter(), self.model._n_updates
        if updates == self.updates:
            return True
        if self.updates == 0:
            self.learning = now
        self.updates = updates
        if now - self.learning >= self.warm:
            self.marks = [*self.marks[:1], (now, self.num_timesteps, updates)]
        return len(self.marks) < 2 or now - self.marks[0][0] < self.seconds


class TimedDQN:
    """A DQN whose training is timed."""

    model: DQN

    def round(self, warm: float, seconds: float) -> dict[str, float]:
        callback = ThroughputCallback(warm, seconds)
        self.model.learn(10**9, callback=callback)
        (t0, s0, u0), (t1, s1, u1) = callback.marks
        return {
            "steps_per_second": (s1 - s0) / (t1 - t0),
            "updates_per_second": (u1 - u0) / (t1 - t0),
            "samples_per_step": self.model.batch_size * (u1 - u0) / (s1 - s0),
            "measured_seconds": t1 - t0,
        }


class DefaultDQN(TimedDQN):
    """DQN with its default settings: a batch of 32 every 4 steps of each environment."""

    def __init__(self, source: str, count: int, threads: int, used: int) -> None:
        torch.set_num_threads(threads)
        self.model = DQN(
            "CnnPolicy",
            AleVectorEnv("breakout", count, used)
            if source == "ale-py"
            else make_wrapped_envs(count),
            buffer_size=BUFFER_SIZE,
            gradient_steps=count,  # for the 4 x count steps of a rollout
            exploration_initial_eps=0.05,  # its value after a tenth of training
            device="cpu",
            seed=0,
        )


class DuelingExtractor(BaseFeaturesExtractor):
    """One of our networks as a feature extractor; stable-baselines3 adds a linear layer."""

    def __init__(self, space: Box, name: Any, game: str) -> None:
        spec = Spec(game, (1, *space.shape[1:]), space.shape[0], "uint8", ACTIONS, 255.0)
        super().__init__(space, ACTIONS)
        self.network = make_network_builder(NetworkConfig(name=name))(spec)

    def forward(self, observations: Tensor) -> Tensor:
        return self.network(observations)


class GpuDQN(TimedDQN):
    """DQN on a GPU with our network, batch size and ratio of samples to steps."""

    def __init__(self, network: str, lanes: int, batch: int, samples_per_step: float) -> None:
        game = "montezuma_revenge"
        self.model = DQN(
            "CnnPolicy",
            AleVectorEnv(game, lanes, count_cores(), full_actions=True),
            buffer_size=BUFFER_SIZE,
            batch_size=batch,
            train_freq=1,
            gradient_steps=round(lanes * samples_per_step / batch),
            exploration_initial_eps=0.05,
            policy_kwargs={
                "features_extractor_class": DuelingExtractor,
                "features_extractor_kwargs": {"name": network, "game": game},
                "net_arch": [],
                "normalize_images": False,  # the network normalizes
            },
            device="cuda",
            seed=0,
        )
