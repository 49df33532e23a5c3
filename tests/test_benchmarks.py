"""Every benchmark that needs neither a GPU nor a browser runs and writes its figures."""

from __future__ import annotations

import importlib
import itertools
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lookfurther.cli.main import main
from lookfurther.config import EnvConfig
from lookfurther.demos import storage
from lookfurther.demos.episode import InputLog
from lookfurther.demos.playback import episode_from_log
from lookfurther.envs import get_spec
from lookfurther.training import run
from lookfurther.training.monitoring.metrics import TrainingClock
from tests.test_docs_shell import COMMANDS

pytest.importorskip("ale_py")

ROOT = Path(__file__).parents[1]
GAME = "ALE/MontezumaRevenge-v5"
ROUND = "--rounds 1 --seconds 0.1"
# Options that make each command short, and keys of the figures it writes.
SHORT_OPTIONS = {
    "actor": (f"{ROUND} --lanes 2", {"share_of_bare_environment"}),
    "replay": (
        f"{ROUND} --lanes 2 --steps 2000 --allow-missing",
        {"speedup_over_fastest_peer", "bytes_per_step"},
    ),
    "end_to_end": (
        "--rounds 1 --seconds 8 --warm 0 --lanes 4 --allow-missing",
        {"speed_ratio", "speed_ratio_many_environments"},
    ),
    "evaluation": (f"{ROUND} --lanes 2", {"share_of_bare_environment"}),
    "evaluation --random": ("--random ALE/Breakout-v5 --episodes 2 --lanes 2", {"games"}),
    "load": (f"{ROUND} --busy 1 --tasks CartPole", {"tasks"}),
    "update": (
        "--preset apex-dqfd --scale small --rounds 2 --updates 1",
        {"updates_per_second", "kernels", "floor"},
    ),
    "values": ("--preset apex-dqfd --updates 1 --at 0 9", {"found"}),
    "storage": ("--rounds 1 --steps 100", {"ways"}),
    "curves": ("", set()),
}
# Commands that `test_docs.py` only parses, and what they need.
NOT_RUN = {
    "cluster": "Ray, which `test_cluster_ray.py` starts",
    "cluster_hosts": "Ray, and root for network namespaces",
    "cluster_soak": "Ray, and 20 minutes",
    "cluster_stops": "Ray, and its start three times",
    "di_engine": "DI-engine, whose requirements conflict with ours",
    "dopamine": "runs of hours on a CPU; `test_dopamine.py` has written ones",
    "gpu": "a GPU",
    "kernels": "a GPU",
    "one_gpu": "a GPU",
    "recorder": "a browser",
    "results_page": "nothing; `test_docs.py` compares its tables",
    "search": "minutes to the first points of Montezuma's Revenge; another game runs below",
}
PROGRAMS = ("python -m analysis.", "python -m benchmarks.")
DOCUMENTED = [words for _, words in COMMANDS if " ".join(words).startswith(PROGRAMS)]


class InProcess:
    """Replaces BenchmarkProcess: a subprocess takes seconds to start."""

    def __init__(self, build: Callable[..., Any], *arguments: Any) -> None:
        self.missing_reason: str | None = None
        try:
            self.target = build(*arguments)
        except ImportError as error:
            self.missing_reason = str(error)

    def call(self, method: str, *arguments: Any) -> Any:
        return getattr(self.target, method)(*arguments)

    def close(self) -> None:
        pass


def run_benchmark(words: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run a benchmark in this process and return the figures it writes."""
    module = importlib.import_module(words[0])
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.setattr(module, "BenchmarkProcess", InProcess, raising=False)
    monkeypatch.setattr(module, "limit_cores", lambda cores: None, raising=False)
    monkeypatch.setattr(module, "FILL", 5.0, raising=False)
    # Training has a limit in seconds: this clock gains 20 ms with each reading.
    readings = itertools.count(0.0, 0.02)
    monkeypatch.setattr(
        run, "TrainingClock", lambda spent=0.0: TrainingClock(spent, lambda: next(readings))
    )
    module.main()
    return json.loads(Path("figures.json").read_text()) if "figures.json" in words else {}


@pytest.fixture(scope="module")
def page_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the demonstration sets of the commands, 15 steps each, and a run named RUN."""
    folder = tmp_path_factory.mktemp("page")
    episodes = [episode_from_log(InputLog(np.zeros(60, np.uint8)), GAME)]
    for name in ("montezuma-v0", "montezuma-aligned-v0"):
        storage.save_episodes(
            name, episodes, get_spec(GAME, EnvConfig()), "a test", folder / "sets"
        )
    words = (
        f"train apex-dqfd --env {GAME} --demos {folder}/sets/montezuma-v0"
        f" --run.folder {folder}/RUN --run.steps 120 --run.log-period 60"
        " --actor.lanes 4 --replay.capacity 400 --replay.learning-starts 60"
        " --learner.agent-items 16 --network.convolutions 4 4 4 --network.hidden 16"
    )
    assert main(words.split()) == 0
    return folder


def command_key(words: list[str]) -> str:
    """The key of a command in `SHORT_OPTIONS`."""
    name = words[2].partition(".")[2]
    return f"{name} --random" if "--random" in words else name


RUN_COMMANDS = [words for words in DOCUMENTED if command_key(words) not in NOT_RUN]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "words", RUN_COMMANDS, ids=[" ".join(words)[:60] for words in RUN_COMMANDS]
)
def test_documented_benchmark_writes_its_figures(
    words: list[str], page_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(page_folder)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(page_folder / "sets"))
    arguments, figures = SHORT_OPTIONS[command_key(words)]
    json_option = [] if command_key(words) == "curves" else ["--json", "figures.json"]
    found = run_benchmark([*words[2:], *arguments.split(), *json_option], monkeypatch)
    assert figures <= found.keys()
    assert not figures or "commit" in found["surroundings"]


@pytest.mark.slow
def test_search_benchmark_writes_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = "benchmarks.search ALE/SpaceInvaders-v5 --cores 1 --budget 4000 --json figures.json"
    assert {"replayed_score", "curve"} <= run_benchmark(words.split(), monkeypatch).keys()


def test_every_benchmark_is_documented() -> None:
    parts = {"__init__", "measure", "buffers", "synthetic_trajectories", "stable_baselines"}
    parts |= {"di_engine_losses", "di_engine_pipeline"}
    parts |= {"names"}  # test_names.py
    parts |= {"network_hosts", "delayed_link"}  # of cluster_hosts
    documented = {words[2].partition(".")[2] for words in DOCUMENTED}
    paths = [*(ROOT / "analysis").glob("*.py"), *(ROOT / "benchmarks").glob("*.py")]
    assert {path.stem for path in paths} == parts | documented
    assert {command_key(words) for words in DOCUMENTED} == set(SHORT_OPTIONS) | set(NOT_RUN)


def test_values_are_printed_at_given_steps() -> None:
    select_points = importlib.import_module("analysis.values").select_points
    curve = [(t, t / 2, t) for t in range(95)]
    assert select_points(curve, [3, 94]) == [curve[3], curve[94]]
    assert [t for t, *_ in select_points(curve, [])] == list(range(0, 95, 10))
    with pytest.raises(SystemExit, match="--at 95: the episode has steps 0 to 94"):
        select_points(curve, [95])


def test_curves_draws_metrics_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    curves = importlib.import_module("analysis.curves")
    (tmp_path / "run").mkdir()
    rows = [
        {"step": m, "minutes": m, "updates": 10 * m, "loss": 1 / (1 + m), "q": None}
        for m in range(9)
    ]
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    loaded = curves.load_metrics(tmp_path / "run")
    x, y = curves.bounded_series(loaded, "loss", "updates", 40)
    assert x.tolist() == [0, 10, 20, 30, 40]
    assert y.tolist() == [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5]
    out, run = tmp_path / "out.png", f"a={tmp_path / 'run'}"
    monkeypatch.setattr(sys, "argv", ["curves", str(out), run, "--show", "loss", "q"])
    curves.main()
    assert out.read_bytes().startswith(b"\x89PNG")
    for words, message in (
        ([run, "--show", "lost"], "there is no metric lost"),
        ([f"a={tmp_path}", "--show", "loss"], "holds no metrics"),
    ):
        monkeypatch.setattr(sys, "argv", ["curves", str(out), *words])
        with pytest.raises(SystemExit, match=message):
            curves.main()
