"""Connects a run to a Ray cluster, or starts Ray on this machine."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from pathlib import Path

import gymnasium
import ray

from lookfurther.config import Config
from lookfurther.demos.episode import Episode
from lookfurther.envs import get_spec
from lookfurther.errors import ClusterFault, ConfigError
from lookfurther.learner import Learner
from lookfurther.system.formatting import pluralize
from lookfurther.system.processes import PACKAGE_FOLDER, count_cores, subprocess_environment
from lookfurther.training.cluster.options import LOCAL_ADDRESS, ClusterOptions
from lookfurther.training.cluster.ray_backend import RayBackend
from lookfurther.training.cluster.remote_actor import ActorSetup
from lookfurther.training.cluster.source import ClusterSource
from lookfurther.training.source_plan import SourcePlan

CONNECT_SECONDS = 10.0  # for the head node to accept a connection
START_ATTEMPTS = 3  # Ray gives its processes 15 s to start, too little on a busy machine
TOKEN_FILE = Path(".ray") / "auth_token"  # in the home folder


@contextlib.contextmanager
def open_cluster_plan(
    options: ClusterOptions, env: str | Callable[[], gymnasium.Env], config: Config
) -> Iterator[SourcePlan]:
    """The plan of a run whose actors are on a cluster; the actors end with the context."""
    for name in ("jump_start_share", "max_demo_lengths", "max_reward_gap"):
        if getattr(config.actor, name):
            raise ConfigError(f"actor.{name} needs actors on this machine: drop --cluster")
    spec = get_spec(env, config.environment)
    with connect_cluster(options.address), contextlib.ExitStack() as stack:
        ranges = min(config.actor.lanes, options.actors or count_free_cores())

        def build_source(learner: Learner, _: Sequence[Episode]) -> ClusterSource:
            network = deepcopy(learner.online_network).cpu()
            setup = ActorSetup(config, env, network, ranges)
            source = ClusterSource(setup, RayBackend(setup), options, learner.acting_weights)
            stack.callback(source.close)
            return source

        message = describe_placement(ranges, config.actor.lanes)
        yield SourcePlan(spec, build_source, is_learning_concurrent=True, message=message)


@contextlib.contextmanager
def connect_cluster(address: str) -> Iterator[None]:
    """Connect to a cluster; a process that is connected already keeps its connection."""
    if ray.is_initialized():
        yield
        return
    if address == LOCAL_ADDRESS:
        _start_local_ray()
    else:
        check_token(address)
        _connect_to_head(address)
    try:
        yield
    finally:
        ray.shutdown()


def check_token(address: str) -> None:
    """Refuse a cluster without a token: everyone who reaches it runs code on all its nodes."""
    mode = os.environ.get("RAY_AUTH_MODE", "").lower()
    has_token = bool(
        os.environ.get("RAY_AUTH_TOKEN")
        or os.environ.get("RAY_AUTH_TOKEN_PATH")
        or (Path.home() / TOKEN_FILE).exists()
    )
    if mode == "disabled" or (mode == "token" and has_token):
        return
    if not has_token:
        raise ClusterFault(
            f"--cluster {address} needs a token: create one with ray get-auth-token --generate,"
            " copy it to ~/.ray/auth_token of every node and set RAY_AUTH_MODE=token everywhere"
        )
    raise ClusterFault(
        f"--cluster {address} needs RAY_AUTH_MODE=token here and on every node, or"
        " RAY_AUTH_MODE=disabled if no one else can reach the cluster"
    )


def _start_local_ray() -> None:
    """Start Ray on the cores of this machine, with the import path of this process.

    Processes of an attempt that failed end with this process.
    """
    for attempts_left in reversed(range(START_ATTEMPTS)):
        try:
            with _clean_start():
                ray.init(
                    address="local",
                    num_cpus=count_cores(),
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )
            return
        except Exception as error:  # Ray has no type of its own for this
            ray.shutdown()
            reason = " ".join(str(error).split())
            if "timed out" not in reason or not attempts_left:
                raise ClusterFault(f"Ray does not start on this machine: {reason}") from error


def _connect_to_head(address: str) -> None:
    if address.startswith("ray://"):
        raise ClusterFault(
            f"--cluster {address}: learner and replay run in this process, so start it on a node of"
            " the cluster and give --cluster auto"
        )
    try:
        _open_connection(address)
        with _clean_start():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        if "Could not find any running Ray instance" in reason:
            reason = "no Ray runs on this machine; start it with ray start, or give --cluster local"
        raise ClusterFault(f"--cluster {address} cannot be reached: {reason}") from None


def _open_connection(address: str) -> None:
    """Raise OSError if nothing listens at HOST:PORT; Ray itself would try for minutes."""
    host, separator, port = address.rpartition(":")
    if separator and port.isdecimal():
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()


@contextlib.contextmanager
def _clean_start() -> Iterator[None]:
    """Ray gives its workers the working directory as an import path: not that of a data folder.

    Modules that this process finds are found by workers on this machine too.
    """
    changed = {
        "PYTHONPATH": subprocess_environment(user_modules=True)["PYTHONPATH"],
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # the default is slow next to busy processes
    }
    previous = {name: os.environ.get(name) for name in changed}
    os.environ |= changed
    try:
        with contextlib.chdir(PACKAGE_FOLDER):
            yield
    finally:
        for name, value in previous.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def count_free_cores() -> int:
    """Cores of the cluster, without one for the learner; at least one."""
    return max(1, int(ray.cluster_resources().get("CPU", 0)) - 1)


def describe_placement(actors: int, lanes: int) -> str:
    """The nodes and cores of the cluster, and how many actors of a run have a core."""
    nodes = sum(node["Alive"] for node in ray.nodes())
    cores = int(ray.cluster_resources().get("CPU", 0))
    message = (
        f"cluster of {pluralize(nodes, 'node')} with {pluralize(cores, 'core')};"
        f" {pluralize(actors, 'actor')} for {pluralize(lanes, 'lane')}"
    )
    if actors > cores:
        message += f"; {actors - cores} of them have no core until a node joins"
    return message
