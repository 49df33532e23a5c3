"""What `ClusterSource` needs from the system that runs its actors."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from lookfurther.training.cluster.messages import PlayRequest


class ActorLost(Exception):
    """An actor's process or node is gone; the message completes "the actor ..."."""


class ActorBackend(Protocol):
    """Starts, calls and ends actors. A call is a handle of an answer that arrives later.

    The calls of one actor run one after another, in the order in which they were made, and each
    runs at most once.
    """

    @property
    def local_node(self) -> str:
        """The node of this process."""
        ...

    def launch_actor(self, index: int, incarnation: int) -> Any:
        """An actor for a range of lanes, which starts as soon as a node has a free core."""
        ...

    def locate(self, actor: Any) -> Hashable:
        """A call that returns the actor's node, as soon as it has one."""
        ...

    def play(self, actor: Any, request: PlayRequest, weights: Any) -> Hashable:
        """A call that returns a PlayedChunk; `weights` is from `put_weights`."""
        ...

    def put_weights(self, weights: Mapping[str, np.ndarray]) -> Any:
        """Make weights available to all actors; each node fetches them once."""
        ...

    def wait_any(self, calls: Sequence[Hashable], timeout: float) -> Any | None:
        """The first of the calls that is answered, or None after `timeout` seconds."""
        ...

    def fetch(self, call: Any) -> Any:
        """The answer of a call; raises ActorLost, or the error that the call raised."""
        ...

    def kill_actor(self, actor: Any) -> None:
        """End an actor at once, also if it hangs or is already lost."""
        ...
