"""lookfurther bench: every measurement is made with the parts of a run, and the table says so."""

from __future__ import annotations

import itertools
import math
import weakref
from functools import partial
from types import SimpleNamespace

import pytest

from lookfurther.cli.bench import format_bench_table, measure_all, parse_bench_options
from lookfurther.presets import preset
from lookfurther.training.throughput import ThroughputBenchmark

CONFIG = preset(
    "apex-dqfd",
    "small",
    env="CartPole-v1",
    demos=("noise",),
    actor__lanes=4,
    replay__capacity=2_000,
    network__hidden=(16,),
    run__device="cpu",
    run__precision="float32",
)


def test_every_measurement_gives_figures_and_the_table_their_ratios(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a clock that gains a hundredth of a second at every reading."""
    clock = SimpleNamespace(perf_counter=partial(next, itertools.count(0.0, 0.01)))
    monkeypatch.setattr("lookfurther.training.throughput.time", clock)
    figures = measure_all(CONFIG, seconds=0.05)
    names = ("environments", "actor", "learner", "replay", "together", "first_update", "memory")
    for name in names:
        for what, value in figures[name].items():
            assert math.isfinite(value), (name, what)
            assert value > 0 or what.startswith("wait"), (name, what)
    text = format_bench_table(figures)
    share = figures["actor"]["steps"] / figures["environments"]["steps"]
    assert f"{share:.0%} of the environments alone" in text
    assert text.splitlines()[-1].startswith("bottleneck: the ")


def test_a_measurement_has_at_least_one_turn() -> None:
    """Also where the machine was busy with other work for longer than the measurement lasts."""
    turns = []
    count, seconds = ThroughputBenchmark(CONFIG, seconds=0.0)._run_timed(lambda: turns.append(None))
    assert count == len(turns) == 1
    assert seconds > 0


@pytest.mark.parametrize(
    ("words", "steps"),
    [([], 200_000), (["--scale=paper"], 2_000_000), (["apex-dqfd"], 2_000_000)],
)
def test_a_machine_without_a_gpu_is_measured_with_what_it_can_hold(
    words: list[str], steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    config = parse_bench_options([*words, "--run.seed", "3"]).config
    assert (config.preset, config.replay.capacity, config.run.seed) == ("apex-dqfd", steps, 3)


def test_the_replay_is_built_once_and_let_go() -> None:
    """The process that measures the first update needs its memory."""
    bench = ThroughputBenchmark(CONFIG, 0.01)
    bench.learner()
    held = weakref.ref(bench.full_mixture.agent)
    bench.replay()
    bench.together(bench.actor()["steps"], updates=100.0)
    assert held() is bench.full_mixture.agent
    bench.close()
    assert held() is None
