"""Every benchmark that runs without a GPU still runs, and says what it is there to say."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

ROUND = "--rounds 1 --cores 1"
SMALLEST = {
    "actor": (f"{ROUND} --seconds 0.2 --lanes 2", {"share_of_bare_environment"}),
    "replay": (
        f"{ROUND} --seconds 0.2 --lanes 2 --steps 2000 --allow-missing",
        {"speedup_over_fastest_peer", "bytes_per_step"},
    ),
    "end_to_end": (
        f"{ROUND} --seconds 5 --warm 0 --lanes 4 --allow-missing",
        {"speed_ratio", "speed_ratio_many_environments"},
    ),
    "evaluation": (f"{ROUND} --seconds 0.2 --lanes 2", {"share_of_bare_environment"}),
    "search": ("ALE/SpaceInvaders-v5 --cores 1 --budget 4000", {"replayed_score", "curve"}),
    "values": ("shipped/venture --preset apex-dqfd --updates 1", {"found"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALLEST)
def test_a_benchmark_runs_and_writes_its_figures(name: str, tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    arguments, figures = SMALLEST[name]
    command = [sys.executable, "-m", f"benchmarks.{name}", *arguments.split()]
    file = tmp_path / "figures.json"
    done = subprocess.run(
        [*command, "--json", str(file)], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    assert figures <= found.keys()
    assert "commit" in found["surroundings"]


def test_every_benchmark_is_here_or_needs_more_than_a_minute_on_two_cores() -> None:
    parts = {"__init__", "measure", "buffers", "films", "stable_baselines"}
    elsewhere = {"gpu", "one_gpu", "recorder", "storage"}
    names = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
    assert names == parts | elsewhere | set(SMALLEST)
