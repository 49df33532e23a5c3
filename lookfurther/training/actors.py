"""Experience from environments of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lookfurther.actor import Actor
from lookfurther.envs import Envs
from lookfurther.gpu.graphs import Captured
from lookfurther.master_weights import Weights
from lookfurther.training.metrics import Returns
from lookfurther.training.signals import EnvironmentCode
from lookfurther.training.weight_sync import Handover, under
from lookfurther.types import Chunk, Step


class Group:
    """Lanes that step together: their environments, their actor, and what they saw last.

    On a GPU the actor has a stream of its own that goes before the learner's.
    """

    def __init__(self, envs: Envs, actor: Actor, truncation: np.ndarray | None = None) -> None:
        self.envs, self.actor = envs, actor
        self.environment_code = EnvironmentCode()
        self.stepping = False  # actions were sent, and the answer has not come
        # Steps until a lane's episode is truncated [m]; 0: never.
        self.first_truncation = np.zeros(envs.lanes, np.int64) if truncation is None else truncation
        self.truncate_in = self.first_truncation
        self.choose = Captured(actor.choose, actor.device, [actor.generator], urgent=True)
        self.close = Captured(actor.close, actor.device, urgent=True)
        self.cuda = actor.device.type == "cuda"
        self.stream: Any = None
        if self.cuda:
            self.stream = torch.cuda.Stream(actor.device, priority=-1)
            self.chosen = torch.cuda.Event(blocking=True)
            self.read = torch.cuda.Event()
            self.actions = torch.empty_like(actor.slot["action"], device="cpu", pin_memory=True)
        self.step = envs.reset()
        with self.beside():
            actor.load(self.step)

    def resume(self, step: Step, going: np.ndarray) -> None:
        """Take up a checkpoint's observations; lanes that do not go on have begun anew."""
        self.step = step
        with self.beside():
            self.actor.show(step)
            self.actor.cut(~going)
        self.actor.length = np.where(going, self.actor.length, 1)
        self.truncate_in = np.where(going, self.truncate_in, self.first_truncation)

    def start(self) -> None:
        """Act on the last observations; environments step on their own from here."""
        with self.beside():
            self.choose()
            if self.cuda:
                self.actions.copy_(self.actor.slot["action"], non_blocking=True)
                self.chosen.record(self.stream)
        if self.cuda:
            self.chosen.synchronize()
        actions = self.actions if self.cuda else self.actor.slot["action"]
        self.stepping = True
        with self.environment_code:
            self.envs.send(actions.numpy())

    def collect(self) -> Chunk:
        """Wait for the environments and hand over the slot that is now complete."""
        with self.environment_code:
            self.step = self._with_truncations(self.envs.recv())
        self.stepping = False
        with self.beside():
            self.actor.load(self.step)
            if self.cuda:
                self.stream.wait_event(self.read)
            self.close()
        if self.cuda:  # what reads the chunk comes after what wrote it
            torch.cuda.current_stream().wait_stream(self.stream)
        return self.actor.chunk()

    def envs_state(self) -> dict[str, np.ndarray]:
        """What takes up the episodes in flight; nothing where that is not possible."""
        if self.stepping:
            return {}
        self.stepping = True  # unless the environments answer
        with self.environment_code:
            state = self.envs.state()
        self.stepping = False
        return state

    def _with_truncations(self, step: Step) -> Step:
        """The environments' answer, after the truncations that are due."""
        over = step.terminal | step.truncated
        due = (self.truncate_in == 1) & ~(over | step.first)
        # A lane that has just begun is truncated one step later.
        counted = self.truncate_in - ((self.truncate_in > 1) | ~step.first)
        self.truncate_in = np.maximum(counted, 0)
        return self.envs.truncate(due) if due.any() else step

    def beside(self) -> AbstractContextManager[Any]:
        """The actor's own stream."""
        return torch.cuda.stream(self.stream) if self.cuda else nullcontext()

    def release(self) -> None:
        """The chunk handed over has been read: `close` may write its place again."""
        if self.cuda:
            self.read.record()


class LocalSource:
    """The source of Chunks: start a step, collect what came of another, take new weights.

    With several groups of lanes one acts while the others' environments step.
    """

    def __init__(self, groups: Sequence[Group], weights: Weights) -> None:
        self.groups = list(groups)
        self.handover = Handover(weights, [group.stream for group in self.groups if group.cuda])
        self.lanes = sum(len(group.actor.lanes) for group in self.groups)
        self.returns = Returns(self.lanes)
        self.turn = 0  # whose turn it is to act
        self.begun = False

    def start(self) -> None:
        """Let the group whose turn it is act."""
        self.handover.turn()
        if not self.begun:  # the others must be stepping when they are waited for
            for group in self.groups[1:]:
                group.start()
            self.begun = True
        self.groups[self.turn].start()

    def collect(self) -> tuple[Chunk, Group]:
        """The next group's slot, and the group."""
        self.turn = (self.turn + 1) % len(self.groups)
        group = self.groups[self.turn]
        chunk = group.collect()
        self.returns.add(group.step, group.actor.lanes)
        return chunk, group

    def load_weights(self, weights: Weights) -> None:
        """Act with these weights from the next step on, or soon."""
        self.handover.give(weights)

    @property
    def sound(self) -> bool:
        """Whether every value and n-step return was finite; on a GPU this waits for them."""
        return all(bool(group.actor.sound) for group in self.groups)

    @property
    def replacements(self) -> list[str]:
        """A line for each worker process that was lost and replaced."""
        return [line for group in self.groups for line in group.envs.replacements]

    def low_epsilon(self) -> np.ndarray:
        """The least exploring quarter of the lanes."""
        epsilon = torch.cat([group.actor.epsilon for group in self.groups])
        order = torch.argsort(epsilon, stable=True).cpu().numpy()
        return order[: max(1, len(order) // 4)]

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Everything, for a checkpoint, as far as environments can give their state."""
        files: dict[str, dict[str, Tensor]] = {"actor": {}, "envs": {}}
        for i, group in enumerate(self.groups):
            files["actor"] |= {f"{i}.{k}": v for k, v in group.actor.state().items()}
            files["actor"][f"{i}.truncate_in"] = _tensor(group.truncate_in)
            envs = group.envs_state()
            files["envs"] |= {f"{i}.{k}": _tensor(v) for k, v in envs.items()}
        files["actor"] |= self.handover.state()
        files["returns"] = {k: _tensor(v) for k, v in self.returns.state().items()}
        return files

    def load_state(self, state: dict[str, dict[str, Tensor]]) -> int:
        """The inverse of `state`; gives the number of lanes whose episode could not go on."""
        self.returns.load_state({key: value.numpy() for key, value in state["returns"].items()})
        self.handover.load_state(state["actor"])
        going = np.zeros(self.lanes, bool)
        for i, group in enumerate(self.groups):
            if actor := under(state["actor"], str(i)):
                group.actor.load_state(actor)
                group.truncate_in = actor["truncate_in"].numpy().copy()
            lanes = slice(group.actor.lanes.start, group.actor.lanes.stop)
            if envs := under(state["envs"], str(i)):
                step, going[lanes] = group.envs.restore({k: v.numpy() for k, v in envs.items()})
            else:  # these cannot be taken up, or were saved when one failed
                step = group.envs.reset()
            group.resume(step, going[lanes])
        self.returns.cut(~going)
        return int((~going).sum())


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))
