"""Lanes of two kinds in one group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lookfurther.envs import Envs
from lookfurther.types import Step


class SplitEnvs:
    """The lanes of two Envs as one group; `is_second` [m] bool are the lanes of the second."""

    def __init__(self, first: Envs, second: Envs, is_second: np.ndarray) -> None:
        self.first, self.second, self.is_second = first, second, is_second
        self.spec, self.lanes = first.spec, len(is_second)

    @property
    def dropped_episodes(self) -> int:
        return self.first.dropped_episodes + self.second.dropped_episodes

    @property
    def restarts(self) -> int:
        return self.first.restarts + self.second.restarts

    @property
    def replacements(self) -> Sequence[str]:
        return [*self.first.replacements, *self.second.replacements]

    @property
    def lives(self) -> np.ndarray | None:
        """Of the first Envs; 0 in the lanes of the second."""
        if self.first.lives is None:
            return None
        lives = np.zeros(self.lanes, np.int32)
        lives[~self.is_second] = self.first.lives
        return lives

    def reset(self) -> Step:
        return self._merge(self.first.reset(), self.second.reset())

    def send(self, actions: np.ndarray) -> None:
        self.first.send(actions[~self.is_second])
        self.second.send(actions[self.is_second])

    def recv(self) -> Step:
        return self._merge(self.first.recv(), self.second.recv())

    def truncate(self, lanes: np.ndarray) -> Step:
        first, second = lanes[~self.is_second], lanes[self.is_second]
        return self._merge(self.first.truncate(first), self.second.truncate(second))

    def state(self) -> dict[str, np.ndarray]:
        return {}

    def restore(self, state: dict[str, np.ndarray]) -> tuple[Step, np.ndarray]:
        return self.reset(), np.zeros(self.lanes, bool)

    def close(self) -> None:
        self.first.close()
        self.second.close()

    def _merge(self, first: Step, second: Step) -> Step:
        fields = []
        for ours, theirs in zip(first, second, strict=True):
            merged = np.empty((self.lanes, *ours.shape[1:]), ours.dtype)
            merged[~self.is_second], merged[self.is_second] = ours, theirs
            fields.append(merged)
        return Step(*fields)
