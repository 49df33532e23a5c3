"""Training on one GPU compared with stable-baselines3's DQN: same game, network and batch.

    python -m benchmarks.one_gpu [--preset NAME] [--seconds S] [--rounds N] [--json FILE]

Montezuma's Revenge in 128 lanes on all cores, batches of 256, the same samples per step for both.
Ours is Ape-X DQfD with demonstrations of random play, two forward and backward passes where DQN has
one, 1- and 10-step items, and prioritized replay of 2 million steps. The peer is DQN with our
network below one more linear layer, one-step targets, and uniform replay of 20,000 steps.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from benchmarks.end_to_end import LookFurtherTraining, measure_once, speed_ratio
from benchmarks.measure import (
    format_table,
    machine_info,
    make_parser,
    median_of_rounds,
    write_report,
)

LANES, BATCH = 128, 256
SAMPLES_PER_STEP = 20.0


def our_training(name: str, fill: float) -> LookFurtherTraining:
    return LookFurtherTraining(
        name,
        fill,
        env="ALE/MontezumaRevenge-v5",
        learner__samples_per_insert=SAMPLES_PER_STEP,
        run__log_period=10_000,
        run__device="cuda",
    )


def peer_training(network: str) -> Any:
    from benchmarks.stable_baselines import GpuDQN

    return GpuDQN(network, LANES, BATCH, SAMPLES_PER_STEP)


def main() -> None:
    parser = make_parser(__doc__, seconds=20.0)
    parser.add_argument(
        "--warm", type=float, default=5.0, help="seconds of learning that do not count"
    )
    parser.add_argument(
        "--fill", type=float, default=80.0, help="seconds to our first update, at most"
    )
    parser.add_argument("--preset", default="apex-dqfd-deeper")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("no GPU found; benchmarks.end_to_end compares on a CPU")
    machine = machine_info(["torch", "numpy", "gymnasium", "ale-py", "stable-baselines3", "minari"])
    network = "dueling-deeper" if "deeper" in options.preset else "dueling"
    candidates = {
        "lookfurther": (our_training, options.preset, options.fill),
        "stable-baselines3": (peer_training, network),
    }
    rounds: dict[str, list[dict]] = {name: [] for name in candidates}
    for _ in range(options.rounds):
        for name, candidate in candidates.items():
            measured = measure_once(options, options.seconds, *candidate)
            if "absent" in measured:
                sys.exit(f"{name}: {measured['absent']}")
            rounds[name].append(measured)
    figures: dict[str, Any] = {
        name: median_of_rounds(measured) for name, measured in rounds.items()
    }
    keys = ["steps_per_second", "updates_per_second", "samples_per_step"]
    rows = [[name, *(f[key] for key in keys)] for name, f in figures.items()]
    result = {
        "speed_ratio": speed_ratio(figures, "stable-baselines3"),
        "gpu": torch.cuda.get_device_name(0),
        "contestants": figures,
        "surroundings": machine,
    }
    text = format_table(["", "steps/s", "updates/s", "samples/step"], rows)
    text += f"\nours / theirs: {result['speed_ratio']:.1f}"
    write_report("Training on Montezuma's Revenge, one GPU", result, text, options.json)


if __name__ == "__main__":
    main()
