"""The source of chunks on a cluster is equal to the local one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lookfurther.training.loop import TrainingLoop, updates_due

pytest.importorskip("lz4", reason="needs the extra ray")

from lookfurther.training.cluster import source as source_module
from lookfurther.training.cluster.options import ClusterOptions, make_reproducible_options
from tests.cluster_samples import (
    OPTIONS,
    assert_loops_equal,
    cluster_parts,
    make_cluster_loop,
    make_config,
    make_local_loop,
)

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
