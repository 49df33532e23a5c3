"""Copies the learner's weights to the actors."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lookfurther.master_weights import MasterWeights
from lookfurther.training.launch_limit import MAX_AHEAD


class WeightSync:
    """Gives actors new weights; on a GPU neither the actors nor the learner wait for it.

    On a GPU, Python is up to MAX_AHEAD iterations ahead of the learner, so the new weights are not
    ready yet. The learner's stream copies them to `pending_weights`. The actors take them
    MAX_AHEAD + 1 iterations later, when this copy is certainly done.
    """

    def __init__(self, weights: MasterWeights, streams: Sequence[Any]) -> None:
        self.actor_weights, self.actor_streams = weights, list(streams)
        self.ticks_left = 0  # until the actors take the pending weights
        if self.actor_streams:
            self.pending_weights = MasterWeights(copy.deepcopy(weights.network), torch.float32)
            self.published_event, self.applied_event = torch.cuda.Event(), torch.cuda.Event()

    def publish(self, weights: MasterWeights) -> None:
        """Give the actors the learner's weights as they are after all work launched so far."""
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
        """Count an iteration of the training loop."""
        if self.ticks_left:
            self.ticks_left -= 1
            if not self.ticks_left:
                self._apply()

    def _apply(self) -> None:
        own, *others = self.actor_streams
        own.wait_event(self.published_event)
        for stream in others:  # they may be reading the old weights
            own.wait_stream(stream)
        with torch.cuda.stream(own):
            self.actor_weights.copy_(self.pending_weights)
            self.applied_event.record()
        for stream in others:
            stream.wait_event(self.applied_event)

    def state(self) -> dict[str, Tensor]:
        """The actors' weights and the pending ones, for a checkpoint."""
        state = {f"network.{k}": v for k, v in self.actor_weights.network.state_dict().items()}
        if self.ticks_left:
            state |= {f"aside.{k}": v for k, v in self.pending_weights.network.state_dict().items()}
            state["turns_left"] = torch.tensor(self.ticks_left)
        return state

    def load_state(self, state: dict[str, Tensor]) -> None:
        """The inverse of `state`; without a GPU the pending weights are applied at once."""
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
    """The tensors whose names begin with `prefix.`, with the prefix removed."""
    return {
        name.removeprefix(f"{prefix}."): value
        for name, value in tensors.items()
        if name.startswith(f"{prefix}.")
    }
