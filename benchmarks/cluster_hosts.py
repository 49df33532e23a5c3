"""Actors on Ray nodes in network namespaces: bytes on the link, and seconds to recover from faults.

    python -m benchmarks.cluster_hosts [--env ENV] [--seconds S] [--rate MBIT] [--delay MS]
                                       [--rounds N] [--json FILE]

Traffic: bytes per second and per step of each actor on a virtual Ethernet link, without and with a
limit of its rate. Recovery: seconds from a fault until the learner notices it, and until the lanes
of the lost actor deliver a chunk again; the rate of the other actor meanwhile, as a share of its
rate before; steps that arrived and are not in the replay once. `--delay` holds back all frames,
in both directions; `--rounds 0` measures only the traffic. It needs root.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import ray

from benchmarks.cluster import build_source, make_config, play_until
from benchmarks.measure import (
    format_table,
    machine_info,
    make_parser,
    median_of_rounds,
    write_report,
)
from benchmarks.network_hosts import NetworkHost, open_hosts, restart_with_token
from lookfurther import preset
from lookfurther.training.cluster.messages import PlayedChunk
from lookfurther.training.cluster.options import ClusterOptions
from lookfurther.training.cluster.ray_backend import RayBackend
from lookfurther.training.cluster.remote_actor import ActorSetup
from lookfurther.training.cluster.source import ClusterSource, Lease

HANG_SECONDS = 20.0  # environment.worker_timeout
CORES_PER_HOST = [2, 2]  # one actor each, and a free core for the lanes of a lost host


def has_all_actors(source: ClusterSource) -> bool:
    """Whether every actor has delivered a chunk."""
    return all(lease.next_sequence for lease in source.leases)


def measure_traffic(env: str, hosts: list[NetworkHost], seconds: float) -> dict[str, float]:
    """Bytes on the links per second and actor and per step, with new weights every second."""
    actors = len(hosts)
    source, learner = build_source(
        make_config(env, actors), ClusterOptions(actors=actors), RayBackend
    )
    play_until(source, lambda: has_all_actors(source))
    before, steps = count_all_bytes(hosts), source.replay.inserted
    version, start = source.weights_version, time.perf_counter()
    busy = time.process_time()

    def is_over() -> bool:
        source.publish_weights(learner.online_weights)
        return time.perf_counter() - start > seconds

    play_until(source, is_over)
    elapsed, played = time.perf_counter() - start, source.replay.inserted - steps
    sent, received = (b - a for a, b in zip(before, count_all_bytes(hosts), strict=True))
    source.close()
    return {
        "steps_per_second_per_actor": played / elapsed / actors,
        "sent_kilobytes_per_second_per_actor": sent / elapsed / actors / 1000,
        "received_kilobytes_per_second_per_actor": received / elapsed / actors / 1000,
        "sent_bytes_per_step": sent / played,
        "weights_per_second": (source.weights_version - version) / elapsed,
        "driver_microseconds_per_step": 1e6 * (time.process_time() - busy) / played,
    }


def count_all_bytes(hosts: list[NetworkHost]) -> tuple[int, int]:
    """Bytes that all hosts have sent and received."""
    counts = [host.count_bytes() for host in hosts]
    return sum(sent for sent, _ in counts), sum(received for _, received in counts)


class TimedBackend(RayBackend):
    """Records when each actor was launched, and counts the steps that arrived.

    Its actors start on different hosts, so that a fault of one host leaves the other actor alone.
    """

    def __init__(self, setup: ActorSetup) -> None:
        super().__init__(setup)
        self._actor_class = self._actor_class.options(scheduling_strategy="SPREAD")
        self.launch_times: dict[tuple[int, int], float] = {}  # by range and incarnation
        self.arrived_steps = 0

    def launch_actor(self, index: int, incarnation: int) -> Any:
        self.launch_times[index, incarnation] = time.perf_counter()
        return super().launch_actor(index, incarnation)

    def fetch(self, call: Any) -> Any:
        answer = super().fetch(call)
        if isinstance(answer, PlayedChunk):
            self.arrived_steps += answer.action.size
        return answer


def measure_recovery(source: ClusterSource, fault: Callable[[Lease], None]) -> dict[str, float]:
    """Seconds from a fault until it is noticed, and until the lanes of the actor act again."""
    backend = source.backend
    assert isinstance(backend, TimedBackend)
    play_until(source, lambda: has_all_actors(source))
    lease, *others = source.leases
    assert lease.node not in {other.node for other in others}
    usual_rate = measure_rate(source, others, lambda start: time.perf_counter() - start > 10)
    incarnation = lease.incarnation
    start = time.perf_counter()
    fault(lease)
    rate = measure_rate(
        source, others, lambda _: lease.incarnation > incarnation and lease.next_sequence > 0
    )
    return {
        "seconds_to_notice": backend.launch_times[0, incarnation + 1] - start,
        "seconds_to_act_again": time.perf_counter() - start,
        "actors_tried": lease.incarnation - incarnation,
        "rate_of_other_actor": rate / usual_rate,
        "steps_lost_or_doubled": backend.arrived_steps - int(source.replay.cursor.sum()),
    }


def measure_rate(
    source: ClusterSource, leases: Sequence[Lease], is_over: Callable[[float], bool]
) -> float:
    """Steps per second that some actors add to the replay until something has happened."""
    lanes = [lane for lease in leases for lane in lease.lanes]
    before, start = source.replay.cursor[lanes].sum(), time.perf_counter()
    play_until(source, lambda: is_over(start))
    steps = source.replay.cursor[lanes].sum() - before
    return float(steps) / (time.perf_counter() - start)


def find_host(hosts: list[NetworkHost], lease: Lease) -> NetworkHost:
    """The host of an actor."""
    (address,) = (n["NodeManagerAddress"] for n in ray.nodes() if n["NodeID"] == lease.node)
    return next(host for host in hosts if host.address == address)


def send_signal(lease: Lease, number: int) -> None:
    """Send a signal to the process of an actor."""
    os.kill(ray.get(lease.actor.__ray_call__.remote(lambda actor: os.getpid())), number)


def measure_faults(hosts: list[NetworkHost]) -> dict[str, dict[str, float]]:
    """Recovery times of each kind of fault; a lost host is back before the next one."""
    faults: dict[str, Callable[[Lease], None]] = {
        "actor killed": lambda lease: send_signal(lease, signal.SIGKILL),
        f"actor stopped, timeout {HANG_SECONDS:g} s": lambda lease: send_signal(
            lease, signal.SIGSTOP
        ),
        "host killed": lambda lease: find_host(hosts, lease).kill_processes(),
        "link cut": lambda lease: find_host(hosts, lease).set_link(False),
    }
    config = preset(
        "no-demos",
        "small",
        env="CartPole-v1",
        actor__lanes=8,
        environment__worker_timeout=HANG_SECONDS,
        environment__max_failures=10,
    )
    figures = {}
    for name, fault in faults.items():
        source, _ = build_source(config, ClusterOptions(actors=2, steps_per_chunk=64), TimedBackend)
        figures[name] = measure_recovery(source, fault)
        print(name, figures[name], flush=True)
        start = time.perf_counter()
        for host in hosts:
            host.set_link(True)
            if not host.list_processes():
                host.start_ray(ray.get_runtime_context().gcs_address)
        play_until(source, lambda: count_nodes() == len(hosts) + 1)
        figures[name]["seconds_until_all_nodes_are_back"] = time.perf_counter() - start
        source.close()
    return figures


def count_nodes() -> int:
    """Nodes that Ray believes to be alive."""
    return sum(node["Alive"] for node in ray.nodes())


def wait_for_nodes(count: int) -> None:
    """Wait until nodes have joined."""
    while count_nodes() < count:
        time.sleep(1)


def main() -> int:
    parser = make_parser(__doc__, seconds=30.0)
    parser.add_argument("--env", default="ALE/Pong-v5", help="environment of the traffic")
    parser.add_argument("--rate", type=int, default=10, help="of the limited link, in Mbit/s")
    parser.add_argument("--delay", type=float, default=0.0, help="of all links, in ms")
    options = parser.parse_args()
    restart_with_token("benchmarks.cluster_hosts")
    machine = machine_info(["torch", "ray", "lz4", "ale-py"])
    with open_hosts(CORES_PER_HOST, options.delay / 1000) as hosts:
        wait_for_nodes(len(hosts) + 1)
        recovery = [measure_faults(hosts) for _ in range(options.rounds)]
        traffic = {"no limit": measure_traffic(options.env, hosts, options.seconds)}
        for host in hosts:
            host.limit_rate(options.rate)
        traffic[f"{options.rate} Mbit/s"] = measure_traffic(options.env, hosts, options.seconds)
    names = recovery[0] if recovery else {}
    figures = {name: median_of_rounds([r[name] for r in recovery]) for name in names}
    result = {"env": options.env, "seconds": options.seconds, "rounds": options.rounds}
    result |= {"delay_milliseconds": options.delay}
    result |= {"traffic": traffic, "recovery": figures, "surroundings": machine}
    tables = [
        format_table(
            [title, *(column.replace("_", " ") for column in next(iter(rows.values())))],
            [[name, *row.values()] for name, row in rows.items()],
        )
        for title, rows in (("link", traffic), ("fault", figures))
        if rows
    ]
    write_report(
        "actors on hosts with networks of their own", result, "\n\n".join(tables), options.json
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
