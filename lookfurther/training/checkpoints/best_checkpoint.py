"""The best checkpoint: the weights with the highest score in an evaluation during training."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing

import numpy as np
from torch import nn

from lookfurther.config import Config
from lookfurther.envs import Envs
from lookfurther.rollout import epsilon_greedy_policy, play_episodes
from lookfurther.training.checkpoints import checkpoint, checkpoint_metadata
from lookfurther.training.run_dir import RunDir
from lookfurther.training.signals import EnvCallTracker

MAX_EVALUATION_LANES = 20
EVALUATION_EPSILON = 0.001


class BestCheckpoint:
    """Evaluates weights and saves the best ones (Sec. C).

    It has its own environments, so evaluations do not change training. Every evaluation plays the
    same episodes: the score depends only on the weights.
    """

    def __init__(
        self, config: Config, run_dir: RunDir, build_evaluation_envs: Callable[[int], Envs]
    ) -> None:
        self.config, self.run_dir = config, run_dir
        self.build_evaluation_envs = build_evaluation_envs
        self.best_score = -math.inf
        self.env_calls = EnvCallTracker()

    def load_best_score(self) -> None:
        """Load the best score of the run so far; after a CheckpointError there is none."""
        saved, _ = checkpoint.load_best(self.run_dir.best_dir)
        if saved is not None:
            self.best_score = checkpoint_metadata.get_number(saved, "score")

    def evaluate(self, network: nn.Module, step: int, metadata: dict) -> float:
        """The mean score of the network; its weights are saved if it is the highest so far."""
        episodes, was_training = self.config.run.evaluate_episodes, network.training
        lanes = min(MAX_EVALUATION_LANES, episodes)
        policy = epsilon_greedy_policy(network, EVALUATION_EPSILON, self.config.run.seed)
        network.eval()
        with self.env_calls, closing(self.build_evaluation_envs(lanes)) as envs:
            results = play_episodes(policy, envs, episodes)
        network.train(was_training)
        score = float(np.mean([result.score for result in results]))
        if score >= self.best_score:
            self.best_score = score
            weights = {"weights": dict(network.state_dict())}
            checkpoint.save_and_remove_others(
                self.run_dir.best_dir, step, weights, metadata | {"score": score}
            )
        return score
