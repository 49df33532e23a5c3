"""The values of a run that follow a schedule. They depend on the step alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch

from lookfurther.array_api import to_native
from lookfurther.config import Config
from lookfurther.learner import Learner
from lookfurther.replay.mixture import ReplayMixture
from lookfurther.replay.shared import AnnealedMixture
from lookfurther.schedules import linear_schedule
from lookfurther.training.chunk_source import ChunkSource


class Schedule(NamedTuple):
    """A value that the training loop sets before each iteration."""

    value_at: Callable[[int], float]  # of the number of agent steps
    set_value: Callable[[float], None]


def build_schedules(
    config: Config, chunk_source: ChunkSource, mixture: ReplayMixture, learner: Learner
) -> list[Schedule]:
    """The schedules that the configuration selects."""
    return [
        *_epsilon_schedules(config, chunk_source),
        *_beta_schedules(config, mixture),
        *_demo_share_schedules(config, mixture),
        *_learning_rate_schedules(config, learner),
    ]


def _epsilon_schedules(config: Config, chunk_source: ChunkSource) -> Iterator[Schedule]:
    if config.actor.epsilon_schedule == "linear":
        first = config.replay.learning_starts
        last, end = first + config.actor.epsilon_steps, config.actor.epsilon_end
        value_at = partial(linear_schedule, first_step=first, last_step=last, start=1.0, end=end)
        yield Schedule(value_at, chunk_source.set_epsilon)


def _beta_schedules(config: Config, mixture: ReplayMixture) -> Iterator[Schedule]:
    if config.replay.beta_schedule == "linear":
        beta = torch.tensor(config.replay.beta, dtype=torch.float64, device=mixture.agent.device)
        native = to_native(beta)
        for replay in mixture.replays:
            replay.beta = native
        yield Schedule(_over_run(config, config.replay.beta, 1.0), partial(_set_array, native))


def _demo_share_schedules(config: Config, mixture: ReplayMixture) -> Iterator[Schedule]:
    if isinstance(mixture, AnnealedMixture):
        value_at = _over_run(config, mixture.initial_share, 0.0)
        yield Schedule(value_at, partial(setattr, mixture, "scheduled_share"))


def _learning_rate_schedules(config: Config, learner: Learner) -> Iterator[Schedule]:
    if config.learner.learning_rate_schedule == "linear":
        value_at = _over_run(config, config.learner.learning_rate, 0.0)
        yield Schedule(value_at, partial(_set_array, learner.optimizer.learning_rate))


def _over_run(config: Config, start: float, end: float) -> Callable[[int], float]:
    """From the start of learning to the end of the run."""
    first, last = config.replay.learning_starts, config.run.steps
    return partial(linear_schedule, first_step=first, last_step=last, start=start, end=end)


def _set_array(array: torch.Tensor, value: float) -> None:
    array[...] = value
