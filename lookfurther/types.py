"""The data passed between environments, actors, replay and learner, with shapes and units.

Letters: m lanes (parallel environments), k steps in a chunk, B items in a batch, H horizons.
Environments produce NumPy arrays; the actor and everything after it use tensors.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

    Array = np.ndarray | Tensor

# Marks of one slot, combined by |.
FIRST = 1  # x_t opens an episode
TERMINAL = 2  # x_t is terminal: no action follows, no bootstrapping from it
TRUNCATED = 4  # x_t is the last observation but not terminal: bootstrap from it
BEST = 8  # x_t belongs to the best expert episode (the paper's e_i = 1)
END = TERMINAL | TRUNCATED

MAX_ACTIONS = 2**16
MAX_SIZE = 2**31  # limit of the sizes in a Spec and of the values in an observation


class Spec(NamedTuple):
    """Observations and actions of an environment, after its adaptation.

    An observation is `stack` planes concatenated along their first axis: 4 planes of (1, 84, 84)
    make the (4, 84, 84) of Atari, one plane of (D,) makes a vector observation.
    """

    env: str
    plane: tuple[int, ...]
    stack: int
    dtype: str  # "uint8" or "float32"
    actions: int
    high: float  # the largest value of an integer plane (networks divide by it); 1 for floats

    @classmethod
    def from_dict(cls, data: Any) -> Spec:
        """The inverse of `_asdict`, after JSON; raises a ValueError for other data."""
        match data:
            case {"plane": [*plane], **rest} if set(rest) == set(cls._fields) - {"plane"}:
                spec = cls(plane=tuple(plane), **rest)
                if spec.is_valid():
                    return spec
            case _:
                pass
        raise ValueError("not a Spec")

    def is_valid(self) -> bool:
        """Whether every field has its type and a size that is possible for tensors."""
        sizes = (*self.plane, self.stack, self.actions)
        return (
            type(self.env) is str
            and self.dtype in ("uint8", "float32")
            and type(self.high) in (int, float)
            and 0 < self.high < math.inf
            and 1 <= len(self.plane) <= 3
            and all(type(size) is int and 0 < size < MAX_SIZE for size in sizes)
            and self.actions <= MAX_ACTIONS
            and math.prod(self.observation_shape) < MAX_SIZE
        )

    @property
    def observation_shape(self) -> tuple[int, ...]:
        return (self.stack * self.plane[0], *self.plane[1:])


class Step(NamedTuple):
    """The response of m environments. The step after an end is a reset and ignores its action."""

    observation: np.ndarray  # [m, *spec.observation_shape]
    reward: np.ndarray  # [m] float32, for the action just sent; 0 on a reset
    terminal: np.ndarray  # [m] bool: `observation` is terminal
    truncated: np.ndarray  # [m] bool: `observation` is the last one, but not terminal
    first: np.ndarray  # [m] bool: `observation` opens an episode
    dropped: np.ndarray  # [m] bool: the episode before this `first` failed and is discarded


class Chunk(NamedTuple):
    """k consecutive slots of m lanes, and the priorities of slots max(horizons) before them.

    An item needs its successor in the replay before it may be sampled, so the priorities of a
    slot are sent max(horizons) slots later. An item of priority 0 is never sampled.
    """

    plane: Array  # [k, m, *spec.plane]: the newest plane of x_t
    action: Array  # [k, m] int64: a_t
    reward: Array  # [k, m] float32: the reward for a_t
    mark: Array  # [k, m] uint8
    priority: Array  # [k, m, H] float32, of the slots t - max(horizons)
    # [m] int64: how many of the newest slots in the replay become unsamplable.
    invalidate_newest: np.ndarray


class Batch(NamedTuple):
    """B transitions t_i = (x_i, a_i, r'_i, x'_i, e_i) of mixed horizons (Sec. 3.4)."""

    x_both: Tensor  # [2, B, *spec.observation_shape]: x, then x', one block for one forward pass
    a: Tensor  # [B] int64
    r: Tensor  # [B] float32: sum of gamma^j r_{t+j+1} over the steps taken
    discount: Tensor  # [B] float32: gamma^steps, 0 if x' is terminal
    e: Tensor  # [B] float32: 1 if part of the best expert episode
    floor: Tensor  # [B] float32: a lower bound of V*(x'), not transformed; -inf if unknown
    a_next: Tensor  # [B] int64: the action recorded at x'
    w: Tensor  # [B] float32: importance weights, with a maximum of 1 for each replay
    item: Tensor  # [B] int64: the item in its replay, for the new priority

    @property
    def x(self) -> Tensor:
        return self.x_both[0]

    @property
    def x_next(self) -> Tensor:
        return self.x_both[1]
