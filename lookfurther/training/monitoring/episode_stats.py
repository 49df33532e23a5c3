"""Returns and lengths of the episodes that a run plays."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from lookfurther.errors import CheckpointError
from lookfurther.types import Step

RECENT_EPISODES = 100  # of which `return_mean` and others are means


class FinishedEpisode(NamedTuple):
    """An episode that ended during training."""

    score: float  # the undiscounted return
    length: int  # agent steps
    lane: int


class EpisodeStats:
    """Returns and lengths of the recent episodes of m lanes, without dropped ones.

    Only lanes in `is_counted` [m] bool have statistics; None means all.
    """

    def __init__(
        self, lanes: int, keep: int = RECENT_EPISODES, is_counted: np.ndarray | None = None
    ) -> None:
        self._is_counted = np.ones(lanes, bool) if is_counted is None else is_counted
        self._returns_in_progress = np.zeros(lanes)
        self._lengths_in_progress = np.zeros(lanes, np.int64)
        self._recent_episodes: deque[FinishedEpisode] = deque(maxlen=keep)
        self.newly_finished: list[FinishedEpisode] = []  # by the last step or steps
        self.episode_count = 0
        self.dropped_count = 0
        self.best_return = math.nan

    def add_step(self, step: Step, lanes: range) -> None:
        """Add one environment step of each of `lanes`."""
        returns = self._returns_in_progress[lanes.start : lanes.stop]
        lengths = self._lengths_in_progress[lanes.start : lanes.stop]
        is_counted = self._is_counted[lanes.start : lanes.stop]
        returns += np.where(is_counted, step.reward, 0)
        lengths += 1
        returns[step.first] = 0.0
        lengths[step.first] = 0
        self.dropped_count += int(step.dropped.sum())
        self.newly_finished = [
            FinishedEpisode(float(returns[i]), int(lengths[i]), lanes.start + int(i))
            for i in np.flatnonzero((step.terminal | step.truncated) & is_counted)
        ]
        for episode in self.newly_finished:
            self._recent_episodes.append(episode)
            self.best_return = float(np.fmax(self.best_return, episode.score))
            self.episode_count += 1

    def add_steps(self, steps: Sequence[Step], lanes: range) -> None:
        """Add consecutive environment steps of each of `lanes`."""
        finished: list[FinishedEpisode] = []
        for step in steps:
            self.add_step(step, lanes)
            finished += self.newly_finished
        self.newly_finished = finished

    def reset_lanes(self, lanes: np.ndarray) -> None:
        """Reset the episodes in progress of the masked `lanes` [m]: they start again."""
        self._returns_in_progress[lanes] = 0.0
        self._lengths_in_progress[lanes] = 0

    def mean_return(self, lanes: Sequence[int] | np.ndarray | None = None) -> float:
        """Mean return of the recent episodes, or of those in `lanes`; NaN if there are none."""
        chosen = None if lanes is None else set(np.asarray(lanes).tolist())
        values = [r for r, _, lane in self._recent_episodes if chosen is None or lane in chosen]
        return float(np.mean(values)) if values else math.nan

    def mean_return_in_progress(self, lanes: np.ndarray) -> float:
        """Mean return so far of the episodes in progress in `lanes`.

        With long episodes this shows what the agent can do before the first one ends.
        """
        return float(self._returns_in_progress[lanes].mean())

    @property
    def best_return_in_progress(self) -> float:
        """The highest return so far of an episode in progress."""
        return float(self._returns_in_progress[self._is_counted].max())

    def mean_length(self) -> float:
        """Mean length of the recent episodes in agent steps; NaN if there are none."""
        lengths = [length for _, length, _ in self._recent_episodes]
        return float(np.mean(lengths)) if lengths else math.nan

    def state(self) -> dict[str, np.ndarray]:
        """Everything, for a checkpoint, including the episodes in progress."""
        return {
            "return": self._returns_in_progress.copy(),
            "length": self._lengths_in_progress.copy(),
            "recent": np.array(self._recent_episodes, np.float64).reshape(-1, 3),
            "counts": np.array([self.episode_count, self.dropped_count], np.int64),
            "best": np.array([self.best_return]),
        }

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """The inverse of `state`."""
        saved_lanes, lanes = len(state["return"]), len(self._returns_in_progress)
        if state["return"].shape != self._returns_in_progress.shape:
            raise CheckpointError(
                f"the checkpoint has {saved_lanes} lanes, this run {lanes}:"
                " resume with the same actor.lanes"
            )
        self._returns_in_progress = state["return"].astype(np.float64)
        self._lengths_in_progress = state["length"].astype(np.int64)
        self._recent_episodes.clear()
        for score, length, lane in state["recent"]:
            episode = FinishedEpisode(float(score), int(length), int(lane))
            self._recent_episodes.append(episode)
        self.episode_count, self.dropped_count = (int(n) for n in state["counts"])
        self.best_return = float(state["best"][0])
