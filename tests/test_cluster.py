"""The source of chunks on a cluster: equal to the local one, and correct when actors are lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lookfurther.envs import get_spec
from lookfurther.errors import ClusterFault, EnvironmentFault
from lookfurther.exploration import initial_epsilons
from lookfurther.networks.dueling import make_network_builder
from lookfurther.training.build import build_mixture
from lookfurther.training.loop import TrainingLoop, updates_due
from lookfurther.types import FIRST
from tests.faulty_envs import Faulty, fault_at

pytest.importorskip("lz4", reason="needs the extra ray")

from lookfurther.training.cluster import source as source_module
from lookfurther.training.cluster.lane_ranges import select_epsilons, select_stream, split_lanes
from lookfurther.training.cluster.messages import (
    PlayRequest,
    compress_planes,
    pack_weights,
    unpack_chunk,
    unpack_steps,
    unpack_weights,
)
from lookfurther.training.cluster.options import ClusterOptions, make_reproducible_options
from lookfurther.training.cluster.remote_actor import ActorSetup, RemoteActor
from lookfurther.training.cluster.source import ClusterSource
from tests.cluster_samples import (
    CPU,
    InProcessBackend,
    assert_loops_equal,
    make_cluster_loop,
    make_config,
    make_local_loop,
    raise_lost,
)

OPTIONS = ClusterOptions(actors=2, steps_per_chunk=8, weights_seconds=0.0)


def cluster_parts(loop: TrainingLoop) -> tuple[ClusterSource, InProcessBackend]:
    source = loop.chunk_source
    assert isinstance(source, ClusterSource)
    assert isinstance(source.backend, InProcessBackend)
    return source, source.backend


# Ranges of lanes


@given(lanes=st.integers(1, 300), ranges=st.integers(1, 40))
def test_ranges_cover_every_lane_once(lanes: int, ranges: int) -> None:
    ranges = min(ranges, lanes)
    split = split_lanes(lanes, ranges)
    assert [lane for part in split for lane in part] == list(range(lanes))
    assert max(map(len, split)) - min(map(len, split)) <= 1


@given(lanes=st.integers(2, 300), ranges=st.integers(1, 40))
def test_every_range_has_the_whole_epsilon_schedule(lanes: int, ranges: int) -> None:
    """Each range has one of the lowest and one of the highest `ranges` epsilons."""
    ranges = min(ranges, lanes)
    schedule = initial_epsilons("paper", lanes, 0.01)
    parts = [select_epsilons(schedule, i, ranges) for i in range(ranges)]
    assert list(map(len, parts)) == list(map(len, split_lanes(lanes, ranges)))
    assert torch.equal(torch.cat(parts).sort().values, schedule.sort().values)
    low, high = schedule.sort().values[[ranges - 1, -ranges]]
    assert all(part.min() <= low and part.max() >= high for part in parts)


def test_one_range_has_the_local_schedule() -> None:
    schedule = initial_epsilons("apex", 7, 0.01)
    assert torch.equal(select_epsilons(schedule, 0, 1), schedule)


def test_no_two_actors_share_a_random_stream() -> None:
    streams = [select_stream(i, n) for i in range(5) for n in range(5)]
    assert len(set(streams)) == len(streams)


# Messages


def test_weights_survive_the_wire() -> None:
    """bfloat16 keeps 8 bits of a float; other types are not changed."""
    state = {"w": torch.randn(5, 3), "count": torch.tensor(7)}
    exact = unpack_weights(pack_weights(state, torch.float32))
    assert torch.equal(exact["w"], state["w"])
    assert exact["count"] == 7
    rounded = unpack_weights(pack_weights(state, torch.bfloat16))
    assert torch.equal(rounded["w"], state["w"].bfloat16().float())
    assert rounded["count"] == 7


def play_once(compressed: bool, steps: int = 5, **settings: Any) -> tuple[Any, ActorSetup]:
    loop = make_cluster_loop(make_config(**settings), OPTIONS)
    source, _ = cluster_parts(loop)
    request = PlayRequest(steps, 0, 0.0, compressed)
    return RemoteActor(source.setup, 0, 0).play(request, source.weights), source.setup


def test_compressed_chunk_equals_raw_chunk() -> None:
    spec = get_spec("CartPole-v1", make_config().environment)
    chunks = [unpack_chunk(play_once(compressed)[0], spec) for compressed in (False, True)]
    for raw, compressed in zip(*chunks, strict=True):
        assert np.array_equal(raw, compressed)
        assert compressed.flags.writeable
    frames = np.zeros((8, 8, 1, 84, 84), np.uint8)
    assert len(compress_planes(frames)) < frames.nbytes / 100


def test_steps_of_chunk_keep_rewards_and_flags() -> None:
    """CartPole pays 1 for a step and 0 for a reset, which follows a terminal step."""
    played, _ = play_once(False, steps=60)
    steps = unpack_steps(played)
    assert len(steps) == 60
    assert any(step.terminal.any() for step in steps)
    for before, step in pairwise(steps):
        assert np.array_equal(step.first, before.terminal | before.truncated)
        assert np.array_equal(step.reward, np.where(step.first, 0.0, 1.0))
        assert not step.dropped.any()


# Bit equality


@pytest.mark.parametrize("actors", [1, 2])
def test_cluster_in_turn_equals_local_run(actors: int) -> None:
    """The same replay, weights and statistics after N updates, bit for bit."""
    config = make_config()
    loop = make_cluster_loop(config, make_reproducible_options("local", actors))
    with make_local_loop(config, actors) as local:
        for _ in range(60 * actors):
            loop.run_iteration()
            local.run_iteration()
        assert local.learner.updates > 50
        assert local.chunk_source.episode_stats.episode_count > 5
        assert_loops_equal(loop, local)


def test_chunks_of_several_steps_equal_single_steps() -> None:
    """Without learning, the replay does not depend on the length of chunks."""
    config = make_config(replay__learning_starts=10_000, replay__capacity=160)
    loops = []
    for steps in (1, 5, 10):
        options = ClusterOptions(actors=1, steps_per_chunk=4 * steps, asks_in_turn=True)
        loop = make_cluster_loop(config, options)
        while loop.step < 4 * 100:  # the ring of 40 slots per lane wraps
            loop.run_iteration()
        loops.append(loop)
    for loop in loops[1:]:
        assert loop.step == loops[0].step
        assert_loops_equal(loop, loops[0])


def test_samples_per_insert_do_not_depend_on_chunks() -> None:
    config = make_config()
    loop = make_cluster_loop(config, OPTIONS)
    for _ in range(60):
        loop.run_iteration()
    loop.run_due_updates()
    assert loop.learner.updates == updates_due(config, loop.step) > 0


def test_every_episode_of_a_chunk_is_reported() -> None:
    loop = make_cluster_loop(make_config(), ClusterOptions(actors=1, steps_per_chunk=400))
    reported = 0
    for _ in range(3):
        loop.run_iteration()
        reported += len(loop.chunk_source.episode_stats.newly_finished)
    assert reported == loop.chunk_source.episode_stats.episode_count > 3


def test_local_run_imports_no_ray() -> None:
    code = (
        "import sys, lookfurther.training.train, lookfurther.cli.train, lookfurther.cli.suite\n"
        "assert not {'ray', 'lz4'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1])


# Calls and losses


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
    """Its lanes go on with a new episode, and the slots before the gap stay unsamplable."""
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
    """A clock of its own: every wait takes a second. The others go on in the meantime."""
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


# Checkpoints, weights and metrics


@pytest.mark.parametrize("from_local", [False, True])
def test_checkpoint_continues_on_a_cluster(from_local: bool) -> None:
    """Also that of a local run; actors play other episodes than before."""
    config = make_config()
    with make_local_loop(config, 1) as local:
        before: TrainingLoop = local if from_local else make_cluster_loop(config, OPTIONS)
        while before.learner.updates < 20:
            before.run_iteration()
        files = before.state()
        after = make_cluster_loop(config, OPTIONS)
        assert after.load_state(files, before.learner.updates) == 4
        assert after.step == before.step
        _, backend = cluster_parts(after)
        after.run_iteration()
        assert {incarnation for _, incarnation in backend.launched} == {1}
        resumed = make_cluster_loop(config, OPTIONS)
        resumed.load_state(after.state(), after.learner.updates)
        assert {lease.incarnation for lease in cluster_parts(resumed)[0].leases} == {2}


def test_checkpoint_of_cluster_continues_locally() -> None:
    config = make_config()
    loop = make_cluster_loop(config, OPTIONS)
    while loop.learner.updates < 20:
        loop.run_iteration()
    with make_local_loop(config, 1) as local:
        assert local.load_state(loop.state(), loop.learner.updates) == 4
        for _ in range(20):
            local.run_iteration()


def test_weights_are_sent_at_most_once_in_their_period(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(source_module.time, "monotonic", lambda: now)
    options = ClusterOptions(actors=2, steps_per_chunk=8, weights_seconds=1.0)
    loop = make_cluster_loop(make_config(), options)
    source, backend = cluster_parts(loop)
    for i in range(100):
        now = i / 10
        loop.run_iteration()
    versions = [request.weights_version for _, request in backend.requests]
    assert versions == sorted(versions)
    assert 5 <= source.weights_version <= 10
    age = source.collect_metrics()["weights_age_seconds"]
    assert 0 <= age <= 3
    assert "weights_age_seconds" not in source.collect_metrics()
