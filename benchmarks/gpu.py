"""On a GPU: eager = compiled = captured, and what the replay holds is what happened.

    python -m benchmarks.gpu [--json FILE]

Makes the same updates three ways from one seed and compares the weights, holds the networks
against the CPU, and plays the actions that a run left in its replay again in fresh emulators.
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
from lookfurther.master_weights import MasterWeights
from lookfurther.networks import DuelingNetwork, make_network_builder
from lookfurther.presets import preset
from lookfurther.replay.prioritized import PrioritizedReplay
from lookfurther.training.build import build_envs, build_training_envs
from lookfurther.training.launch_limit import MAX_AHEAD
from lookfurther.training.run_dir import write_text
from lookfurther.training.throughput import ThroughputBenchmark
from lookfurther.training.updates import UpdateRunner
from lookfurther.training.weight_sync import WeightSync
from lookfurther.types import FIRST, TERMINAL, TRUNCATED, Spec

ATARI = Spec("ALE/MontezumaRevenge-v5", (1, 84, 84), 4, "uint8", 18, 255.0)
CAPTURED_UPDATES, COMPILED_UPDATES = 120, 8  # updates after which weights are compared
MAX_PRINTED = 10  # of the slots that differ
CUDA = torch.device("cuda")


def small_config(name: str, **settings: Any) -> Config:
    """A run whose replay fills in a moment."""
    base = preset(name, env=ATARI.env, demos=("noise",), actor__lanes=8, replay__capacity=16_000)
    return replace(base, run__device="cuda", **settings)


def weights_after(config: Config, updates: int, captured: bool) -> torch.Tensor:
    """The weights that so many updates lead to, in turns of 1, 2, 4, ... of them."""
    torch.manual_seed(0)
    bench = ThroughputBenchmark(config, 0.0)
    work: Any = UpdateRunner(bench.full_mixture, bench.build_learner())
    if not captured:  # call the functions that the graphs were made from
        work.prepare_first_batch = work.prepare_first_batch.fn
        work.graphed_updates = {key: graphed.fn for key, graphed in work.graphed_updates.items()}
    while work.learner.updates < updates:
        work.run(min(work.update_count + 1, updates - work.learner.updates))
    work.learner.raise_if_diverged()
    return torch.cat([p.detach().flatten() for p in work.learner.parameters])


def check_updates(precision: str) -> dict[str, float]:
    """Largest difference of weights against others, in units of one Adam step."""
    found = {}
    config = small_config("apex-dqfd", run__precision=precision, learner__target_period=9)
    eager, fused = (replace(config, run__compile=compiled) for compiled in ("off", "on"))
    # Rounding changes which items are drawn, in time: compiled updates are held against eager
    # ones at the start alone.
    for name, one, other, updates in (
        ("captured against eager", (eager, False), (eager, True), CAPTURED_UPDATES),
        ("compiled, captured against called", (fused, False), (fused, True), CAPTURED_UPDATES),
        ("compiled against eager", (eager, False), (fused, True), COMPILED_UPDATES),
    ):
        torch._dynamo.reset()  # what was compiled before counts against its limit
        weights = [
            weights_after(settings, updates, captured) for settings, captured in (one, other)
        ]
        apart = (weights[0] - weights[1]).abs() / config.learner.learning_rate
        found[f"{precision} {name} max"] = float(apart.max())
        found[f"{precision} {name} mean"] = float(apart.mean())
    return found


def check_networks() -> dict[str, float]:
    """Largest difference of values on the GPU from those on the CPU, over their spread.

    By the learner's own kernels, in float32, that of gradients too, over the largest of each.
    """
    from lookfurther.gpu.dueling import FusedDuelingPasses

    found, x = {}, torch.randint(0, 256, (8, *ATARI.observation_shape), dtype=torch.uint8)
    for name in ("apex-dqfd", "apex-dqfd-deeper"):
        network = make_network_builder(preset(name).network)(ATARI)
        assert isinstance(network, DuelingNetwork)
        twin = copy.deepcopy(network).to(CUDA)
        near, far = network(x), twin(x.to(CUDA)).cpu()
        found[f"values, {name}"] = float(((near - far) / near.std()).detach().abs().max())
        true = values_and_gradients(AutogradPasses(), network, network.prepare_inputs(x))
        own = values_and_gradients(FusedDuelingPasses(CUDA), twin, x.to(CUDA))
        found[f"values and gradients by kernels, {name}"] = max_relative_difference(own, true)
    return found


def values_and_gradients(
    passes: AutogradPasses, network: nn.Module, inputs: torch.Tensor
) -> list[torch.Tensor]:
    """Values, and the gradients of all that is learned for slopes that differ everywhere."""
    q, seen = passes.forward(network, inputs)
    slope = torch.linspace(-1, 2, q.numel(), device=q.device).view(q.shape)
    return [q, *passes.backward(network, seen, slope)]


def max_relative_difference(found: list[torch.Tensor], true: list[torch.Tensor]) -> float:
    """The largest difference, in units of the largest number of each."""
    pairs = zip(found, true, strict=True)
    return max(float((a.to(b.device) - b).abs().max() / b.abs().max()) for a, b in pairs)


class SlotDifference(NamedTuple):
    """A slot of a lane, and what of it fresh emulators do not show."""

    lane: int
    t: int
    fields: str  # plane, marks or reward, each where it differs
    pixels: int


def check_replay_contents(config: Config, turns: int) -> dict[str, float]:
    """Slots of a run's replay that fresh emulators, given its actions, do not show again.

    Where some differ others play once more: a slot is astray where neither agrees with it.
    """
    with closing(ThroughputBenchmark(config, 0.0)) as bench:
        loop = bench.build_loop(bench.build_empty_mixture())
        for _ in range(turns):
            loop.run_iteration()
        loop.raise_if_diverged()
    replay = loop.mixture.agent
    one = set(_replayed_differences(replay, config))
    other = set(_replayed_differences(replay, config)) if one else one
    for slot in sorted(one | other)[:MAX_PRINTED]:
        print(f"  {slot} in {'both' if slot in one & other else 'one of two'}", flush=True)
    total = f"of {replay.inserted:,}"
    return {
        f"slots astray {total}": len(one & other),
        f"emulators at odds {total}": len(one ^ other),
    }


def _replayed_differences(replay: PrioritizedReplay, config: Config) -> Iterator[SlotDifference]:
    """Slots that differ from what fresh emulators show."""
    first = 0
    for envs in build_training_envs(partial(build_envs, config.env, config), config):
        lanes = range(first, first := first + envs.lanes)
        with closing(envs):
            yield from _lane_differences(replay, lanes, envs)


def _lane_differences(
    replay: PrioritizedReplay, lanes: range, envs: Envs
) -> Iterator[SlotDifference]:
    """Slots of lanes whose plane, action's reward or marks are not what `envs` give."""
    held, own = replay.state(), slice(lanes.start, lanes.stop)
    written = int(replay.cursor[own].min())
    assert written == int(replay.cursor[own].max()) < replay.slots_per_lane
    names = ("planes", "actions", "rewards", "marks")
    film = {name: held[name][own, :written].cpu().numpy() for name in names}
    step = envs.reset()
    for t in range(written):
        marks = step.first * FIRST + step.terminal * TERMINAL + step.truncated * TRUNCATED
        plane = step.observation[:, -replay.spec.plane[0] :].reshape(envs.lanes, -1)
        envs.send(film["actions"][:, t, 0].astype(np.int64))
        step = envs.recv()
        pixels = (film["planes"][:, t] != plane).sum(-1)
        differs = {
            "plane": pixels > 0,
            "marks": film["marks"][:, t, 0] != marks,
            "reward": film["rewards"][:, t, 0] != step.reward,
        }
        for i in np.flatnonzero(np.any(list(differs.values()), 0)):
            what = ", ".join(name for name, wrong in differs.items() if wrong[i])
            yield SlotDifference(lanes[i], t, what, int(pixels[i]))


def check_weight_sync() -> float:
    """Largest difference of the actors' weights from those they should have, turn by turn."""
    given, own = (MasterWeights(nn.Linear(512, 512, device=CUDA), torch.bfloat16) for _ in (0, 1))
    handover, apart = WeightSync(own, [torch.cuda.Stream(), torch.cuda.Stream()]), 0.0
    acted, learned = own.compute_tensors[0], given.master_tensors[0].data
    for turn in range(100):
        before, after = acted.clone(), learned.to(torch.bfloat16)
        handover.publish(given)
        learned += 1.0  # the learner goes on
        for left in range(MAX_AHEAD + 1, 0, -1):
            torch.cuda.synchronize()
            apart = max(apart, float((acted - before).detach().abs().max()))
            assert handover.ticks_left == left, turn
            handover.tick()
        torch.cuda.synchronize()
        apart = max(apart, float((acted - after).detach().abs().max()))
    return apart


def run_checks() -> Iterator[tuple[str, float]]:
    """Everything that is held against something else, as it is found."""
    yield from check_networks().items()
    yield "weights handed over", check_weight_sync()
    for precision in ("float32", "bfloat16"):
        yield from check_updates(precision).items()
    config = preset("apex-dqn", env="ALE/Breakout-v5", environment__max_episode_length=300)
    config = replace(config, replay__learning_starts=20_000, replay__capacity=200_000)
    yield from check_replay_contents(config, turns=2_000).items()


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_json_option(options)
    asked = options.parse_args()
    figures: dict[str, Any] = {"device": torch.cuda.get_device_name(0), "torch": torch.__version__}
    for name, value in run_checks():
        print(f"{name}: {value:.3g}", flush=True)
        figures[name] = value
    if asked.json:
        write_text(asked.json, json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
