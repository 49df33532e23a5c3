"""How far values have come back along a demonstration, in a run or from the demonstration alone.

    python -m analysis.values DEMOS [--run FOLDER] [--at STEP ...] [--preset NAME] [--updates N]
                                [--vary SETTING=VALUE ...] [--json FILE]

With --run: what the best weights of a run make of the demonstration's best episode. Without: learn
from the demonstrations alone, once with the preset's own settings and once more for each --vary.
Printed are the share of steps at which the greedy action is the human's, and how far h(V) falls
short of h of the discounted return, on average over the episode and at these steps of it, or at
points along it; and the median error of one step, which is noise where values have arrived.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.measure import add_json_option, machine_info, write_report
from lookfurther import Agent
from lookfurther.config import Config, replace
from lookfurther.demos import catalog
from lookfurther.demos.episode import Episode, best_episode_index
from lookfurther.losses import value_of_action
from lookfurther.networks import make_network_builder
from lookfurther.presets import preset
from lookfurther.replay.mixture import ReplayMixture
from lookfurther.training.build import build_expert_replay, build_learner
from lookfurther.training.hardware import Hardware
from lookfurther.training.updates import UpdateRunner
from lookfurther.transforms import make_value_transform
from lookfurther.types import Spec

UPDATES_PER_CALL = 8  # updates in a row, as in a turn of the loop on a GPU
PRINTED_POINTS = 10  # of the curve that is printed


def discounted_returns(episode: Episode, gamma: float) -> np.ndarray:
    """The discounted return [T] from every step of an episode."""
    total, found = 0.0, np.zeros(len(episode.rewards))
    for t in reversed(range(len(found))):
        total = found[t] = float(episode.rewards[t]) + gamma * total
    return found


def stacked_observations(episode: Episode, spec: Spec) -> torch.Tensor:
    """What the agent would have seen at every step [T, ...]."""
    blank = np.zeros((spec.stack - 1, *episode.planes.shape[1:]), episode.planes.dtype)
    film = torch.from_numpy(np.concatenate([blank, episode.planes]))
    planes = [film[i : i + len(episode.actions)] for i in range(spec.stack)]
    return torch.cat(planes, 1)


@torch.no_grad()
def values_along_episode(
    network: nn.Module, episode: Episode, spec: Spec, config: Config
) -> dict[str, Any]:
    """What a network makes of an episode: agreement, and h(V) beside h of the return."""
    device = next(network.parameters()).device
    seen = stacked_observations(episode, spec).split(256)
    q = torch.cat([network(x.to(device)).float().cpu() for x in seen])
    gamma, how = config.learner.gamma, config.learner.value_transform
    operator = make_value_transform(how, config.learner.value_transform_eps)
    goal = operator.h(torch.from_numpy(discounted_returns(episode, gamma))).float()
    v, a = q.max(-1).values, torch.from_numpy(episode.actions.astype(np.int64))
    rewards = torch.from_numpy(episode.rewards[:-1])
    td_error = value_of_action(q, a)[:-1] - operator.h(rewards + gamma * operator.h_inv(v[1:]))
    return {
        "agreement": float((q.argmax(-1) == a).float().mean()),
        "noise": float(td_error.abs().median()),
        "short": float((goal - v).mean()),
        "curve": list(zip(range(len(v)), v.tolist(), goal.tolist(), strict=True)),
    }


def points(curve: list[Any], at: Sequence[int]) -> list[Any]:
    """The curve at these steps, or at some along it."""
    beyond = [t for t in at if not 0 <= t < len(curve)]
    if beyond:
        raise SystemExit(f"--at {beyond[0]}: the episode has steps 0 to {len(curve) - 1}")
    return [curve[t] for t in at] or curve[:: -(-len(curve) // PRINTED_POINTS)]


def learn_from_demos(
    config: Config, spec: Spec, episodes: Sequence[Episode], updates: int
) -> dict[str, Any]:
    """The same after updates on batches of demonstrations only."""
    torch.manual_seed(config.run.seed)
    hardware = Hardware.resolve(config)
    learner = build_learner(config, make_network_builder(config.network)(spec), hardware)
    replay = build_expert_replay(config, spec, episodes, hardware.device, config.run.seed)
    for batch in list(replay.iter_items(config.batch_size)):
        replay.update_priorities(batch.item, learner.compute_priority(batch))
    mixture = ReplayMixture(replay, None, config.batch_size, 0)
    if hardware.is_compiled:
        mixture.compile()
    work, start = UpdateRunner(mixture, learner), time.perf_counter()
    while learner.updates < updates:
        work.run(min(UPDATES_PER_CALL, updates - learner.updates))
    learner.raise_if_diverged()
    with learner.online_weights.autocast():
        found = values_along_episode(
            learner.online_weights.compute_network,
            episodes[best_episode_index(episodes)],
            spec,
            config,
        )
    return found | work.compute_mean_terms() | {"seconds": time.perf_counter() - start}


def format_values(name: str, found: dict[str, Any]) -> str:
    curve = "  ".join(f"{t}: {v:.0f} of {goal:.0f}" for t, v, goal in found["curve"])
    told = f"{found['agreement']:.1%} agree, short by {found['short']:.1f}"
    return f"{name}: {told}, one-step error {found['noise']:.2f}\n  {curve}"


def replace_setting(config: Config, words: str) -> Config:
    """config with one setting as in learner.tc_weight=0.5."""
    name, _, value = words.partition("=")
    section, _, leaf = name.partition(".")
    was = getattr(getattr(config, section), leaf)
    return replace(config, **{f"{section}__{leaf}": type(was)(value)})


def parse_arguments() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("demos")
    options.add_argument("--run", type=Path, help="look at the best weights of this run folder")
    options.add_argument("--at", type=int, nargs="+", default=(), help="show values at these steps")
    options.add_argument("--preset", default="apex-dqfd-deeper")
    options.add_argument("--updates", type=int, default=60_000)
    options.add_argument("--vary", action="append", default=[], metavar="SETTING=VALUE")
    add_json_option(options)
    return options.parse_args()


def main() -> None:
    asked = parse_arguments()
    held = catalog.open_set(asked.demos)
    spec = held.description.spec
    result: dict[str, Any] = {"surroundings": machine_info(["torch"]), "found": {}}
    if asked.run:
        agent = Agent.load(asked.run)
        found = values_along_episode(
            agent.network, held.episodes[best_episode_index(held.episodes)], spec, agent.config
        )
        result["found"][f"{asked.run.name} at step {agent.step:,}"] = found
    else:
        config = preset(asked.preset, env=spec.env, demos=(asked.demos,))
        for name in ("as it is", *asked.vary):
            settings = replace_setting(config, name) if "=" in name else config
            result["found"][name] = learn_from_demos(settings, spec, held.episodes, asked.updates)
    for found in result["found"].values():
        found["curve"] = points(found["curve"], asked.at)
    text = "\n".join(format_values(name, found) for name, found in result["found"].items())
    write_report(f"Values along {held.name}", result, text, asked.json)


if __name__ == "__main__":
    main()
