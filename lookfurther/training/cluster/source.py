"""The source of chunks whose actors run on the nodes of a cluster."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lookfurther.errors import ClusterFault
from lookfurther.exploration import initial_epsilons
from lookfurther.master_weights import MasterWeights
from lookfurther.networks.dueling import load_network_weights
from lookfurther.replay.prioritized import PrioritizedReplay
from lookfurther.training.cluster.backend import ActorBackend, ActorLost
from lookfurther.training.cluster.lane_ranges import select_epsilons, split_lanes
from lookfurther.training.cluster.messages import (
    PlayedChunk,
    PlayRequest,
    pack_weights,
    unpack_chunk,
    unpack_steps,
    unpack_weights,
)
from lookfurther.training.cluster.options import ClusterOptions
from lookfurther.training.cluster.remote_actor import ActorSetup
from lookfurther.training.monitoring.episode_stats import EpisodeStats
from lookfurther.training.signals import EnvCallTracker
from lookfurther.training.weight_sync import select_prefix

POLL_SECONDS = 0.5  # between two checks for hanging actors
START_SECONDS = 120.0  # more for an actor's first chunk: imports and environments


@dataclass
class Lease:
    """A range of lanes and the actor that plays them."""

    index: int
    lanes: range
    incarnation: int = 0  # actors that had these lanes before
    actor: Any = None
    node: str = ""  # of the actor; empty until it has one
    calls: deque[Hashable] = field(default_factory=deque)  # not answered, oldest first
    answered_at: float = 0.0  # the last answer, or the first call after it
    next_sequence: int = 0  # of the actor's chunks
    failures: int = 0  # actors lost since the last chunk

    def __str__(self) -> str:
        return f"actor of lanes {self.lanes.start} to {self.lanes.stop - 1}"


class ClusterSource:
    """Leases ranges of lanes to actors and collects their chunks.

    An actor works only when called, and has at most `calls_per_actor` calls: a slow learner slows
    the actors down, and memory is bounded. An actor that is lost or hangs is replaced. Its
    unfinished chunk is lost, and no chunk is added twice.
    """

    def __init__(
        self,
        setup: ActorSetup,
        backend: ActorBackend,
        options: ClusterOptions,
        learner_weights: MasterWeights,
    ) -> None:
        self.setup, self.backend, self.options = setup, backend, options
        config = setup.config
        ranges = split_lanes(config.actor.lanes, setup.ranges)
        self.leases = [Lease(index, lanes) for index, lanes in enumerate(ranges)]
        self.lease_order = deque(self.leases)  # the one that was served last is the last
        self.turn = 0
        epsilons = initial_epsilons(
            config.actor.epsilon_schedule, config.actor.lanes, config.actor.epsilon_end
        )
        self.epsilons = torch.cat(
            [select_epsilons(epsilons, i, len(ranges)) for i in range(len(ranges))]
        )
        self.common_epsilon: float | None = None  # of all lanes, instead of their own
        self.episode_stats = EpisodeStats(config.actor.lanes)
        self.env_calls = [EnvCallTracker()]
        self.is_finite = True
        self.worker_replacements: list[str] = []
        self.discarded_chunks = 0
        self.weights_ages: list[float] = []
        self.weights_version, self.weights_time = -1, 0.0
        self._send_weights(learner_weights.network.state_dict())

    # Collecting chunks

    def connect_replay(self, replay: PrioritizedReplay) -> None:
        """Add chunks to this replay."""
        self.replay = replay
        # A chunk must not overwrite the slots whose priorities it carries.
        longest = (replay.slots_per_lane - replay.max_horizon - replay.spec.stack) // 2
        self.max_steps = max(
            1, min(self.options.steps_per_chunk // len(self.leases[0].lanes), longest)
        )

    def start_step(self) -> None:
        """Launch actors that are missing, and ask all others for more."""
        for lease in self.leases:
            if lease.actor is None:
                self._launch_actor(lease)
            self._top_up(lease)

    def collect_chunk(self) -> None:
        """Wait for the next chunk, and replace the actors that are lost."""
        self.turn = (self.turn + 1) % len(self.leases)
        waiting_since = time.monotonic()
        with self.env_calls[0]:
            while not self._receive_answer():
                self._raise_if_unplaced(waiting_since)

    def add_chunk(self) -> None:
        """Add the collected chunk to the replay."""
        self.replay.add(self.chunk, self.chunk_lanes.start)

    def _receive_answer(self) -> bool:
        """Handle the next answer of any actor; returns whether it is a chunk to add."""
        awaited = {lease.calls[0]: lease for lease in self._awaited_leases() if lease.calls}
        call = self.backend.wait_any(list(awaited), POLL_SECONDS)
        self._replace_hanging()
        if call is None or call not in (lease.calls[0] for lease in self.leases if lease.calls):
            return False
        lease = awaited[call]
        lease.calls.popleft()
        try:
            answer = self.backend.fetch(call)
        except ActorLost as error:
            self._replace_actor(lease, str(error))
            return False
        lease.answered_at = time.monotonic()
        if not lease.node:
            lease.node = answer
            self._top_up(lease)
            return False
        return self._accept_chunk(lease, answer)

    def _awaited_leases(self) -> list[Lease]:
        """The leases whose next answer is needed, those that waited longest first."""
        if not self.options.asks_in_turn:
            return list(self.lease_order)
        return [lease for lease in self.leases if not lease.node] or [self.leases[self.turn]]

    def _accept_chunk(self, lease: Lease, played: PlayedChunk) -> bool:
        """Take a chunk if it is the next one of its lanes."""
        if played.incarnation != lease.incarnation or played.sequence < lease.next_sequence:
            self.discarded_chunks += 1
            return False
        if played.sequence > lease.next_sequence:
            self._replace_actor(lease, "lost a chunk")
            return False
        lease.next_sequence += 1
        lease.failures = 0
        self.lease_order.remove(lease)
        self.lease_order.append(lease)
        self.episode_stats.add_steps(unpack_steps(played), lease.lanes)
        self.is_finite &= played.is_finite
        self.worker_replacements += played.replacements
        self.weights_ages.append(time.monotonic() - played.weights_time)
        self.chunk, self.chunk_lanes = unpack_chunk(played, self.replay.spec), lease.lanes
        return True

    # Actors

    def _launch_actor(self, lease: Lease) -> None:
        lease.actor = self.backend.launch_actor(lease.index, lease.incarnation)
        lease.node, lease.next_sequence = "", 0
        lease.calls = deque([self.backend.locate(lease.actor)])

    def _top_up(self, lease: Lease) -> None:
        """Call an actor that has a core until it has enough calls."""
        while lease.node and len(lease.calls) < self.options.calls_per_actor:
            if not lease.calls:
                lease.answered_at = time.monotonic()
            is_remote = lease.node != self.backend.local_node
            request = PlayRequest(
                self.max_steps,
                self.weights_version,
                self.weights_time,
                is_remote,
                self.common_epsilon,
            )
            lease.calls.append(self.backend.play(lease.actor, request, self.weights_handle))

    def _replace_hanging(self) -> None:
        """Replace actors that have not answered within `environment.worker_timeout`.

        If this process was busy for longer, the answers are ready.
        """
        timeout, now = self.setup.config.environment.worker_timeout, time.monotonic()
        for lease in self.leases:
            limit = timeout + (0 if lease.next_sequence else START_SECONDS)
            is_late = lease.node and lease.calls and now - lease.answered_at > limit
            if timeout and is_late and self.backend.wait_any([lease.calls[0]], 0) is None:
                self._replace_actor(lease, f"did not answer for {limit:g} s")

    def _replace_actor(self, lease: Lease, reason: str) -> None:
        """Lease the lanes to another actor; too many losses in a row stop the run."""
        self.backend.kill_actor(lease.actor)
        lease.failures += 1
        if lease.failures >= self.setup.config.environment.max_failures:
            raise ClusterFault(f"{lease} {reason}: failure {lease.failures} in a row")
        self.worker_replacements.append(f"{lease} {reason} and is replaced")
        is_lost = np.zeros(self.setup.config.actor.lanes, bool)
        is_lost[lease.lanes.start : lease.lanes.stop] = True
        self.episode_stats.reset_lanes(is_lost)
        lease.incarnation += 1
        self._launch_actor(lease)

    def _raise_if_unplaced(self, waiting_since: float) -> None:
        """Stop if no actor has had a core for too long."""
        seconds = self.options.placement_seconds
        if (
            not any(lease.node for lease in self.leases)
            and time.monotonic() - waiting_since > seconds
        ):
            raise ClusterFault(
                f"no actor had a core for {seconds:g} s: add a node, or see what is free with"
                f" lookfurther cluster check {self.options.address}"
            )

    def close(self) -> None:
        """End all actors."""
        for lease in self.leases:
            if lease.actor is not None:
                self.backend.kill_actor(lease.actor)

    # Weights, metrics and checkpoints

    def set_epsilon(self, epsilon: float) -> None:
        """Send all lanes the same epsilon with the next calls."""
        self.common_epsilon = epsilon

    def publish_weights(self, weights: MasterWeights) -> None:
        """Send weights with the next calls, if the last ones are old enough."""
        if time.monotonic() - self.weights_time >= self.options.weights_seconds:
            self._send_weights(weights.network.state_dict())

    def _send_weights(self, state: Mapping[str, Tensor]) -> None:
        self.weights = pack_weights(state, getattr(torch, self.options.weights_dtype))
        self.weights_handle = self.backend.put_weights(self.weights)
        self.weights_version, self.weights_time = self.weights_version + 1, time.monotonic()

    def collect_metrics(self) -> dict[str, float]:
        """Actors that have a core, and the mean age of the weights they played with."""
        ages, self.weights_ages = self.weights_ages, []
        metrics = {"actors": sum(bool(lease.node) for lease in self.leases)}
        return metrics | ({"weights_age_seconds": float(np.mean(ages))} if ages else {})

    def low_epsilon_lanes(self) -> np.ndarray:
        """The least exploring quarter of the lanes."""
        order = torch.argsort(self.epsilons, stable=True).numpy()
        return order[: max(1, len(order) // 4)]

    def state(self) -> dict[str, dict[str, Tensor]]:
        """The actors' weights and the statistics; episodes in progress start again."""
        incarnation = max(lease.incarnation for lease in self.leases)
        actor = {f"network.{name}": t for name, t in unpack_weights(self.weights).items()}
        actor["incarnation"] = torch.tensor(incarnation)
        returns = {name: torch.from_numpy(a) for name, a in self.episode_stats.state().items()}
        return {"actor": actor, "envs": {}, "returns": returns}

    def load_state(self, state: Mapping[str, dict[str, Tensor]]) -> int:
        """The inverse of `state`, also of a local run's; every lane starts a new episode."""
        self.episode_stats.load_state(
            {name: tensor.numpy() for name, tensor in state["returns"].items()}
        )
        load_network_weights(self.setup.network, select_prefix(state["actor"], "network"))
        self._send_weights(self.setup.network.state_dict())
        before = int(state["actor"].get("incarnation", 0))
        for lease in self.leases:
            lease.incarnation = before + 1
        lanes = self.setup.config.actor.lanes
        self.episode_stats.reset_lanes(np.ones(lanes, bool))
        return lanes
