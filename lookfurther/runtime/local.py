"""Experience from environments of this machine."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from lookfurther.actor import Actor
from lookfurther.envs import Envs
from lookfurther.runtime.metrics import Returns
from lookfurther.types import Chunk, Step


class LocalSource:
    """The source of Chunks: start a step everywhere, collect what came of it, take new weights."""

    def __init__(self, envs: Envs, actor: Actor) -> None:
        self.envs, self.actor = envs, actor
        self.returns = Returns(envs.lanes)
        self.step: Step = envs.reset()

    def start(self) -> None:
        """Act on the last observations; environments step on their own from here."""
        self.envs.send(self.actor.act(self.step))

    def collect(self) -> Chunk:
        """Wait for the environments and hand over the slot that is now complete."""
        self.step = self.envs.recv()
        self.returns.add(self.step)
        return self.actor.observe(self.step)

    def load_weights(self, network: nn.Module) -> None:
        """Act with this network's weights from the next step on."""
        self.actor.network.load_state_dict(network.state_dict())

    def low_epsilon(self) -> np.ndarray:
        """The least exploring quarter of the lanes."""
        order = torch.argsort(self.actor.epsilon, stable=True).cpu().numpy()
        return order[: max(1, len(order) // 4)]

    def state(self, in_flight: bool = True) -> dict[str, dict[str, Tensor]]:
        """Everything, for a checkpoint; without `in_flight`, all but the environments."""
        arrays = {"envs": self.envs.state() if in_flight else {}, "returns": self.returns.state()}
        tensors = {
            name: {key: torch.from_numpy(np.ascontiguousarray(a)) for key, a in state.items()}
            for name, state in arrays.items()
        }
        return {"actor": self.actor.state(), **tensors}

    def load_state(self, state: dict[str, dict[str, Tensor]]) -> int:
        """The inverse of `state`; gives the number of lanes whose episode could not go on."""
        self.actor.load_state(state["actor"])
        self.returns.load_state({key: value.numpy() for key, value in state["returns"].items()})
        going = np.zeros(self.envs.lanes, bool)
        if state["envs"]:
            self.step, going = self.envs.restore({k: v.numpy() for k, v in state["envs"].items()})
        else:  # saved when an environment failed
            self.step = self.envs.reset()
        self.actor.cut(~going)
        self.returns.cut(~going)
        return int((~going).sum())
