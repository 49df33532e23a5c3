"""Measures the nodes of a cluster: versions, transfer rate, and steps per second of a core."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from lookfurther.config import Config
from lookfurther.envs import get_spec
from lookfurther.networks.dueling import make_network_builder
from lookfurther.training.cluster.messages import PlayRequest, pack_weights
from lookfurther.training.cluster.options import ClusterOptions
from lookfurther.training.cluster.ray_backend import RayActor
from lookfurther.training.cluster.remote_actor import ActorSetup
from lookfurther.training.run_dir import collect_versions

TRANSFER_BYTES = 32 * 2**20
ANSWER_SECONDS = 120.0  # for one measurement of one node
COMPARED_VERSIONS = ("python", "ray", "lookfurther", "torch", "numpy", "gymnasium", "ale-py")


class PlayRate(NamedTuple):
    """The speed of one actor."""

    steps_per_second: float
    bytes_per_step: float  # on the wire


class NodeReport(NamedTuple):
    """What one node offers."""

    host: str
    is_local: bool  # the node of this process, where learner and replay will be
    cores: int
    gpus: int
    versions: dict[str, str | None]
    transfer_rate: float  # bytes per second to this process
    play_rate: PlayRate | None  # None without an environment

    @property
    def steps_per_second(self) -> float:
        """Expected of all its actors: what its cores play and its connection carries."""
        if self.play_rate is None:
            return 0.0
        played = self.cores * self.play_rate.steps_per_second
        carried = self.transfer_rate / self.play_rate.bytes_per_step
        return min(played, carried)


def check_nodes(config: Config | None) -> list[NodeReport]:
    """Measure every node, one after another; with a configuration, also how fast it plays."""
    local_node = ray.get_runtime_context().get_node_id()
    nodes = sorted(
        (node for node in ray.nodes() if node["Alive"]),
        key=lambda node: (node["NodeID"] != local_node, node["NodeManagerAddress"]),
    )
    return [_check_node(node, local_node, config) for node in nodes]


def _check_node(node: dict[str, Any], local_node: str, config: Config | None) -> NodeReport:
    node_id, resources = node["NodeID"], node["Resources"]
    on_node: Any = NodeAffinitySchedulingStrategy(node_id, soft=False)
    task: Any = ray.remote(num_cpus=0, scheduling_strategy=on_node)
    host, versions = ray.get(task(describe_node).remote(), timeout=ANSWER_SECONDS)
    cores = int(resources.get("CPU", 0))
    return NodeReport(
        host=host,
        is_local=node_id == local_node,
        cores=cores,
        gpus=int(resources.get("GPU", 0)),
        versions=versions,
        transfer_rate=_measure_transfer(task),
        play_rate=_measure_play(config, on_node) if config and cores else None,
    )


def describe_node() -> tuple[str, dict[str, str | None]]:
    """The name and the versions of the node on which this runs."""
    return socket.gethostname(), collect_versions()


def make_noise() -> np.ndarray:
    """Bytes that cannot be compressed."""
    return np.random.default_rng(0).integers(0, 256, TRANSFER_BYTES, np.uint8)


def _measure_transfer(task: Any) -> float:
    """Bytes per second from a node, after the connection is open."""
    rates = []
    for _ in range(2):
        noise = task(make_noise).remote()
        ray.wait([noise], timeout=ANSWER_SECONDS, fetch_local=False)
        start = time.perf_counter()
        fetched: Any = ray.get(noise, timeout=ANSWER_SECONDS)
        rates.append(fetched.nbytes / (time.perf_counter() - start))
    return max(rates)


def _measure_play(config: Config, on_node: Any) -> PlayRate:
    """The speed of one actor on a node, in its second chunk: the first builds environments."""
    network = make_network_builder(config.network)(get_spec(config.env, config.environment))
    setup = ActorSetup(config, config.env, network, ranges=1)
    actor: Any = ray.remote(num_cpus=1, scheduling_strategy=on_node)(RayActor).remote(setup, 0, 0)
    weights = pack_weights(network.state_dict(), torch.bfloat16)
    steps = max(1, ClusterOptions().steps_per_chunk // config.actor.lanes)
    request = PlayRequest(steps, 0, 0.0, is_compressed=True)
    ray.get(actor.play.remote(request, weights), timeout=ANSWER_SECONDS)
    start = time.perf_counter()
    played: Any = ray.get(actor.play.remote(request, weights), timeout=ANSWER_SECONDS)
    seconds = time.perf_counter() - start
    ray.kill(actor)
    size = sum(len(f) if isinstance(f, bytes) else getattr(f, "nbytes", 0) for f in played)
    return PlayRate(played.action.size / seconds, size / played.action.size)


def find_other_versions(reports: Sequence[NodeReport]) -> list[str]:
    """A line for each version of a node that differs from the first node's."""
    first, lines = reports[0], []
    for report in reports[1:]:
        for name in COMPARED_VERSIONS:
            ours, theirs = first.versions.get(name), report.versions.get(name)
            if ours != theirs:
                lines.append(f"{report.host} has {name} {theirs}, {first.host} has {ours}")
    return lines


def count_placed(reports: Sequence[NodeReport]) -> int:
    """Actors that a run places on these nodes by default: one core is the learner's."""
    return max(1, sum(report.cores for report in reports) - 1)
