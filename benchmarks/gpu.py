"""On a GPU: eager = compiled = captured, what the replay holds is what happened, where time goes.

    python -m benchmarks.gpu [--check] [--profile] [--preset NAME] [--json FILE]

`--check` makes the same updates three ways from one seed and compares the weights, holds the
networks against the CPU, and plays the actions that a run left in its replay again in fresh
emulators. `--profile` lists the kernels of an update beside the arithmetic and memory floor.
`lookfurther bench` measures the rates.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from benchmarks.measure import add_json
from lookfurther.bench import Bench
from lookfurther.config import Config, replace
from lookfurther.envs import Envs
from lookfurther.networks import builder
from lookfurther.presets import preset
from lookfurther.replay import Replay
from lookfurther.runtime.assembly import build_envs, training_envs
from lookfurther.runtime.captured import AHEAD
from lookfurther.runtime.folder import write_text
from lookfurther.runtime.handover import Handover
from lookfurther.runtime.updates import Updates
from lookfurther.types import FIRST, TERMINAL, TRUNCATED, Spec
from lookfurther.weights import Weights

ATARI = Spec("ALE/MontezumaRevenge-v5", (1, 84, 84), 4, "uint8", 18, 255.0)
CAPTURED, COMPILED = 120, 8  # updates after which weights are compared
SHOWN = 10  # of the slots that differ
CUDA = torch.device("cuda")
PEAK_FLOPS, PEAK_BYTES = 790e12, 4.2e12  # bf16 products and copies measured on an H200


def small(name: str, **settings: Any) -> Config:
    """A run whose replay fills in a moment."""
    base = preset(name, env=ATARI.env, demos=("noise",), actor__lanes=8, replay__capacity=16_000)
    return replace(base, run__device="cuda", **settings)


def weights_after(config: Config, updates: int, captured: bool) -> torch.Tensor:
    """The weights that so many updates lead to, in turns of 1, 2, 4, ... of them."""
    torch.manual_seed(0)
    bench = Bench(config, 0.0)
    work = Updates(bench.mixture, bench.new_learner())
    for recorded in (work.fetch, *work.turns.values()) if not captured else ():
        recorded.device = torch.device("cpu")  # where a function is called as it is
    while work.learner.updates < updates:
        work.run(min(work.counted + 1, updates - work.learner.updates))
    work.learner.check()
    return torch.cat([p.detach().flatten() for p in work.learner.parameters])


def check_updates(precision: str) -> dict[str, float]:
    """Largest difference of weights against others, in units of one Adam step."""
    found = {}
    config = small("apex-dqfd", run__precision=precision, learner__target_period=9)
    eager, fused = (replace(config, run__compile=compiled) for compiled in ("off", "on"))
    # Rounding changes which items are drawn, in time: compiled updates are held against eager
    # ones at the start alone.
    for name, one, other, updates in (
        ("captured against eager", (eager, False), (eager, True), CAPTURED),
        ("compiled, captured against called", (fused, False), (fused, True), CAPTURED),
        ("compiled against eager", (eager, False), (fused, True), COMPILED),
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
    from lookfurther import torso

    found, x = {}, torch.randint(0, 256, (8, *ATARI.observation), dtype=torch.uint8)
    for name in ("apex-dqfd", "apex-dqfd-deeper"):
        network = builder(preset(name).network)(ATARI)
        twin: Any = copy.deepcopy(network).to(CUDA)
        near, far = network(x), twin(x.to(CUDA)).cpu()
        found[f"values, {name}"] = float(((near - far) / near.std()).detach().abs().max())
        true = with_gradients(network, near)
        own = with_gradients(twin, torso.values(twin, x.to(CUDA)))
        found[f"values and gradients by kernels, {name}"] = apart(own, true)
    return found


def with_gradients(network: nn.Module, q: torch.Tensor) -> list[torch.Tensor]:
    """Values, and the gradients of all that is learned for slopes that differ everywhere."""
    slope = torch.linspace(-1, 2, q.numel(), device=q.device).view(q.shape)
    return [q.detach(), *torch.autograd.grad(q, list(network.parameters()), slope)]


def apart(found: list[torch.Tensor], true: list[torch.Tensor]) -> float:
    """The largest difference, in units of the largest number of each."""
    pairs = zip(found, true, strict=True)
    return max(float((a.to(b.device) - b).abs().max() / b.abs().max()) for a, b in pairs)


class Slot(NamedTuple):
    """A slot of a lane, and what of it fresh emulators do not show."""

    lane: int
    t: int
    what: str  # plane, marks or reward, each where it differs
    pixels: int


def check_films(config: Config, turns: int) -> dict[str, float]:
    """Slots of a run's replay that fresh emulators, given its actions, do not show again.

    Where some differ others play once more: a slot is astray where neither agrees with it.
    """
    with closing(Bench(config, 0.0)) as bench:
        loop = bench.loop(bench.empty())
        for _ in range(turns):
            loop.turn()
        loop.check()
    replay = loop.mixture.agent
    one = set(_played_again(replay, config))
    other = set(_played_again(replay, config)) if one else one
    for slot in sorted(one | other)[:SHOWN]:
        print(f"  {slot} in {'both' if slot in one & other else 'one of two'}", flush=True)
    total = f"of {replay.inserted:,}"
    return {
        f"slots astray {total}": len(one & other),
        f"emulators at odds {total}": len(one ^ other),
    }


def _played_again(replay: Replay, config: Config) -> Iterator[Slot]:
    """Slots that differ from what fresh emulators show."""
    first = 0
    for envs in training_envs(partial(build_envs, config.env, config), config):
        lanes = range(first, first := first + envs.lanes)
        with closing(envs):
            yield from _differences(replay, lanes, envs)


def _differences(replay: Replay, lanes: range, envs: Envs) -> Iterator[Slot]:
    """Slots of lanes whose plane, action's reward or marks are not what `envs` give."""
    held, own = replay.state(), slice(lanes.start, lanes.stop)
    written = int(replay.cursor[own].min())
    assert written == int(replay.cursor[own].max()) < replay.length
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
            yield Slot(lanes[i], t, what, int(pixels[i]))


def check_handover() -> float:
    """Largest difference of the actors' weights from those they should have, turn by turn."""
    given, own = (Weights(nn.Linear(512, 512, device=CUDA), torch.bfloat16) for _ in (0, 1))
    handover, apart = Handover(own, [torch.cuda.Stream(), torch.cuda.Stream()]), 0.0
    acted, learned = own.used[0], given.kept[0].data
    for turn in range(100):
        before, after = acted.clone(), learned.to(torch.bfloat16)
        handover.give(given)
        learned += 1.0  # the learner goes on
        for left in range(AHEAD + 1, 0, -1):
            torch.cuda.synchronize()
            apart = max(apart, float((acted - before).detach().abs().max()))
            assert handover.turns_left == left, turn
            handover.turn()
        torch.cuda.synchronize()
        apart = max(apart, float((acted - after).detach().abs().max()))
    return apart


def flops(network: nn.Module) -> float:
    """Multiplications and additions of one forward pass of one observation."""
    total = 0.0

    def count(module: nn.Module, _: Any, out: Any) -> None:
        nonlocal total
        if isinstance(module, nn.Conv2d):
            kernel = math.prod(module.kernel_size) * module.in_channels
            total += 2 * kernel * out[0].numel()
        elif isinstance(module, nn.Linear):
            total += 2 * module.in_features * module.out_features

    hooks = [m.register_forward_hook(count) for m in network.modules()]
    network(torch.zeros(1, *ATARI.observation, dtype=torch.uint8))
    for hook in hooks:
        hook.remove()
    batched = sum(2 * p.numel() for n, p in network.named_parameters() if ".weights." in n)
    return total + batched


def floor(config: Config) -> dict[str, float]:
    """Least microseconds of an update: 256 x and x' forward and back, x' of the target forward."""
    network = builder(config.network)(ATARI)
    passes = 2 * config.batch * 3 + config.batch
    weights = sum(p.numel() for p in network.parameters())
    adam = weights * (3 * 4 * 2 + 2 + 2)  # read and write p, m, v; write bf16, read the gradient
    planes = 2 * config.batch * math.prod(ATARI.observation) * 2
    return {
        "arithmetic_us": flops(network) * passes / PEAK_FLOPS * 1e6,
        "memory_us": (adam + planes) / PEAK_BYTES * 1e6,
    }


def profile(config: Config) -> list[tuple[float, int, str]]:
    """(microseconds, calls, kernel) of an update, the longest first."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    torch._dynamo.reset()  # what the checks compiled would count against its limit
    bench = Bench(config, 0.0)
    work = Updates(bench.mixture, bench.new_learner())
    work.run(40)
    torch.cuda.synchronize()
    with record(activities=[ProfilerActivity.CUDA]) as trace:
        work.run(10)
        torch.cuda.synchronize()
    rows = [
        (event.self_device_time_total / 10, event.count // 10, event.key)
        for event in trace.key_averages()
        if event.self_device_time_total > 0
    ]
    return sorted(rows, reverse=True)


def checks() -> Iterator[tuple[str, float]]:
    """Everything that --check holds against something else, as it is found."""
    yield from check_networks().items()
    yield "weights handed over", check_handover()
    for precision in ("float32", "bfloat16"):
        yield from check_updates(precision).items()
    config = preset("apex-dqn", env="ALE/Breakout-v5", environment__cap=300)
    config = replace(config, replay__start=20_000, replay__capacity=200_000)
    yield from check_films(config, turns=2_000).items()


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--check", action="store_true")
    options.add_argument("--profile", action="store_true")
    options.add_argument("--preset", default="apex-dqfd-deeper")
    add_json(options)
    asked = options.parse_args()
    figures: dict[str, Any] = {"device": torch.cuda.get_device_name(0), "torch": torch.__version__}
    for name, value in checks() if asked.check else ():
        print(f"{name}: {value:.3g}", flush=True)
        figures[name] = value
    if asked.profile:
        config = replace(small(asked.preset), actor__lanes=128, replay__capacity=2_000_000)
        figures["floor"] = floor(config)
        figures["kernels"] = profile(config)
        for microseconds, calls, name in figures["kernels"][:45]:
            print(f"{microseconds:8.1f} us  {calls:3d}  {name[:110]}")
        print(
            f"{sum(row[0] for row in figures['kernels']):8.1f} us in all, floor {figures['floor']}"
        )
    if asked.json:
        write_text(asked.json, json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
