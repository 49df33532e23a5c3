"""What the training loop needs from its actors, on this machine or on others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from torch import Tensor

from lookfurther.master_weights import MasterWeights
from lookfurther.replay.prioritized import PrioritizedReplay
from lookfurther.training.monitoring.episode_stats import EpisodeStats
from lookfurther.training.signals import EnvCallTracker


class ChunkSource(Protocol):
    """Actors that produce Chunks: `ActorPool` on this machine, `ClusterSource` on others.

    An iteration of the loop calls `start_step`, `collect_chunk` and `add_chunk`, in this order.
    """

    @property
    def episode_stats(self) -> EpisodeStats: ...

    @property
    def env_calls(self) -> Sequence[EnvCallTracker]:
        """The calls that may hang or raise because of an environment."""
        ...

    @property
    def is_finite(self) -> bool:
        """Whether all Q-values and n-step returns were finite."""
        ...

    @property
    def worker_replacements(self) -> Sequence[str]:
        """A line for each process that was lost and replaced."""
        ...

    def connect_replay(self, replay: PrioritizedReplay) -> None:
        """Add chunks to this replay from now on."""
        ...

    def start_step(self) -> None:
        """Start environment steps, which continue in the background."""
        ...

    def collect_chunk(self) -> None:
        """Wait for the next chunk."""
        ...

    def add_chunk(self) -> None:
        """Add the collected chunk to the replay."""
        ...

    def set_epsilon(self, epsilon: float) -> None:
        """Give every lane the same epsilon."""
        ...

    def publish_weights(self, weights: MasterWeights) -> None:
        """Give the actors new weights, now or soon."""
        ...

    def low_epsilon_lanes(self) -> np.ndarray:
        """The least exploring quarter of the lanes."""
        ...

    def collect_metrics(self) -> dict[str, float]:
        """Metrics of this source alone, since the last call."""
        ...

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Everything, for a checkpoint; without environments that cannot save their state."""
        ...

    def load_state(self, state: Mapping[str, dict[str, Tensor]]) -> int:
        """The inverse of `state`; returns the number of lanes whose episode starts again."""
        ...
