"""The best checkpoint: the weights that played best when training stopped to look (Sec. C)."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing

import numpy as np
from torch import nn

from lookfurther.config import Config
from lookfurther.envs import Envs
from lookfurther.rollout import greedy, play
from lookfurther.training import checkpoint, checkpoint_metadata
from lookfurther.training.run_dir import RunFolder
from lookfurther.training.signals import EnvironmentCode

LANES = 20
EPSILON = 0.001


class Best:
    """Evaluates on environments of its own, so that training goes on as if it had not.

    Every evaluation plays the same episodes: its score depends on the weights alone.
    """

    def __init__(self, config: Config, folder: RunFolder, make: Callable[[int], Envs]) -> None:
        self.config, self.folder, self.make = config, folder, make
        self.score = -math.inf
        self.environment_code = EnvironmentCode()

    def resume(self) -> None:
        """Take up the best score of the run so far; a CheckpointError leaves it to start anew."""
        saved, _ = checkpoint.best(self.folder.best)
        if saved is not None:
            self.score = checkpoint_metadata.measure(saved, "score")

    def evaluate(self, network: nn.Module, step: int, said: dict) -> float:
        """The mean score of the network; if it is the best so far, its weights are kept."""
        episodes, learning = self.config.run.evaluate_episodes, network.training
        network.eval()
        with self.environment_code, closing(self.make(min(LANES, episodes))) as envs:
            played = play(greedy(network, EPSILON, self.config.run.seed), envs, episodes)
        network.train(learning)
        score = float(np.mean([episode.score for episode in played]))
        if score >= self.score:
            self.score = score
            weights = {"weights": dict(network.state_dict())}
            checkpoint.save_only(self.folder.best, step, weights, said | {"score": score})
        return score
