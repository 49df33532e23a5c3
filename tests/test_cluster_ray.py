"""Training on a real Ray cluster of several nodes on this machine."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs the extra ray")

import ray
from ray.cluster_utils import Cluster

from lookfurther.cli.main import main
from lookfurther.errors import ClusterFault, EnvironmentFault
from lookfurther.training.checkpoints import checkpoint
from lookfurther.training.cluster import source as source_module
from lookfurther.training.cluster.options import ClusterOptions, make_reproducible_options
from lookfurther.training.cluster.ray_backend import RayBackend
from lookfurther.training.cluster.source import ClusterSource, Lease
from lookfurther.training.loop import TrainingLoop
from lookfurther.training.monitoring.metrics import read_metrics
from lookfurther.training.train import train
from tests.cluster_samples import (
    assert_loops_equal,
    make_cluster_loop,
    make_config,
    make_local_loop,
)
from tests.test_learning import ChainEnv, chain_demo, mean_score, small_config

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # warnings of Ray
OPTIONS = ClusterOptions(actors=3, steps_per_chunk=64, weights_seconds=0.0)


HEAD = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": 10**8}


def retry_start(start: Callable[[], Any]) -> Any:
    """Try again if Ray was too slow: it gives each of its processes 30 seconds to start."""
    for _ in range(5):
        try:
            return start()
        except Exception as error:
            if "timed out" not in str(error):
                raise
    pytest.skip("this machine is too busy for Ray to start")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head with two cores, where this process is, and a node with one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_memory_monitor_refresh_ms", "0")  # other processes may use the memory
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
        cluster = retry_start(lambda: Cluster(initialize_head=True, head_node_args=HEAD))
        ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        add_node(cluster)
        yield cluster
        ray.shutdown()
        cluster.shutdown()


def add_node(cluster: Cluster) -> None:
    """Add a node with one core; the actors wait for it."""
    node = {"num_cpus": 1, "object_store_memory": 10**8}
    retry_start(lambda: cluster.add_node(wait=False, **node))


@pytest.fixture(scope="module")
def loop(cluster: Cluster) -> Iterator[TrainingLoop]:
    """One run for most tests, because each actor imports torch: three actors on two nodes."""
    loop = make_cluster_loop(make_config(), OPTIONS, RayBackend)
    run_until(loop, lambda: has_all_actors(loop))
    yield loop
    source_of(loop).close()


def source_of(loop: TrainingLoop) -> ClusterSource:
    assert isinstance(loop.chunk_source, ClusterSource)
    return loop.chunk_source


def run_until(loop: TrainingLoop, is_done: Callable[[], bool]) -> list[int]:
    """Run iterations; returns the number of steps after each. The timeout of pytest ends it."""
    counts = []
    while not is_done():
        loop.run_iteration()
        counts.append(loop.step)
    return counts


def has_all_actors(loop: TrainingLoop) -> bool:
    return all(lease.next_sequence for lease in source_of(loop).leases)


def send_signal(lease: Lease, number: int) -> None:
    """Send a signal to the process of an actor."""
    os.kill(ray.get(lease.actor.__ray_call__.remote(lambda actor: os.getpid())), number)


def test_ray_in_turn_equals_local_run(cluster: Cluster) -> None:
    """The same replay, weights and statistics after N updates, bit for bit."""
    config = make_config()
    loop = make_cluster_loop(config, make_reproducible_options("local", 2), RayBackend)
    with make_local_loop(config, 2) as local:
        for _ in range(120):
            loop.run_iteration()
            local.run_iteration()
        assert local.learner.updates > 50
        assert_loops_equal(loop, local)
    source_of(loop).close()


def test_actors_are_on_both_nodes(loop: TrainingLoop) -> None:
    """Those of the other node compress their planes."""
    source = source_of(loop)
    nodes = {lease.node for lease in source.leases}
    assert len(nodes) == 2
    assert source.backend.local_node in nodes


def test_memory_of_waiting_chunks_is_bounded(loop: TrainingLoop) -> None:
    """A learner that does not collect leaves two chunks of each actor, however long it waits."""
    for _ in range(3):
        source_of(loop).start_step()
        for lease in source_of(loop).leases:
            ray.wait(list(lease.calls), num_returns=len(lease.calls))
            assert len(lease.calls) == 2


def test_error_of_environment_names_it(loop: TrainingLoop) -> None:
    def fail(actor: Any) -> None:
        raise EnvironmentFault("CartPole-v1, lane 0: the reward is nan")

    source = source_of(loop)
    call = source.leases[0].actor.__ray_call__.remote(fail)
    with pytest.raises(EnvironmentFault, match=r"^CartPole-v1, lane 0: the reward is nan$"):
        source.backend.fetch(call)


def assert_replaced(loop: TrainingLoop, lost: Lease, reason: str) -> None:
    """Every step is counted once, with new episodes in the lanes of the lost actor."""
    assert lost.incarnation > 0
    counts = run_until(loop, lambda: lost.next_sequence > 0)
    assert all(b > a for a, b in pairwise(counts))
    assert source_of(loop).worker_replacements[-1] == f"{lost} {reason} and is replaced"
    assert loop.mixture.agent.cursor.sum() == loop.step


def test_killed_actor_is_replaced(loop: TrainingLoop) -> None:
    lost = source_of(loop).leases[1]
    before = lost.incarnation
    send_signal(lost, signal.SIGKILL)
    run_until(loop, lambda: lost.incarnation > before)
    assert_replaced(loop, lost, "died")


def test_hanging_actor_is_killed_and_replaced(
    loop: TrainingLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock advances when all others have answered, so the load of the machine is no fault."""
    lost, *others = source_of(loop).leases
    before, replaced = lost.incarnation, len(source_of(loop).worker_replacements)
    send_signal(lost, signal.SIGSTOP)
    start, hours = time.monotonic(), 0
    monkeypatch.setattr(
        source_module, "time", SimpleNamespace(monotonic=lambda: start + 3600 * hours)
    )
    while lost.incarnation == before:
        source_of(loop).start_step()
        ray.wait([lease.calls[0] for lease in others], num_returns=len(others))
        hours += 1
        loop.run_iteration()
    monkeypatch.undo()
    assert len(source_of(loop).worker_replacements) == replaced + 1
    assert_replaced(loop, lost, "did not answer for 120 s")


def test_lost_node_is_replaced_by_another(cluster: Cluster, loop: TrainingLoop) -> None:
    source = source_of(loop)
    run_until(loop, lambda: has_all_actors(loop))
    node = next(node for node in cluster.list_all_nodes() if not node.head)
    cluster.remove_node(node, allow_graceful=False)
    run_until(loop, lambda: source.collect_metrics()["actors"] == 2)
    step = loop.step
    add_node(cluster)
    counts = run_until(loop, lambda: has_all_actors(loop))
    assert counts == sorted(counts)
    assert loop.step > step
    assert source.collect_metrics()["actors"] == 3


def test_all_actors_lost_without_replacement_stops_the_run(loop: TrainingLoop) -> None:
    source = source_of(loop)
    config = make_config(environment__max_failures=1)
    source.setup = replace(source.setup, config=config)
    for lease in source.leases:
        send_signal(lease, signal.SIGKILL)
    with pytest.raises(ClusterFault, match="died: failure 1 in a row"):
        run_until(loop, lambda: False)


def test_sigterm_saves_checkpoint_of_cluster_run(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray replaces the handler of SIGTERM when it starts; the run installs its own later."""
    real = TrainingLoop.run_iteration

    def run_iteration(loop: TrainingLoop) -> None:
        real(loop)
        if loop.step > 200:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(TrainingLoop, "run_iteration", run_iteration)
    config = make_config(run__folder=str(tmp_path / "run"), run__steps=10**6)
    summary = train(config, cluster=ClusterOptions(actors=1, steps_per_chunk=64))
    assert summary.stop_reason == "SIGTERM"
    saved, _ = checkpoint.load_newest(tmp_path / "run" / "checkpoints")
    assert saved is not None
    assert saved.metadata["step"] == summary.step > 200
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert rows[-1]["actors"] >= 1
    assert rows[-1]["weights_age_seconds"] >= 0


@pytest.mark.timeout(1800)
def test_chain_is_learned_on_a_cluster(cluster: Cluster, tmp_path: Path) -> None:
    """To the score and with the settings of the local run in `test_learning.py`."""
    demos = [chain_demo(tmp_path)]
    config = small_config("apex-dqfd", tmp_path / "run", demos=demos, run__steps=12_000)
    summary = train(config, env=ChainEnv, cluster=ClusterOptions(actors=2), quiet=True)
    assert summary.step >= 12_000
    assert mean_score(tmp_path / "run", ChainEnv) >= 0.9


def test_check_reports_every_node(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "check", "auto", "--env", "CartPole-v1"]) == 0
    output = capsys.readouterr().out
    assert "2 actors, one for each core but one" in output
    assert "expected: " in output
    assert output.count(ray.__version__) == 2


def test_suite_runs_on_all_nodes_and_resumes(cluster: Cluster, tmp_path: Path) -> None:
    """Both nodes have no GPU: each is one slot, and each has one of the runs."""
    suite_file = tmp_path / "small.toml"
    suite_file.write_text(SUITE)
    command = ["suite", str(suite_file), "--out", str(tmp_path / "runs"), "--cluster", "auto"]
    assert main(command) == 0
    folders = sorted(path for path in (tmp_path / "runs").iterdir() if path.is_dir())
    assert len(folders) == 2
    times = [(folder / "metrics.jsonl").stat().st_mtime_ns for folder in folders]
    assert main(command) == 0
    assert times == [(folder / "metrics.jsonl").stat().st_mtime_ns for folder in folders]


SUITE = """
envs = ["CartPole-v1"]
presets = ["no-demos"]
seeds = [0, 1]
scale = "small"
budget = {steps = 200}
[settings]
actor.lanes = 4
replay.capacity = 400
replay.learning_starts = 60
network.hidden = [16]
learner.agent_items = 16
run.threads = 1
run.device = "cpu"
"""
