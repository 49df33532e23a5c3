"""Actors as Ray actors. Only `--cluster` and `cluster check` import the modules that need Ray."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import ray
from ray import exceptions

from lookfurther.errors import EnvironmentFault, LookFurtherError
from lookfurther.training.cluster.backend import ActorLost
from lookfurther.training.cluster.messages import PlayRequest
from lookfurther.training.cluster.remote_actor import ActorSetup, RemoteActor


class RayActor(RemoteActor):
    """A RemoteActor that knows its node."""

    def locate(self) -> str:
        """The id of this actor's node."""
        return ray.get_runtime_context().get_node_id()


class RayBackend:
    """The `ActorBackend` of the Ray cluster that this process is connected to.

    Ray neither restarts an actor nor repeats a call, because a new actor must know that it is new.
    """

    def __init__(self, setup: ActorSetup) -> None:
        self.local_node = ray.get_runtime_context().get_node_id()
        self._setup = ray.put(setup)
        self._actor_class: Any = ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)(
            RayActor
        )

    def launch_actor(self, index: int, incarnation: int) -> Any:
        return self._actor_class.remote(self._setup, index, incarnation)

    def locate(self, actor: Any) -> Hashable:
        return actor.locate.remote()

    def play(self, actor: Any, request: PlayRequest, weights: Any) -> Hashable:
        return actor.play.remote(request, weights)

    def put_weights(self, weights: Mapping[str, np.ndarray]) -> Any:
        return ray.put(dict(weights))

    def wait_any(self, calls: Sequence[Hashable], timeout: float) -> Any | None:
        ready, _ = ray.wait(list(calls), num_returns=1, timeout=timeout)
        return ready[0] if ready else None

    def fetch(self, call: Any) -> Any:
        try:
            return ray.get(call)
        except exceptions.RayTaskError as error:
            if isinstance(error.cause, LookFurtherError):
                raise error.cause from None
            reason = f"{type(error.cause).__name__}: {error.cause}"
            raise EnvironmentFault(f"an actor of the cluster failed: {reason}") from error
        except exceptions.ActorUnavailableError:
            raise ActorLost("cannot be reached") from None
        except exceptions.RayActorError:
            raise ActorLost("died") from None
        except exceptions.RayError as error:  # for example, its node took a chunk along
            raise ActorLost(f"failed ({type(error).__name__})") from None

    def kill_actor(self, actor: Any) -> None:
        ray.kill(actor, no_restart=True)
