"""Actors on a Ray cluster of this machine: steps per second by actors, and the cost of a chunk.

    python -m benchmarks.cluster [--env ENV] [--actors N ...] [--seconds S] [--json FILE]

`play` asks actors for chunks as training does, without a learner. `resend` replaces the actors by
ones that return one prepared chunk again and again: the most that one learner node can insert.
Cores, environments and Ray's own processes share this machine, so the figures are lower bounds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import ray
import torch

from benchmarks.measure import (
    format_table,
    limit_cores,
    machine_info,
    make_parser,
    median_of_rounds,
    write_report,
)
from lookfurther import Config, preset
from lookfurther.envs import get_spec
from lookfurther.learner import Learner
from lookfurther.networks.dueling import make_network_builder
from lookfurther.training.build import build_mixture
from lookfurther.training.cluster.connection import connect_cluster
from lookfurther.training.cluster.messages import PlayedChunk, PlayRequest
from lookfurther.training.cluster.options import ClusterOptions
from lookfurther.training.cluster.ray_backend import RayActor, RayBackend
from lookfurther.training.cluster.remote_actor import ActorSetup
from lookfurther.training.cluster.source import ClusterSource

CAPACITY = 40_000  # steps in the replay
WEIGHTS_SENT = 20
CPU = torch.device("cpu")


class ResendingActor(RayActor):
    """Plays one chunk, and returns it with a new number at every later call."""

    prepared: PlayedChunk | None = None

    def play(self, request: PlayRequest, weights: Any) -> PlayedChunk:
        if self.prepared is None:
            self.prepared = super().play(request, weights)
        else:
            self.sequence += 1
        return self.prepared._replace(sequence=self.sequence - 1, weights_time=request.weights_time)


class BenchmarkBackend(RayBackend):
    """Actors that need no core of their own, of either kind, as on the same or another node."""

    def __init__(self, setup: ActorSetup, actor_class: type[RayActor], is_remote: bool) -> None:
        super().__init__(setup)
        self._actor_class = ray.remote(num_cpus=0)(actor_class)
        if is_remote:
            self.local_node = "another node"


def make_config(env: str, actors: int) -> Config:
    """A run whose actors have eight lanes each."""
    return preset("no-demos", "small", env=env, actor__lanes=8 * actors, replay__capacity=CAPACITY)


def build_source(
    config: Config, options: ClusterOptions, make_backend: Callable[[ActorSetup], RayBackend]
) -> tuple[ClusterSource, Learner]:
    """A source that is connected to a replay, and the learner whose weights it sends."""
    spec = get_spec(config.env, config.environment)
    network = make_network_builder(config.network)(spec)
    learner = Learner(network, config.learner, CPU, torch.float32)
    setup = ActorSetup(config, config.env, learner.online_network, options.actors)
    source = ClusterSource(setup, make_backend(setup), options, learner.online_weights)
    source.connect_replay(build_mixture(config, spec, [], CPU).agent)
    return source, learner


def measure_source(
    config: Config, actors: int, actor_class: type[RayActor], is_remote: bool, seconds: float
) -> dict[str, float]:
    """Rates of a source whose chunks are added to a replay, after every actor has sent one."""

    def make_backend(setup: ActorSetup) -> RayBackend:
        return BenchmarkBackend(setup, actor_class, is_remote)

    source, _ = build_source(config, ClusterOptions(actors=actors), make_backend)
    replay = source.replay
    play_until(source, lambda: all(lease.next_sequence for lease in source.leases))
    before, chunks, busy = replay.inserted, 0, time.process_time()
    start = time.perf_counter()
    while not chunks or time.perf_counter() - start < seconds:
        add_chunk(source)
        chunks += 1
    elapsed, busy = time.perf_counter() - start, time.process_time() - busy
    source.close()
    steps = replay.inserted - before
    plane_bytes = replay.planes[0].nbytes
    return {
        "steps_per_second": steps / elapsed,
        "chunks_per_second": chunks / elapsed,
        "megabytes_per_second": steps * plane_bytes / elapsed / 1e6,
        "driver_milliseconds_per_chunk": 1000 * busy / chunks,
    }


def measure_weights(config: Config, rounds: int) -> dict[str, float]:
    """The cost of one set of weights for the process of the learner, and its size."""
    source, learner = build_source(config, ClusterOptions(actors=1, weights_seconds=0), RayBackend)
    busy = time.process_time()
    for _ in range(rounds):
        source.publish_weights(learner.online_weights)
    busy = time.process_time() - busy
    source.close()
    return {
        "driver_milliseconds": 1000 * busy / rounds,
        "megabytes": sum(array.nbytes for array in source.weights.values()) / 1e6,
    }


def play_until(source: ClusterSource, is_done: Callable[[], bool]) -> None:
    """Add chunks to the replay until something has happened."""
    while not is_done():
        add_chunk(source)


def add_chunk(source: ClusterSource) -> None:
    """Add the next chunk of any actor to the replay."""
    source.start_step()
    source.collect_chunk()
    source.add_chunk()


CASES: dict[str, tuple[type[RayActor], bool]] = {
    "play, same node": (RayActor, False),
    "play, compressed": (RayActor, True),
    "resend, same node": (ResendingActor, False),
    "resend, compressed": (ResendingActor, True),
}


def run(env: str, actor_counts: Sequence[int], seconds: float, rounds: int) -> dict[str, Any]:
    """Medians over the rounds of every case and number of actors, and the cost of weights."""
    figures: dict[str, Any] = {}
    with connect_cluster("local"):
        weights = measure_weights(preset("apex-dqfd-deeper", env=env), WEIGHTS_SENT)
        for name, (actor_class, is_remote) in CASES.items():
            for actors in actor_counts:
                config = make_config(env, actors)
                measured = [
                    measure_source(config, actors, actor_class, is_remote, seconds)
                    for _ in range(rounds)
                ]
                figures[f"{name}, {actors} actors"] = median_of_rounds(measured)
    return {"figures": figures, "weights": weights}


def main() -> int:
    parser = make_parser(__doc__, seconds=5.0)
    parser.add_argument("--env", default="ALE/Pong-v5", help="environment id")
    parser.add_argument("--actors", type=int, nargs="+", default=[1, 2, 4], help="actors")
    options = parser.parse_args()
    limit_cores(options.cores)
    machine = machine_info(["torch", "ray", "lz4", "ale-py"])
    measured = run(options.env, options.actors, options.seconds, options.rounds)
    figures = measured["figures"]
    columns = list(next(iter(figures.values())))
    table = format_table(
        ["case", *(column.replace("_", " ") for column in columns)],
        [[name, *row.values()] for name, row in figures.items()],
    )
    result = {"env": options.env, "seconds": options.seconds, "rounds": options.rounds}
    result |= measured | {"surroundings": machine}
    write_report(f"actors on Ray, {options.env}", result, table, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
