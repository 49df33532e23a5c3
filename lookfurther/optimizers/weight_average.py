"""An average of the learner's weights, for acting and evaluation."""

from __future__ import annotations

import copy
import math

import torch

from lookfurther.master_weights import MasterWeights


def average_weight(copies: int, target_period: int, time_constant: int) -> float:
    """Weight of the newest weights in the average, after `copies` earlier ones.

    The first copies are averaged evenly, so that the initial weights do not count. Later the
    weight of old copies falls by a factor of e in `time_constant` updates.
    """
    return max(1 / (copies + 1), -math.expm1(-target_period / time_constant))


class WeightAverage:
    """An exponential moving average of the weights at each target copy (Polyak & Juditsky 1992)."""

    def __init__(self, weights: MasterWeights, target_period: int, time_constant: int) -> None:
        self.weights = MasterWeights(copy.deepcopy(weights.network), torch.float32)
        self.target_period, self.time_constant = target_period, time_constant

    def add(self, weights: MasterWeights, copies: int) -> None:
        """Include the weights of a target copy; `copies` is the number of earlier ones."""
        share = average_weight(copies, self.target_period, self.time_constant)
        self.weights.lerp_(weights, share)
