"""The learner alone: updates per second, and a profile of one update.

    python -m benchmarks.update [--preset NAME] [--scale SCALE] [--rounds N] [--updates N]
                                [--profile] [--json FILE]

Full updates, with sampling from a full replay and new priorities, by default of the preset that
suits the machine. A quarter round of warm-up comes first. `--profile` lists the kernels of an
update (on a CPU, its operations), and the arithmetic and memory floor of an H200.
"""

from __future__ import annotations

import argparse
import math
import time
from operator import attrgetter
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity
from torch.profiler import profile as record

from benchmarks.gpu import ATARI
from benchmarks.measure import add_json_option, machine_info, write_report
from lookfurther.cli.bench import add_default_preset
from lookfurther.cli.options.preset_options import split_preset
from lookfurther.config import Config
from lookfurther.networks.dueling import make_network_builder
from lookfurther.presets import preset
from lookfurther.training.throughput import ThroughputBenchmark
from lookfurther.training.updates import UpdateRunner

PEAK_FLOPS, PEAK_BYTES = 790e12, 4.2e12  # of bfloat16 GEMMs and copies, measured on an H200
UPDATES = {"cuda": 3_200, "cpu": 8}  # per round
MAX_PRINTED = 45  # kernels


class LearnerBenchmark:
    """A learner with a full replay and no actors."""

    def __init__(self, config: Config) -> None:
        bench = ThroughputBenchmark(config, 0.0)
        self.device, self.updates_per_call = bench.device, bench.updates_per_call
        self.runner = UpdateRunner(bench.full_mixture, bench.build_learner())

    def run(self, updates: int) -> float:
        """Seconds for a number of updates, rounded up to full calls."""
        start = time.perf_counter()
        for _ in range(math.ceil(updates / self.updates_per_call)):
            self.runner.run(self.updates_per_call)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    def rates(self, rounds: int, updates: int) -> list[float]:
        """Updates per second in each round."""
        self.run(updates // 4)
        count = math.ceil(updates / self.updates_per_call) * self.updates_per_call
        rates = [count / self.run(updates) for _ in range(rounds)]
        self.runner.learner.raise_if_diverged()
        return rates

    def profile(self) -> list[tuple[float, int, str]]:
        """(microseconds, calls, kernel) per update, the longest first."""
        on_gpu = self.device.type == "cuda"
        time_of = attrgetter("self_device_time_total" if on_gpu else "self_cpu_time_total")
        self.run(self.updates_per_call)
        with record(activities=[getattr(ProfilerActivity, "CUDA" if on_gpu else "CPU")]) as trace:
            self.run(self.updates_per_call)
        rows = (
            (
                time_of(event) / self.updates_per_call,
                event.count // self.updates_per_call,
                event.key,
            )
            for event in trace.key_averages()
        )
        return sorted((row for row in rows if row[0]), reverse=True)


def forward_flops(network: nn.Module) -> float:
    """Floating point operations of the forward pass of one observation."""
    total = 0.0

    def count(module: nn.Module, _: Any, out: Any) -> None:
        nonlocal total
        if isinstance(module, nn.Conv2d):
            kernel = math.prod(module.kernel_size) * module.in_channels
            total += 2 * kernel * out[0].numel()
        elif isinstance(module, nn.Linear):
            total += 2 * module.in_features * module.out_features

    hooks = [m.register_forward_hook(count) for m in network.modules()]
    network(torch.zeros(1, *ATARI.observation_shape, dtype=torch.uint8))
    for hook in hooks:
        hook.remove()
    batched = sum(2 * p.numel() for n, p in network.named_parameters() if ".weights." in n)
    return total + batched


def time_floor(config: Config) -> dict[str, float]:
    """Minimum microseconds: x and x' forward and backward, x' of the target forward."""
    network = make_network_builder(config.network)(ATARI)
    passes = 2 * config.batch_size * 3 + config.batch_size
    weights = sum(p.numel() for p in network.parameters())
    adam = weights * (3 * 4 * 2 + 2 + 2)  # read and write p, m, v; write bfloat16; read gradients
    planes = 2 * config.batch_size * math.prod(ATARI.observation_shape) * 2
    return {
        "arithmetic_us": forward_flops(network) * passes / PEAK_FLOPS * 1e6,
        "memory_us": (adam + planes) / PEAK_BYTES * 1e6,
    }


def parse_arguments() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    name, scale, _ = split_preset(add_default_preset([]))
    options.add_argument("--preset", default=name)
    options.add_argument("--scale", default=scale)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--updates", type=int, help="updates per round")
    options.add_argument("--profile", action="store_true")
    add_json_option(options)
    return options.parse_args()


def main() -> None:
    options = parse_arguments()
    config = preset(options.preset, options.scale, env=ATARI.env)
    benchmark = LearnerBenchmark(config)
    updates = options.updates or UPDATES[benchmark.device.type]
    result: dict[str, Any] = {
        "surroundings": machine_info(["torch", "triton"]),
        "device": str(benchmark.device),
        "updates_per_second": benchmark.rates(options.rounds, updates),
    }
    lines = [", ".join(f"{rate:,.2f}" for rate in result["updates_per_second"]) + " updates/s"]
    if options.profile:
        result |= {"floor": time_floor(config), "kernels": benchmark.profile()}
        lines += [
            f"{us:10.1f} us  {n:3d}  {name[:110]}"
            for us, n, name in result["kernels"][:MAX_PRINTED]
        ]
        lines += [
            f"{sum(row[0] for row in result['kernels']):10.1f} us in total, floor {result['floor']}"
        ]
    write_report(f"Learner alone, {options.preset}", result, "\n".join(lines), options.json)


if __name__ == "__main__":
    main()
