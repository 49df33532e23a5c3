"""Lost, slow and faulty cluster actors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from lookfurther.envs import get_spec
from lookfurther.errors import ClusterFault, EnvironmentFault
from lookfurther.networks.dueling import make_network_builder
from lookfurther.training.build import build_mixture
from lookfurther.types import FIRST
from tests.faulty_envs import Faulty, fault_at

pytest.importorskip("lz4", reason="needs the extra ray")
from lookfurther.training.cluster import source as source_module
from lookfurther.training.cluster.messages import PlayRequest, pack_weights, unpack_chunk
from lookfurther.training.cluster.options import ClusterOptions
from lookfurther.training.cluster.remote_actor import ActorSetup, RemoteActor
from tests.cluster_samples import (
    CPU,
    OPTIONS,
    cluster_parts,
    make_cluster_loop,
    make_config,
    raise_lost,
)


def test_actor_has_at_most_the_allowed_calls() -> None:
    loop = make_cluster_loop(make_config(), OPTIONS)
    source, _ = cluster_parts(loop)
    for _ in range(20):
        loop.run_iteration()
        assert all(1 <= len(lease.calls) <= 2 for lease in source.leases)


def test_all_actors_are_served() -> None:
    """The actor that waited longest is next, also if another one is always ready."""
    loop = make_cluster_loop(make_config(), OPTIONS)
    for _ in range(20):
        loop.run_iteration()
    cursor = loop.mixture.agent.cursor
    assert cursor.tolist() == [cursor[0]] * 4


def lose_actor_at(call: int) -> Callable[[RemoteActor], None]:
    count = 0

    def on_play(actor: RemoteActor) -> None:
        nonlocal count
        count += 1
        if count == call:
            raise_lost(actor)

    return on_play


def test_lost_actor_is_replaced_and_nothing_is_added_twice() -> None:
    """Its lanes continue with a new episode, and the slots before the gap stay unsamplable."""
    config = make_config(replay__learning_starts=1000)
    loop = make_cluster_loop(config, OPTIONS)
    source, backend = cluster_parts(loop)
    backend.on_play = lose_actor_at(7)
    before = []
    while loop.step < 300:
        loop.run_iteration()
        before.append(loop.step)
    assert before == [8 * (i + 1) for i in range(len(before))]
    assert len(backend.launched) == 3
    index, incarnation = backend.launched[-1]
    assert incarnation == 1
    lanes = source.leases[index].lanes
    assert source.worker_replacements == [
        f"actor of lanes {lanes.start} to {lanes.stop - 1} died and is replaced"
    ]
    replay = loop.mixture.agent
    cut = find_cut(replay, lanes.start)
    masses = replay.tree.masses.view(4, replay.slots_per_lane, -1)
    horizon = replay.max_horizon
    assert (masses[lanes.start, cut - horizon : cut] == 0).all()
    assert (masses[lanes.start, cut - horizon - 1] > 0).any()


def find_cut(replay: Any, lane: int) -> int:
    """The first slot that opens an episode although the slot before is no end."""
    marks = replay.marks.view(4, replay.slots_per_lane)[lane]
    for t in range(1, int(replay.cursor[lane])):
        if marks[t] & FIRST and not marks[t - 1] & 6:
            return t
    raise AssertionError("no lane was cut")


def test_replacement_plays_other_episodes() -> None:
    request = PlayRequest(3, 0, 0.0, False)
    source, _ = cluster_parts(make_cluster_loop(make_config(), OPTIONS))
    first, again, other = (
        RemoteActor(source.setup, 1, n).play(request, source.weights) for n in (0, 0, 1)
    )
    assert np.array_equal(first.planes, again.planes)
    assert not np.array_equal(first.planes[0], other.planes[0])


def test_repeated_losses_stop_the_run() -> None:
    loop = make_cluster_loop(make_config(), OPTIONS)
    _, backend = cluster_parts(loop)
    backend.on_play = raise_lost
    with pytest.raises(ClusterFault, match=r"actor of lanes \d to \d died: failure 3 in a row"):
        loop.run_iteration()
    assert ClusterFault.exit_code == 9


def test_chunks_between_losses_reset_the_failures() -> None:
    loop = make_cluster_loop(make_config(), OPTIONS)
    source, backend = cluster_parts(loop)
    count = 0

    def on_play(actor: RemoteActor) -> None:
        nonlocal count
        count += 1
        if count % 5 == 0:
            raise_lost(actor)

    backend.on_play = on_play
    for _ in range(40):
        loop.run_iteration()
    assert len(source.worker_replacements) > 5


def test_hanging_actor_is_replaced_after_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock of its own: every wait takes a second. The others continue in the meantime."""
    config = make_config(environment__worker_timeout=10.0, replay__learning_starts=1000)
    loop = make_cluster_loop(config, OPTIONS)
    source, backend = cluster_parts(loop)
    now, real_wait = 100.0, backend.wait_any

    def wait_any(calls: Any, timeout: float) -> Any:
        nonlocal now
        now += 1.0 if timeout else 0.0
        return real_wait(calls, timeout)

    monkeypatch.setattr(backend, "wait_any", wait_any)
    monkeypatch.setattr(source_module.time, "monotonic", lambda: now)
    while loop.step < 80:
        loop.run_iteration()
    backend.is_hanging = lambda actor: (actor.index, actor.incarnation) == (1, 0)
    chunks = 0
    while not source.worker_replacements:
        loop.run_iteration()
        chunks += 1
    assert source.worker_replacements == [
        "actor of lanes 2 to 3 did not answer for 10 s and is replaced"
    ]
    assert 8 <= chunks <= 16
    assert loop.mixture.agent.cursor[0] > loop.mixture.agent.cursor[2]


def test_repeated_chunk_is_discarded() -> None:
    loop = make_cluster_loop(make_config(), OPTIONS)
    source, _ = cluster_parts(loop)
    accept = source._accept_chunk
    loop.run_iteration()
    kept: list[Any] = []

    def accept_twice(lease: Any, played: Any) -> bool:
        is_new = accept(lease, played)
        kept.append(accept(lease, played))
        return is_new

    source._accept_chunk = accept_twice  # type: ignore[method-assign]
    for _ in range(5):
        loop.run_iteration()
    assert kept == [False] * 5
    assert source.discarded_chunks == 5
    assert loop.step == 6 * 8


def test_missing_chunk_replaces_the_actor() -> None:
    """Its lanes are not continuous any more: the next chunk would be learned from wrongly."""
    loop = make_cluster_loop(make_config(), OPTIONS)
    source, backend = cluster_parts(loop)

    def skip_number(actor: RemoteActor) -> None:
        if actor.sequence == 3 and actor.incarnation == 0:
            actor.sequence += 1

    backend.on_play = skip_number
    for _ in range(20):
        loop.run_iteration()
    assert len(source.worker_replacements) == 2
    assert all("lost a chunk" in line for line in source.worker_replacements)


def test_ranges_without_a_core_wait_for_a_node() -> None:
    loop = make_cluster_loop(make_config(replay__learning_starts=1000), OPTIONS)
    source, backend = cluster_parts(loop)
    backend.free_cores = 1
    for _ in range(5):
        loop.run_iteration()
    assert source.collect_metrics()["actors"] == 1
    assert loop.mixture.agent.cursor.tolist()[2:] == [0, 0]
    waiting = source.leases[1].calls[0]
    backend.answers[waiting] = None  # a node joins
    for _ in range(5):
        loop.run_iteration()
    assert source.collect_metrics()["actors"] == 2
    assert loop.mixture.agent.cursor.min() > 0


def test_cluster_without_cores_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = make_cluster_loop(make_config(), ClusterOptions(actors=2, placement_seconds=0.0))
    _, backend = cluster_parts(loop)
    backend.free_cores = 0
    with pytest.raises(ClusterFault, match=r"no actor had a core for 0 s: add a node"):
        loop.run_iteration()


def test_dropped_episode_ends_its_chunk() -> None:
    """The slots of the failed episode, and no others, are never sampled."""
    config = make_config(environment__on_fault="drop")

    def make_env() -> Faulty:
        return Faulty(fault_at("step", 2, {"reward": float("nan")}, number=1))

    spec = get_spec(make_env, config.environment)
    Faulty.built = 0
    network = make_network_builder(config.network)(spec)
    weights = pack_weights(network.state_dict(), torch.float32)
    actor = RemoteActor(ActorSetup(config, make_env, network, 1), 0, 0)
    replay = build_mixture(config, spec, [], CPU).agent
    lengths = []
    for _ in range(12):
        played = actor.play(PlayRequest(8, 0, 0.0, True), weights)
        lengths.append(len(played.action))
        replay.add(unpack_chunk(played, spec))
    assert lengths[0] < 8
    assert set(lengths[1:]) == {8}
    masses = replay.tree.masses.view(4, replay.slots_per_lane, -1)
    assert (masses[0, : lengths[0]] == 0).all()
    assert (masses[1, : lengths[0]] > 0).any()


def test_fault_of_environment_stops_the_run() -> None:
    loop = make_cluster_loop(make_config(), OPTIONS)
    _, backend = cluster_parts(loop)

    def fail(actor: RemoteActor) -> None:
        raise EnvironmentFault("lane 3: the reward is nan")

    backend.on_play = fail
    with pytest.raises(EnvironmentFault, match="lane 3"):
        loop.run_iteration()
