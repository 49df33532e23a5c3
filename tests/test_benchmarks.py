"""Every benchmark that needs neither a GPU nor a browser runs, and says what it is there to say."""

from __future__ import annotations

import importlib
import itertools
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lookfurther.runtime import loop
from lookfurther.runtime.metrics import Clock

pytest.importorskip("ale_py")

FOLDER = Path(__file__).parents[1] / "benchmarks"
ROUND = "--rounds 1 --seconds 0.1"
SMALLEST = {
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
    "search": ("ALE/SpaceInvaders-v5 --cores 1 --budget 4000", {"replayed_score", "curve"}),
    "update": (
        "--preset apex-dqfd --scale small --turns 2 --updates 1 --profile",
        {"updates_per_second", "kernels", "floor"},
    ),
    "values": ("shipped/venture --preset apex-dqfd --updates 1 --at 0 9", {"found"}),
}


class Here:
    """A contestant in this process: one of its own takes seconds to start."""

    def __init__(self, build: Callable[..., Any], *arguments: Any) -> None:
        self.absent: str | None = None
        try:
            self.thing = build(*arguments)
        except ImportError as error:
            self.absent = str(error)

    def call(self, method: str, *arguments: Any) -> Any:
        return getattr(self.thing, method)(*arguments)

    def close(self) -> None:
        pass


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SMALLEST)
def test_a_benchmark_runs_and_writes_its_figures(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module(f"benchmarks.{name}")
    arguments, figures = SMALLEST[name]
    file = tmp_path / "figures.json"
    monkeypatch.setattr(sys, "argv", [name, *shlex.split(arguments), "--json", str(file)])
    monkeypatch.setattr(module, "Contestant", Here, raising=False)
    monkeypatch.setattr(module, "confine", lambda cores: None, raising=False)
    monkeypatch.setattr(module, "FILL", 5.0, raising=False)
    # Training is limited in seconds: here of a clock that gains 20 ms at each reading.
    readings = itertools.count(0.0, 0.02)
    monkeypatch.setattr(loop, "Clock", lambda spent=0.0: Clock(spent, lambda: next(readings)))
    module.main()
    found = json.loads(file.read_text())
    assert figures <= found.keys()
    assert "commit" in found["surroundings"]


def test_every_benchmark_is_here_or_needs_more() -> None:
    parts = {"__init__", "measure", "buffers", "films", "stable_baselines", "curves", "moments"}
    elsewhere = {"gpu", "kernels", "one_gpu", "recorder", "storage"}  # a GPU, a browser, minutes
    assert {path.stem for path in FOLDER.glob("*.py")} == parts | elsewhere | set(SMALLEST)


def test_values_are_told_at_the_steps_that_are_named() -> None:
    points = importlib.import_module("benchmarks.values").points
    curve = [(t, t / 2, t) for t in range(95)]
    assert points(curve, [3, 94]) == [curve[3], curve[94]]
    assert [t for t, *_ in points(curve, [])] == list(range(0, 95, 10))
    with pytest.raises(SystemExit, match="--at 95: the episode has steps 0 to 94"):
        points(curve, [95])


def test_curves_of_runs_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    curves = importlib.import_module("benchmarks.curves")
    (tmp_path / "run").mkdir()
    rows = [
        {"step": m, "minutes": m, "updates": 10 * m, "loss": 1 / (1 + m), "q": None}
        for m in range(9)
    ]
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    kept = curves.rows_of(tmp_path / "run")
    x, y = curves.curve(kept, "loss", "updates", 40)
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
