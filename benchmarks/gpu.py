"""Checks on a GPU: eager, compiled and captured updates agree, and so do replay and emulators.

    python -m benchmarks.gpu [--json FILE]

Makes the same updates eagerly, compiled and captured, and compares the weights. Compares networks
on the GPU with the CPU. Repeats the actions of a run's replay in new emulators.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from benchmarks.measure import add_json_option
from lookfurther.autograd import AutogradPasses
from lookfurther.config import Config, replace
from lookfurther.envs import Envs
from lookfurther.gpu.graphs import WARMUP_CALLS, GraphedCallable
from lookfurther.master_weights import MasterWeights
from lookfurther.networks.dueling import DuelingNetwork, make_network_builder
from lookfurther.presets import preset
from lookfurther.replay.prioritized import PrioritizedReplay
from lookfurther.system.files import write_text
from lookfurther.training.build import build_envs, build_training_envs
from lookfurther.training.hardware import Hardware
from lookfurther.training.launch_limit import MAX_AHEAD
from lookfurther.training.throughput import ThroughputBenchmark
from lookfurther.training.updates import UpdateRunner
from lookfurther.training.weight_sync import WeightSync
from lookfurther.types import FIRST, TERMINAL, TRUNCATED, Spec

ATARI = Spec("ALE/MontezumaRevenge-v5", (1, 84, 84), 4, "uint8", 18, 255.0)
CAPTURED_UPDATES, COMPILED_UPDATES = 120, 8  # updates before weights are compared
MAX_PRINTED = 10  # slots that differ
CUDA = torch.device("cuda")


def small_config(name: str, **settings: Any) -> Config:
    """A run whose replay fills quickly."""
    base = preset(name, env=ATARI.env, demos=("noise",), actor__lanes=8, replay__capacity=16_000)
    return replace(base, run__device="cuda", **settings)


def weights_after(config: Config, updates: int, captured: bool) -> torch.Tensor:
    """The weights after a number of updates, in calls of 1, 2, 4, ... updates."""
    torch.manual_seed(0)
    bench = ThroughputBenchmark(config, 0.0)
    runner: Any = UpdateRunner(bench.full_mixture, bench.build_learner())
    if not captured:  # call the functions that the graphs were made from
        runner.prepare_first_batch = runner.prepare_first_batch.fn
        runner.graphed_updates = {
            key: graphed.fn for key, graphed in runner.graphed_updates.items()
        }
    while runner.learner.updates < updates:
        runner.run(min(runner.update_count + 1, updates - runner.learner.updates))
    runner.learner.raise_if_diverged()
    return torch.cat([p.detach().flatten() for p in runner.learner.parameters])


def check_updates(precision: str) -> dict[str, float]:
    """Largest and mean difference of weights, in units of one Adam step."""
    differences = {}
    config = small_config("apex-dqfd", run__precision=precision, learner__target_period=9)
    eager, fused = (replace(config, run__compile=compiled) for compiled in ("off", "on"))
    # Rounding changes which items are sampled later on, so compiled and eager updates are
    # compared after a few updates only.
    for name, first, second, updates in (
        ("captured against eager", (eager, False), (eager, True), CAPTURED_UPDATES),
        ("compiled, captured against called", (fused, False), (fused, True), CAPTURED_UPDATES),
        ("compiled against eager", (eager, False), (fused, True), COMPILED_UPDATES),
    ):
        torch._dynamo.reset()  # earlier compilations count against its limit
        weights = [
            weights_after(settings, updates, captured) for settings, captured in (first, second)
        ]
        difference = (weights[0] - weights[1]).abs() / config.learner.learning_rate
        differences[f"{precision} {name} max"] = float(difference.max())
        differences[f"{precision} {name} mean"] = float(difference.mean())
    return differences


def check_networks() -> dict[str, float]:
    """Largest difference of values between GPU and CPU, divided by their standard deviation.

    For the Triton kernels, in float32, also of gradients, divided by the largest of each tensor.
    """
    from lookfurther.gpu.dueling import FusedDuelingPasses

    differences, x = {}, torch.randint(0, 256, (8, *ATARI.observation_shape), dtype=torch.uint8)
    for name in ("apex-dqfd", "apex-dqfd-deeper"):
        network = make_network_builder(preset(name).network)(ATARI)
        assert isinstance(network, DuelingNetwork)
        gpu_network = copy.deepcopy(network).to(CUDA)
        q, gpu_q = network(x), gpu_network(x.to(CUDA)).cpu()
        differences[f"values, {name}"] = float(((q - gpu_q) / q.std()).detach().abs().max())
        expected = values_and_gradients(AutogradPasses(), network, network.prepare_inputs(x))
        actual = values_and_gradients(FusedDuelingPasses(CUDA), gpu_network, x.to(CUDA))
        differences[f"values and gradients by kernels, {name}"] = max_relative_difference(
            actual, expected
        )
    return differences


def values_and_gradients(
    passes: AutogradPasses, network: nn.Module, inputs: torch.Tensor
) -> list[torch.Tensor]:
    """Q-values, and the gradients of all parameters for a gradient with unequal entries."""
    q, saved = passes.forward(network, inputs)
    grad_q = torch.linspace(-1, 2, q.numel(), device=q.device).view(q.shape)
    return [q, *passes.backward(network, saved, grad_q)]


def max_relative_difference(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """The largest difference, divided by the largest value of each tensor."""
    pairs = zip(actual, expected, strict=True)
    return max(float((a.to(b.device) - b).abs().max() / b.abs().max()) for a, b in pairs)


def check_captured_noise(passes_per_kind: int = 200) -> dict[str, float]:
    """Noisy layers in a captured graph draw new noise at each replay, as large as otherwise."""
    network = make_network_builder(preset("rainbow").network)(ATARI).to(CUDA).train()
    assert isinstance(network, DuelingNetwork)
    observations = torch.randint(0, 256, (8, *ATARI.observation_shape), dtype=torch.uint8)
    inputs, passes = network.prepare_inputs(observations.to(CUDA)), AutogradPasses(compiled=True)
    outputs = torch.empty_like(passes.forward(network, inputs)[0])
    captured = GraphedCallable(lambda: outputs.copy_(passes.forward(network, inputs)[0]), CUDA)
    draws: dict[str, list[torch.Tensor]] = {"called": [], "captured": []}
    for _ in range(WARMUP_CALLS):
        captured()
    for kind, run in (("captured", captured), ("called", captured.fn)):
        for _ in range(passes_per_kind):
            run()
            draws[kind].append(outputs.clone())
    called, replayed = torch.stack(draws["called"]), torch.stack(draws["captured"])
    is_repeated = (replayed[1:] == replayed[:-1]).flatten(1).all(1)
    return {
        f"repeated noise of {passes_per_kind} captured passes": float(is_repeated.sum()),
        "spread of captured noise / called": float(replayed.std(0).mean() / called.std(0).mean()),
    }


class SlotDifference(NamedTuple):
    """A slot of a lane that differs from a new emulator."""

    lane: int
    t: int
    fields: str  # those of plane, marks and reward that differ
    pixels: int


def check_replay_contents(config: Config, iterations: int) -> dict[str, float]:
    """Counts the slots of a run's replay that new emulators, given its actions, do not reproduce.

    If some differ, a second set of emulators plays. A slot is wrong if both sets disagree with it.
    """
    with closing(ThroughputBenchmark(config, 0.0)) as bench:
        loop = bench.build_loop(bench.build_empty_mixture())
        for _ in range(iterations):
            loop.run_iteration()
        loop.raise_if_diverged()
    replay = loop.mixture.agent
    first = set(_replayed_differences(replay, config))
    second = set(_replayed_differences(replay, config)) if first else first
    for slot in sorted(first | second)[:MAX_PRINTED]:
        print(f"  {slot} in {'both' if slot in first & second else 'one of two'}", flush=True)
    total = f"of {replay.inserted:,}"
    return {
        f"wrong slots {total}": len(first & second),
        f"emulators that disagree {total}": len(first ^ second),
    }


def _replayed_differences(replay: PrioritizedReplay, config: Config) -> Iterator[SlotDifference]:
    """The slots that new emulators do not reproduce."""
    first, groups = 0, Hardware.resolve(config).lane_groups
    build_group = partial(build_envs, config.env, config)
    for envs in build_training_envs(build_group, config.actor, groups):
        lanes = range(first, first := first + envs.lanes)
        with closing(envs):
            yield from _lane_differences(replay, lanes, envs)


def _lane_differences(
    replay: PrioritizedReplay, lanes: range, envs: Envs
) -> Iterator[SlotDifference]:
    """The slots of these lanes whose plane, reward or marks differ from those of `envs`."""
    state, own_lanes = replay.state(), slice(lanes.start, lanes.stop)
    written = int(replay.cursor[own_lanes].min())
    assert written == int(replay.cursor[own_lanes].max()) < replay.slots_per_lane
    names = ("planes", "actions", "rewards", "marks")
    stored = {name: state[name][own_lanes, :written].cpu().numpy() for name in names}
    step = envs.reset()
    for t in range(written):
        marks = step.first * FIRST + step.terminal * TERMINAL + step.truncated * TRUNCATED
        plane = step.observation[:, -replay.spec.plane[0] :].reshape(envs.lanes, -1)
        envs.send(stored["actions"][:, t, 0].astype(np.int64))
        step = envs.recv()
        pixels = (stored["planes"][:, t] != plane).sum(-1)
        differs = {
            "plane": pixels > 0,
            "marks": stored["marks"][:, t, 0] != marks,
            "reward": stored["rewards"][:, t, 0] != step.reward,
        }
        for i in np.flatnonzero(np.any(list(differs.values()), 0)):
            fields = ", ".join(name for name, wrong in differs.items() if wrong[i])
            yield SlotDifference(lanes[i], t, fields, int(pixels[i]))


def check_weight_sync() -> float:
    """Largest difference of the actors' weights from the expected ones, over 100 syncs."""
    learner_weights, actor_weights = (
        MasterWeights(nn.Linear(512, 512, device=CUDA), torch.bfloat16) for _ in (0, 1)
    )
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    weight_sync, difference = WeightSync(actor_weights, streams), 0.0
    actor_tensor = actor_weights.compute_tensors[0]
    learner_tensor = learner_weights.master_tensors[0].data
    for sync in range(100):
        before, after = actor_tensor.clone(), learner_tensor.to(torch.bfloat16)
        weight_sync.publish(learner_weights)
        learner_tensor += 1.0  # the learner continues
        for left in range(MAX_AHEAD + 1, 0, -1):
            torch.cuda.synchronize()
            difference = max(difference, float((actor_tensor - before).detach().abs().max()))
            assert weight_sync.ticks_left == left, sync
            weight_sync.tick()
        torch.cuda.synchronize()
        difference = max(difference, float((actor_tensor - after).detach().abs().max()))
    return difference


def run_checks() -> Iterator[tuple[str, float]]:
    """All checks: name and result."""
    yield from check_networks().items()
    yield "actor weights", check_weight_sync()
    yield from check_captured_noise().items()
    for precision in ("float32", "bfloat16"):
        yield from check_updates(precision).items()
    config = preset("apex-dqn", env="ALE/Breakout-v5", environment__max_episode_length=300)
    config = replace(config, replay__learning_starts=20_000, replay__capacity=200_000)
    yield from check_replay_contents(config, iterations=2_000).items()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_json_option(parser)
    options = parser.parse_args()
    figures: dict[str, Any] = {"device": torch.cuda.get_device_name(0), "torch": torch.__version__}
    for name, value in run_checks():
        print(f"{name}: {value:.3g}", flush=True)
        figures[name] = value
    if options.json:
        write_text(options.json, json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
