"""Jobs of a suite on a cluster: which slots there are, and what happens if a node is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs the extra ray")

from ray import exceptions

from lookfurther.evaluation import cluster_suite
from lookfurther.evaluation.cluster_suite import ClusterSuite, JobSlot, RunningJob
from tests.test_suite import ONE_JOB_SUITE, build_suite_jobs


def test_each_gpu_and_each_node_without_one_is_a_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        {"NodeID": "a", "Alive": True, "Resources": {"CPU": 8.0, "GPU": 2.0}},
        {"NodeID": "b", "Alive": True, "Resources": {"CPU": 8.0}},
        {"NodeID": "c", "Alive": False, "Resources": {"GPU": 8.0}},
    ]
    monkeypatch.setattr(cluster_suite.ray, "nodes", lambda: nodes)
    slots = [JobSlot("a", 0, 1), JobSlot("a", 1, 1), JobSlot("b", 0, 0)]
    assert cluster_suite.list_slots() == slots


def test_job_of_a_lost_node_waits_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its node was lost for the third time, it has failed."""

    def lose_node(call: Any) -> int:
        raise exceptions.RayActorError

    monkeypatch.setattr(cluster_suite.ray, "get", lose_node)
    [job] = build_suite_jobs(tmp_path, ONE_JOB_SUITE)
    states = []
    suite = ClusterSuite([job], lambda job: states.append(job.state), tmp_path / "shared")
    for _ in range(cluster_suite.MAX_LOSSES):
        assert list(suite.waiting) == [job]
        suite.waiting.clear()
        suite.running["call"] = RunningJob(job, JobSlot("a", 0, 0), None)
        suite._finish_job("call")
    assert states == ["waiting", "waiting", "failed"]
    assert job.failure == "its node was lost 3 times"
    assert not suite.waiting
