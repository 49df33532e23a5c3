"""The values of an agent along a demonstration, next to the return of the demonstration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch

from lookfurther.config import Config
from lookfurther.demos.episode import Episode
from lookfurther.errors import CheckpointError
from lookfurther.returns import discounted_returns
from lookfurther.transforms import REWARD_TRANSFORMS, ValueTransform
from lookfurther.types import TRUNCATED

BATCH_SIZE = 256  # observations of one forward pass

QFunction = Callable[[np.ndarray], np.ndarray]  # observations [m, ...] to f(x, a) [m, A]


class DemonstrationValues(NamedTuple):
    """Arrays [T] over the steps of a demonstration; h transforms all values except the raw ones."""

    demonstrated_action: np.ndarray
    greedy_action: np.ndarray
    max_value: np.ndarray  # max_a f(x, a)
    demonstrated_value: np.ndarray  # f(x, a) of the demonstrated action
    best_other_value: np.ndarray  # max of the other actions
    transformed_return: np.ndarray  # h of the return
    raw_max_value: np.ndarray
    raw_demonstrated_value: np.ndarray
    raw_return: np.ndarray  # discounted, from this step to the end of the demonstration
    one_step_error: np.ndarray  # [T - 1]: f(x, a) - h(r + gamma h^-1(max f(x', a')))

    @property
    def action_gap(self) -> np.ndarray:
        """How far the demonstrated action is above the best other one; negative: it is not best."""
        return self.demonstrated_value - self.best_other_value

    @property
    def agreement(self) -> float:
        """The share of steps at which the greedy action is the demonstrated one."""
        return float((self.greedy_action == self.demonstrated_action).mean())

    @property
    def shortfall(self) -> float:
        """The mean of h(return) - max f: positive while values have not arrived."""
        return float((self.transformed_return - self.max_value).mean())

    @property
    def noise(self) -> float:
        """The median size of the one-step error."""
        return float(np.median(np.abs(self.one_step_error))) if len(self.one_step_error) else 0.0


def values_along_episode(
    q_function: QFunction, episode: Episode, stack: int, config: Config, transform: ValueTransform
) -> DemonstrationValues:
    """Evaluate a Q function, which gives values of this transform, at every step of an episode."""
    q = torch.from_numpy(
        np.concatenate([q_function(x) for x in observation_batches(episode, stack)])
    ).double()
    if not q.isfinite().all():
        raise CheckpointError("the network's values are not finite: choose another checkpoint")
    h, h_inv = transform
    gamma = config.learner.gamma
    rewards = REWARD_TRANSFORMS[config.environment.reward_transform](
        torch.from_numpy(episode.rewards).double()
    )
    mark = torch.zeros(len(episode) + 1, dtype=torch.uint8)
    mark[-1] = TRUNCATED  # what follows the demonstration is not known
    padded = torch.cat([rewards, rewards.new_zeros(1)])
    returns = discounted_returns(padded, mark, gamma)[:-1]
    actions = torch.from_numpy(episode.actions.astype(np.int64))[:, None]
    max_value, demonstrated = q.max(-1).values, q.gather(1, actions)[:, 0]
    target = h(rewards[:-1] + gamma * h_inv(max_value[1:]))
    arrays = (
        actions[:, 0],
        q.argmax(-1),
        max_value,
        demonstrated,
        q.scatter(1, actions, -torch.inf).max(-1).values,
        h(returns),
        h_inv(max_value),
        h_inv(demonstrated),
        returns,
        demonstrated[:-1] - target,
    )
    return DemonstrationValues(*(array.numpy() for array in arrays))


def observation_batches(episode: Episode, stack: int) -> Iterator[np.ndarray]:
    """The stacked observations of all steps of an episode, a batch at a time."""
    for start in range(0, len(episode), BATCH_SIZE):
        steps = np.arange(start, min(start + BATCH_SIZE, len(episode)))
        yield stack_observations(episode.planes, steps, stack)


def stack_observations(planes: np.ndarray, steps: np.ndarray, stack: int) -> np.ndarray:
    """The stacked observations at these steps [m, ...]; planes before the first are blank."""
    indices = steps[:, None] + np.arange(1 - stack, 1)
    stacked = planes[np.maximum(indices, 0)]
    stacked[indices < 0] = 0
    return stacked.reshape(len(steps), -1, *planes.shape[2:])
