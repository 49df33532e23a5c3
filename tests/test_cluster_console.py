"""What a run on a cluster prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="needs the extra ray")

ROOT = Path(__file__).parents[1]
# Kills the actor of a run when it has played, and stops the run when its replacement has played.
RUN = """
import os, signal, sys
from benchmarks.cluster_soak import list_descendants
from lookfurther import Callback, train
from lookfurther.training.cluster.options import ClusterOptions
from tests.cluster_samples import make_config

class KillingCallback(Callback):
    killed = set()

    def on_log(self, run, row):
        processes = list_descendants(os.getpid()).items()
        actors = {pid for pid, command in processes if command.startswith("ray::RayActor")}
        if not self.killed:
            self.killed |= actors
            for pid in actors:
                os.kill(pid, signal.SIGKILL)
        elif row["workers_replaced"]:
            run.stop()

config = make_config(run__folder=sys.argv[1], run__steps=10**9, run__log_period=64)
options = ClusterOptions(actors=1, steps_per_chunk=64)
train(config, cluster=options, callbacks=[KillingCallback()])
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_lost_actor_is_one_line(tmp_path: Path) -> None:
    """Without Ray's own paragraph on the process."""
    command = [sys.executable, "-c", RUN, str(tmp_path / "run")]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    lines = (ended.stdout + ended.stderr).splitlines()
    assert [line for line in lines if "died" in line or "killed" in line] == [
        "warning: actor of lanes 0 to 3 died and is replaced"
    ]
    assert not any("raylet" in line for line in lines)


def test_suite_sets_the_messages_of_ray_before_its_import() -> None:
    """Ray reads the setting when it is imported."""
    code = (
        "import lookfurther.evaluation.cluster_suite, ray._private.ray_constants as constants\n"
        "assert constants.RAY_DEDUP_LOGS_SKIP_REGEX.startswith('^(A worker died')"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
