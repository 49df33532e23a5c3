"""The learner's weights on their way to the actors."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lookfurther.gpu.graphs import AHEAD
from lookfurther.master_weights import Weights


class Handover:
    """Gives actors new weights; on a GPU neither they nor the learner wait for that.

    There Python is up to AHEAD turns ahead of the learner, whose weights exist only when it has
    caught up. They are copied aside in its own time, and taken when that is sure to be done.
    """

    def __init__(self, weights: Weights, streams: Sequence[Any]) -> None:
        self.weights, self.streams = weights, list(streams)  # of the actors
        self.turns_left = 0  # until the actors take what is aside
        if self.streams:
            self.aside = Weights(copy.deepcopy(weights.network), torch.float32)
            self.put, self.taken = torch.cuda.Event(), torch.cuda.Event()

    def give(self, weights: Weights) -> None:
        """The learner's weights, as they are once its work so far is done."""
        if not self.streams:
            self.weights.copy_(weights)
            return
        if self.turns_left:
            self._take()
        torch.cuda.current_stream().wait_event(self.taken)
        self.aside.copy_(weights)
        self.put.record()
        self.turns_left = AHEAD + 1

    def turn(self) -> None:
        """A turn of the loop begins."""
        if self.turns_left:
            self.turns_left -= 1
            if not self.turns_left:
                self._take()

    def _take(self) -> None:
        own, *others = self.streams
        own.wait_event(self.put)
        for stream in others:  # it may be reading the old ones
            own.wait_stream(stream)
        with torch.cuda.stream(own):
            self.weights.copy_(self.aside)
            self.taken.record()
        for stream in others:
            stream.wait_event(self.taken)

    def state(self) -> dict[str, Tensor]:
        """The actors' weights, for a checkpoint, and those aside."""
        found = {f"network.{k}": v for k, v in self.weights.network.state_dict().items()}
        if self.turns_left:
            found |= {f"aside.{k}": v for k, v in self.aside.network.state_dict().items()}
            found["turns_left"] = torch.tensor(self.turns_left)
        return found

    def load_state(self, state: dict[str, Tensor]) -> None:
        """The inverse of `state`; without a GPU what is aside is taken at once."""
        parts = {name: under(state, name) for name in ("network", "aside")}
        self.weights.load_state_dict(parts["network"])
        if parts["aside"]:
            (self.aside if self.streams else self.weights).load_state_dict(parts["aside"])
        self.turns_left = int(state["turns_left"]) if parts["aside"] and self.streams else 0
        if self.streams:
            torch.cuda.synchronize()


def under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix.`, without it."""
    return {
        name.removeprefix(f"{prefix}."): value
        for name, value in tensors.items()
        if name.startswith(f"{prefix}.")
    }
