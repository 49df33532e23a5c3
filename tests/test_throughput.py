"""lookfurther bench: every measurement uses the parts of a run and appears in the table."""

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


def test_every_measurement_gives_finite_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The clock gains a hundredth of a second at every reading."""
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


def test_measurement_has_at_least_one_call() -> None:
    """Also if the machine is busy for longer than the measurement."""
    calls = []
    count, seconds = ThroughputBenchmark(CONFIG, seconds=0.0)._run_timed(lambda: calls.append(None))
    assert count == len(calls) == 1
    assert seconds > 0


@pytest.mark.parametrize(
    ("words", "steps"),
    [([], 200_000), (["--scale=paper"], 2_000_000), (["apex-dqfd"], 2_000_000)],
)
def test_bench_without_gpu_uses_small_scale(
    words: list[str], steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    config = parse_bench_options([*words, "--run.seed", "3"]).config
    assert (config.preset, config.replay.capacity, config.run.seed) == ("apex-dqfd", steps, 3)


def test_replay_is_built_once_and_freed() -> None:
    """The process that measures the first update needs the memory."""
    bench = ThroughputBenchmark(CONFIG, 0.01)
    bench.learner()
    replay = weakref.ref(bench.full_mixture.agent)
    bench.replay()
    bench.together(bench.actor()["steps"], updates=100.0)
    assert replay() is bench.full_mixture.agent
    bench.close()
    assert replay() is None


def test_settings_that_play_demonstrations_can_be_measured() -> None:
    """The demonstrations of the benchmark are noise that no lane can play."""
    pytest.importorskip("ale_py")
    config = preset(
        "encore",
        "small",
        env="ALE/Pong-v5",
        demos=("noise",),
        actor__lanes=2,
        actor__jump_start_share=0.5,
        actor__max_reward_gap=1.5,
        replay__expert_noop_starts=True,
        replay__capacity=4_000,
        replay__learning_starts=200,
        network__convolutions=(2, 2, 2),
        network__hidden=(4,),
        run__device="cpu",
    )
    bench = ThroughputBenchmark(config, 0.01)
    assert bench.actor()["steps"] > 0
    assert bench.learner()["updates"] > 0
    bench.close()
