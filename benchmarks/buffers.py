"""The replay buffers that benchmarks.replay compares, behind one interface."""

# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from benchmarks.synthetic_trajectories import (
    ACTIONS,
    BATCH,
    GAMMA,
    HORIZONS,
    PIXELS,
    SIDE,
    STACK,
    LaneStep,
    Transitions,
)

ALPHA, BETA = 0.6, 0.4


class Buffer(Protocol):
    """The interface of every candidate."""

    def add(self, moment: LaneStep) -> None: ...
    def sample(self) -> tuple[Transitions, np.ndarray, Any]:
        """A batch, its importance weights, and the item ids for `update`."""
        ...

    def update(self, item: Any, priority: np.ndarray) -> None: ...
    @property
    def bytes(self) -> int: ...


class LookFurtherBuffer:
    """lookfurther.replay.prioritized.Replay."""

    def __init__(self, steps: int, lanes: int) -> None:
        import torch

        from lookfurther import config, types
        from lookfurther.replay.prioritized import PrioritizedReplay

        self.torch, self.types = torch, types
        spec = types.Spec("synthetic", (1, SIDE, SIDE), STACK, "uint8", ACTIONS, 255.0)
        settings = config.ReplayConfig(capacity=steps, horizons=HORIZONS, alpha=ALPHA, beta=BETA)
        self.replay = PrioritizedReplay(spec, lanes, steps, settings, GAMMA)
        self.terminal = np.zeros((max(HORIZONS), lanes), bool)  # of the newest slots, oldest first
        self.none_invalidated = np.zeros(lanes, np.int64)

    def add(self, moment: LaneStep) -> None:
        mark = moment.first * self.types.FIRST + moment.terminal * self.types.TERMINAL
        due, self.terminal = self.terminal[0], np.vstack([self.terminal[1:], moment.terminal])
        chunk = self.types.Chunk(
            plane=moment.x[None, :, -1:],
            action=moment.action[None],
            reward=moment.reward[None],
            mark=mark.astype(np.uint8)[None],
            priority=np.where(due[:, None], np.float32(0), moment.priority)[None],
            invalidate_newest=self.none_invalidated,
        )
        self.replay.add(chunk)

    def sample(self) -> tuple[Transitions, Any, Any]:
        b = self.replay.sample(BATCH)
        return Transitions(b.x, b.a, b.r, b.discount, b.x_next), b.w, b.item

    def update(self, item: Any, priority: np.ndarray) -> None:
        self.replay.update_priorities(item, self.torch.from_numpy(priority))

    @property
    def bytes(self) -> int:
        return self.replay.num_bytes


class CpprbBuffer:
    """cpprb.PrioritizedReplayBuffer, two rows per step.

    Its memory compression (next_of, stack_compress) does not support n-step, so both stacks are
    stored in full. Two buffers, one per horizon, would need a copy to join the halves of a batch.
    """

    def __init__(self, steps: int, lanes: int) -> None:
        import cpprb

        image = {"shape": (STACK, SIDE, SIDE), "dtype": np.uint8}
        fields = {"x": image, "a": {"dtype": np.int64}, "r": {}, "discount": {}, "x_next": image}
        self.rows = len(HORIZONS) * steps
        self.buffer = cpprb.PrioritizedReplayBuffer(self.rows, fields, alpha=ALPHA)

    def add(self, moment: LaneStep) -> None:
        priority = moment.priority[~moment.terminal].T.reshape(-1)
        self.buffer.add(priorities=priority, **moment.rows._asdict())

    def sample(self) -> tuple[Transitions, Any, Any]:
        s = self.buffer.sample(BATCH, BETA)
        rows = Transitions(*(s[name] for name in Transitions._fields))
        return rows, s["weights"], s["indexes"]

    def update(self, item: Any, priority: np.ndarray) -> None:
        self.buffer.update_priorities(item, priority)

    @property
    def bytes(self) -> int:
        """The size of its fields; cpprb does not expose its two segment trees."""
        return self.rows * (2 * STACK * PIXELS + 8 + 4 + 4)


class TianshouBuffer:
    """tianshou.data.PrioritizedVectorReplayBuffer: stores planes once, stacks when sampling."""

    def __init__(self, steps: int, lanes: int) -> None:
        from tianshou.data import Batch, PrioritizedVectorReplayBuffer

        self.batch = Batch
        self.buffer: Any = PrioritizedVectorReplayBuffer(
            steps,
            lanes,
            alpha=ALPHA,
            beta=BETA,
            stack_num=STACK,
            ignore_obs_next=True,
            save_only_last_obs=True,
        )
        self.n = np.repeat(HORIZONS, BATCH // len(HORIZONS))

    def add(self, moment: LaneStep) -> None:
        on = np.flatnonzero(~moment.terminal)
        step = self.batch(
            obs=moment.x[on],
            act=moment.action[on],
            rew=moment.reward[on],
            terminated=moment.ends[on],
            truncated=np.zeros(len(on), bool),
        )
        self.buffer.add(step, buffer_ids=on)

    def sample(self) -> tuple[Transitions, Any, Any]:
        b = self.buffer
        index = b.sample_indices(BATCH)
        path = [index]
        for _ in range(max(HORIZONS) - 1):
            path.append(b.next(path[-1]))
        path = np.stack(path)  # an index repeats where its episode ended
        j = np.arange(len(path))[:, None]
        taken = j < self.n
        taken[1:] &= np.logical_and.accumulate(path[1:] != path[:-1])
        steps = taken.sum(0)
        last = path[steps - 1, np.arange(BATCH)]
        r = (taken * GAMMA**j * b.rew[path]).sum(0)
        discount = np.where(b.done[last], 0.0, GAMMA**steps)
        x, x_next = b.get(index, "obs"), b.get(b.next(last), "obs")
        weight = b.get_weight(index)
        return Transitions(x, b.act[index], r, discount, x_next), weight / weight.max(), index

    def update(self, item: Any, priority: np.ndarray) -> None:
        self.buffer.update_weight(item, priority)

    @property
    def bytes(self) -> int:
        fields = self.buffer._meta.values()
        arrays = [field for field in fields if isinstance(field, np.ndarray)]
        return sum(a.nbytes for a in arrays) + self.buffer.weight._value.nbytes


class TorchRLBuffer:
    """torchrl.data.TensorDictPrioritizedReplayBuffer on LazyTensorStorage, two rows per step.

    Stacks are stored as int64 words: torch gathers single bytes seven times more slowly.
    """

    def __init__(self, steps: int, lanes: int) -> None:
        import torch
        import torchrl._torchrl  # noqa: F401  # its trees are in C++ and fit one torch only
        from tensordict import TensorDict
        from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer

        self.torch, self.dict = torch, TensorDict
        self.buffer: Any = TensorDictPrioritizedReplayBuffer(
            alpha=ALPHA,
            beta=BETA,
            storage=LazyTensorStorage(len(HORIZONS) * steps),
            batch_size=BATCH,
        )

    def add(self, moment: LaneStep) -> None:
        priority = moment.priority[~moment.terminal].T.reshape(-1)
        fields = {name: self.torch.from_numpy(v) for name, v in moment.rows._asdict().items()}
        for name in ("x", "x_next"):
            fields[name] = fields[name].flatten(1).view(self.torch.int64)
        fields["td_error"] = self.torch.from_numpy(priority)
        self.buffer.extend(self.dict(fields, [len(priority)]))

    def sample(self) -> tuple[Transitions, Any, Any]:
        s = self.buffer.sample()
        x, x_next = (
            s[name].view(self.torch.uint8).view(BATCH, STACK, SIDE, SIDE)
            for name in ("x", "x_next")
        )
        rows = Transitions(x, s["a"], s["r"], s["discount"], x_next)
        return rows, s["priority_weight"], s["index"]

    def update(self, item: Any, priority: np.ndarray) -> None:
        self.buffer.update_priority(item, self.torch.from_numpy(priority))

    @property
    def bytes(self) -> int:
        return self.buffer._storage._storage.bytes()


BUFFERS = {
    "lookfurther": LookFurtherBuffer,
    "cpprb": CpprbBuffer,
    "tianshou": TianshouBuffer,
    "torchrl": TorchRLBuffer,
}
