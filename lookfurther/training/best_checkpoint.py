"""The best checkpoint: the weights that played best when training stopped to look (Sec. C)."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing

import numpy as np
from torch import nn

from lookfurther.config import Config
from lookfurther.envs import Envs
from lookfurther.rollout import epsilon_greedy_policy, play_episodes
from lookfurther.training import checkpoint, checkpoint_metadata
from lookfurther.training.run_dir import RunDir
from lookfurther.training.signals import EnvCallTracker

MAX_EVALUATION_LANES = 20
EVALUATION_EPSILON = 0.001


class BestCheckpoint:
    """Evaluates on environments of its own, so that training goes on as if it had not.

    Every evaluation plays the same episodes: its score depends on the weights alone.
    """

    def __init__(
        self, config: Config, run_dir: RunDir, build_evaluation_envs: Callable[[int], Envs]
    ) -> None:
        self.config, self.run_dir, self.build_evaluation_envs = (
            config,
            run_dir,
            build_evaluation_envs,
        )
        self.best_score = -math.inf
        self.env_calls = EnvCallTracker()

    def load_best_score(self) -> None:
        """Take up the best score of the run so far; a CheckpointError leaves it to start anew."""
        saved, _ = checkpoint.load_best(self.run_dir.best_dir)
        if saved is not None:
            self.best_score = checkpoint_metadata.get_number(saved, "score")

    def evaluate(self, network: nn.Module, step: int, metadata: dict) -> float:
        """The mean score of the network; if it is the best so far, its weights are kept."""
        episodes, learning = self.config.run.evaluate_episodes, network.training
        network.eval()
        with (
            self.env_calls,
            closing(self.build_evaluation_envs(min(MAX_EVALUATION_LANES, episodes))) as envs,
        ):
            played = play_episodes(
                epsilon_greedy_policy(network, EVALUATION_EPSILON, self.config.run.seed),
                envs,
                episodes,
            )
        network.train(learning)
        score = float(np.mean([episode.score for episode in played]))
        if score >= self.best_score:
            self.best_score = score
            weights = {"weights": dict(network.state_dict())}
            checkpoint.save_and_remove_others(
                self.run_dir.best_dir, step, weights, metadata | {"score": score}
            )
        return score
