"""How far values propagate back along a demonstration, learned from demonstrations alone.

    python -m analysis.values DEMOS [--at STEP ...] [--preset NAME] [--updates N]
                                [--vary SETTING=VALUE ...] [--json FILE]

Learns once with the settings of the preset and once more for each --vary. Prints the fraction of
steps at which the greedy action is the human's; how far h(V) is below h of the discounted return,
on average and at the given steps (or at points along the episode); and the median one-step error,
which is noise where values have converged. `lookfurther analyse` shows the same of a run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.measure import add_json_option, machine_info, write_report
from lookfurther.analysis.values import DemonstrationValues, values_along_episode
from lookfurther.config import Config, replace
from lookfurther.demos import catalog
from lookfurther.demos.episode import Episode, best_episode_index
from lookfurther.learner import Learner
from lookfurther.networks.dueling import make_network_builder, network_value_transform
from lookfurther.presets import preset
from lookfurther.replay.mixture import ReplayMixture
from lookfurther.training.build import build_learner
from lookfurther.training.expert_replay import build_expert_replay
from lookfurther.training.hardware import Hardware
from lookfurther.training.updates import UpdateRunner
from lookfurther.types import Spec

UPDATES_PER_CALL = 8  # as in an iteration of the loop on a GPU
PRINTED_POINTS = 10  # of the curve that is printed


def select_points(curve: list[Any], at: Sequence[int]) -> list[Any]:
    """The curve at these steps, or at evenly spaced ones."""
    invalid = [t for t in at if not 0 <= t < len(curve)]
    if invalid:
        raise SystemExit(f"--at {invalid[0]}: the episode has steps 0 to {len(curve) - 1}")
    return [curve[t] for t in at] or curve[:: -(-len(curve) // PRINTED_POINTS)]


def summarize_values(values: DemonstrationValues) -> dict[str, Any]:
    """Agreement with the episode, and h(V) compared with h of the return."""
    v, goal = values.max_value.tolist(), values.transformed_return.tolist()
    return {
        "agreement": values.agreement,
        "noise": values.noise,
        "short": values.shortfall,
        "curve": list(zip(range(len(v)), v, goal, strict=True)),
    }


def learner_values(
    learner: Learner, episode: Episode, spec: Spec, config: Config
) -> DemonstrationValues:
    """The values of a learner's compute network along an episode."""
    network = learner.online_weights.compute_network
    device = next(network.parameters()).device

    @torch.no_grad()
    def q_function(observations: np.ndarray) -> np.ndarray:
        with learner.online_weights.autocast():
            return network(torch.from_numpy(observations).to(device)).float().cpu().numpy()

    transform = network_value_transform(network, config.learner)
    return values_along_episode(q_function, episode, spec.stack, config, transform)


def learn_from_demos(
    config: Config, spec: Spec, episodes: Sequence[Episode], updates: int
) -> dict[str, Any]:
    """The same after updates on demonstrations only."""
    torch.manual_seed(config.run.seed)
    hardware = Hardware.resolve(config)
    learner = build_learner(config, make_network_builder(config.network)(spec), hardware)
    replay = build_expert_replay(config, spec, episodes, hardware.device, config.run.seed)
    for batch in list(replay.iter_items(config.batch_size)):
        replay.update_priorities(batch.item, learner.compute_priority(batch))
    mixture = ReplayMixture(replay, None, config.batch_size, 0)
    if hardware.is_compiled:
        mixture.compile()
    runner, start = UpdateRunner(mixture, learner), time.perf_counter()
    while learner.updates < updates:
        runner.run(min(UPDATES_PER_CALL, updates - learner.updates))
    learner.raise_if_diverged()
    best_episode = episodes[best_episode_index(episodes)]
    values = summarize_values(learner_values(learner, best_episode, spec, config))
    return values | runner.compute_mean_terms() | {"seconds": time.perf_counter() - start}


def format_values(name: str, values: dict[str, Any]) -> str:
    curve = "  ".join(f"{t}: {v:.0f} of {goal:.0f}" for t, v, goal in values["curve"])
    summary = f"{values['agreement']:.1%} agreement, below the return by {values['short']:.1f}"
    return f"{name}: {summary}, one-step error {values['noise']:.2f}\n  {curve}"


def replace_setting(config: Config, assignment: str) -> Config:
    """config with one setting changed, as in learner.tc_weight=0.5."""
    name, _, value = assignment.partition("=")
    section, _, leaf = name.partition(".")
    old_value = getattr(getattr(config, section), leaf)
    return replace(config, **{f"{section}__{leaf}": type(old_value)(value)})


def parse_arguments() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("demos")
    options.add_argument("--at", type=int, nargs="+", default=(), help="show values at these steps")
    options.add_argument("--preset", default="apex-dqfd-deeper")
    options.add_argument("--updates", type=int, default=60_000)
    options.add_argument("--vary", action="append", default=[], metavar="SETTING=VALUE")
    add_json_option(options)
    return options.parse_args()


def main() -> None:
    options = parse_arguments()
    demo_set = catalog.open_set(options.demos)
    spec = demo_set.description.spec
    result: dict[str, Any] = {"surroundings": machine_info(["torch"]), "found": {}}
    config = preset(options.preset, env=spec.env, demos=(options.demos,))
    for name in ("unchanged", *options.vary):
        settings = replace_setting(config, name) if "=" in name else config
        result["found"][name] = learn_from_demos(settings, spec, demo_set.episodes, options.updates)
    for values in result["found"].values():
        values["curve"] = select_points(values["curve"], options.at)
    text = "\n".join(format_values(name, values) for name, values in result["found"].items())
    write_report(f"Values along {demo_set.name}", result, text, options.json)


if __name__ == "__main__":
    main()
