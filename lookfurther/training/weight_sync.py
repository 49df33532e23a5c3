"""The learner's weights on their way to the actors."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lookfurther.master_weights import MasterWeights
from lookfurther.training.launch_limit import MAX_AHEAD


class WeightSync:
    """Gives actors new weights; on a GPU neither they nor the learner wait for that.

    There Python is up to AHEAD turns ahead of the learner, whose weights exist only when it has
    caught up. They are copied aside in its own time, and taken when that is sure to be done.
    """

    def __init__(self, weights: MasterWeights, streams: Sequence[Any]) -> None:
        self.actor_weights, self.actor_streams = weights, list(streams)  # of the actors
        self.ticks_left = 0  # until the actors take what is aside
        if self.actor_streams:
            self.pending_weights = MasterWeights(copy.deepcopy(weights.network), torch.float32)
            self.published_event, self.applied_event = torch.cuda.Event(), torch.cuda.Event()

    def publish(self, weights: MasterWeights) -> None:
        """The learner's weights, as they are once its work so far is done."""
        if not self.actor_streams:
            self.actor_weights.copy_(weights)
            return
        if self.ticks_left:
            self._apply()
        torch.cuda.current_stream().wait_event(self.applied_event)
        self.pending_weights.copy_(weights)
        self.published_event.record()
        self.ticks_left = MAX_AHEAD + 1

    def tick(self) -> None:
        """A turn of the loop begins."""
        if self.ticks_left:
            self.ticks_left -= 1
            if not self.ticks_left:
                self._apply()

    def _apply(self) -> None:
        own, *others = self.actor_streams
        own.wait_event(self.published_event)
        for stream in others:  # it may be reading the old ones
            own.wait_stream(stream)
        with torch.cuda.stream(own):
            self.actor_weights.copy_(self.pending_weights)
            self.applied_event.record()
        for stream in others:
            stream.wait_event(self.applied_event)

    def state(self) -> dict[str, Tensor]:
        """The actors' weights, for a checkpoint, and those aside."""
        found = {f"network.{k}": v for k, v in self.actor_weights.network.state_dict().items()}
        if self.ticks_left:
            found |= {f"aside.{k}": v for k, v in self.pending_weights.network.state_dict().items()}
            found["turns_left"] = torch.tensor(self.ticks_left)
        return found

    def load_state(self, state: dict[str, Tensor]) -> None:
        """The inverse of `state`; without a GPU what is aside is taken at once."""
        parts = {name: select_prefix(state, name) for name in ("network", "aside")}
        self.actor_weights.load_state_dict(parts["network"])
        if parts["aside"]:
            (self.pending_weights if self.actor_streams else self.actor_weights).load_state_dict(
                parts["aside"]
            )
        self.ticks_left = int(state["turns_left"]) if parts["aside"] and self.actor_streams else 0
        if self.actor_streams:
            torch.cuda.synchronize()


def select_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix.`, without it."""
    return {
        name.removeprefix(f"{prefix}."): value
        for name, value in tensors.items()
        if name.startswith(f"{prefix}.")
    }
