"""The rewards of an episode next to those of a demonstration, in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from lookfurther.system.formatting import format_number, pluralize


class EarnedReward(NamedTuple):
    """A reward other than 0."""

    step: int  # that earned it
    reward: float


class RewardOrder(NamedTuple):
    """How far an episode earns the rewards of a demonstration in the same order."""

    shared_rewards: int  # the same rewards from the start on
    next_reward: EarnedReward | None  # of the episode after them; None: it earns no more
    demonstrated_reward: EarnedReward | None  # of the demonstration instead; None: it has no more

    @property
    def difference(self) -> tuple[int, float, float]:
        """Equal for episodes that differ from the demonstration in the same way."""
        next_reward, demonstrated = (reward.reward if reward else 0.0 for reward in self[1:])
        return self.shared_rewards, next_reward, demonstrated


def find_rewards(rewards: Sequence[float]) -> list[EarnedReward]:
    """The rewards of an episode [T] that are not 0, in single precision as demonstrations are."""
    return [EarnedReward(step, float(np.float32(r))) for step, r in enumerate(rewards) if r]


def compare_rewards(rewards: Sequence[float], demonstrated: Sequence[float]) -> RewardOrder:
    """The rewards [T] of an episode next to those of a demonstration, whatever their steps."""
    shared = 0
    for own, other in zip_longest(find_rewards(rewards), find_rewards(demonstrated)):
        if own is None or other is None or own.reward != other.reward:
            return RewardOrder(shared, own, other)
        shared += 1
    return RewardOrder(shared, None, None)


def describe_orders(orders: Sequence[RewardOrder]) -> str:
    """The most frequent way in which episodes differ from the demonstration, as one line."""
    [(difference, count)] = Counter(order.difference for order in orders).most_common(1)
    order = next(order for order in orders if order.difference == difference)
    rewards = pluralize(order.shared_rewards, "reward")
    return (
        f"{count} of {len(orders)} episodes: {rewards} as demonstrated,"
        f" then {format_reward(order.next_reward)},"
        f" demonstration {format_reward(order.demonstrated_reward)}"
    )


def format_reward(reward: EarnedReward | None) -> str:
    return f"{format_number(reward.reward)} at step {reward.step:,}" if reward else "none"
