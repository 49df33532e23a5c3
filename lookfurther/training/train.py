"""`train`: from a configuration to a finished run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import gymnasium
import torch

from lookfurther.config import Config
from lookfurther.demos import catalog
from lookfurther.demos.episode import Episode, best_episode_index
from lookfurther.learner import Learner
from lookfurther.networks import NetworkBuilder, count_parameters, make_network_builder
from lookfurther.replay.prioritized import PrioritizedReplay
from lookfurther.training import checkpoint, hardware
from lookfurther.training.best_checkpoint import BestCheckpoint
from lookfurther.training.build import (
    RANDOM_STREAMS,
    build_actor_pool,
    build_envs,
    build_mixture,
    build_training_envs,
)
from lookfurther.training.console import ProgressDisplay
from lookfurther.training.loop import Summary, TrainingLoop
from lookfurther.training.run_dir import RunDir
from lookfurther.training.saved_weights import warm_start
from lookfurther.types import Batch, Spec
from lookfurther.validation import validate


def train(
    config: Config,
    *,
    env: Callable[[], gymnasium.Env] | None = None,
    network: NetworkBuilder | None = None,
    resume: bool = False,
    init: str | Path | None = None,
) -> Summary:
    """Train an agent and give how it went; the run folder holds everything else.

    `env` makes an environment where config.env is not an id, and `network` builds one where
    none of ours fits: a function of the `Spec` to a module that maps observations to values.
    `init` is a run folder, a checkpoint, an export or a safetensors file whose weights the
    network starts with. A checkpoint that `resume` finds has precedence.
    """
    config = validate(config)
    torch.manual_seed(config.run.seed)
    hardware.limit_threads(config)
    title = f"{config.env} · {config.preset} · seed {config.run.seed}"
    progress = ProgressDisplay(config.run.steps, title, config.run.minutes)
    make = partial(build_envs, env or config.env, config)
    with ExitStack() as stack:
        envs = [stack.enter_context(closing(group)) for group in build_training_envs(make, config)]
        spec = envs[0].spec
        episodes = [e for n in config.demos for e in catalog.load_set(n, spec, config.environment)]
        memory = _describe_run(config, spec, episodes, progress)
        path = Path(config.run.folder or default_run_dir(config))
        with RunDir.open(path, config, resume) as folder:
            online = (network or make_network_builder(config.network))(spec)
            progress.print_message(f"network of {count_parameters(online):,} parameters")
            best = BestCheckpoint(config, folder, partial(make, stream=RANDOM_STREAMS["evaluate"]))
            learner = Learner(online, config.learner, *hardware.configure_torch(config))
            mixture = build_mixture(config, spec, episodes, memory)
            source = build_actor_pool(config, envs, learner)
            loop = TrainingLoop(config, folder, source, mixture, learner, best, progress)
            if not (resume and _load_newest_checkpoint(loop, folder, progress)):
                if init is not None:
                    parts = warm_start(learner, Path(init))
                    progress.print_message(f"start from {init}: {', '.join(parts)}")
                _set_initial_expert_priorities(loop)
            return loop.run()


def _set_initial_expert_priorities(loop: TrainingLoop) -> None:
    """Demonstrations begin with the TD errors of the initial network."""
    expert, device = loop.mixture.expert, loop.learner.online_weights.device
    if expert is not None:
        for batch in expert.iter_items(loop.config.batch_size):
            priority = loop.learner.compute_priority(Batch(*(t.to(device) for t in batch)))
            expert.update_priorities(batch.item, priority.to(expert.device))


def default_run_dir(config: Config) -> str:
    """runs/ENV-PRESET-SEED, with nothing a file system minds."""
    env = "".join(c if c.isalnum() or c in "-_." else "-" for c in config.env)
    return f"runs/{env}-{config.preset}-{config.run.seed}"


def _describe_run(
    config: Config, spec: Spec, episodes: Sequence[Episode], progress: ProgressDisplay
) -> torch.device:
    """Say what is about to be taken, refuse what does not fit; gives the replays' device."""
    replay = config.replay
    agent = PrioritizedReplay.estimate_bytes(spec, replay.capacity, len(replay.horizons))
    expert = PrioritizedReplay.estimate_bytes(
        spec, sum(map(len, episodes)), len(replay.expert_horizons or replay.horizons)
    )
    device = hardware.choose_replay_device(config, agent, expert)
    progress.print_message(
        f"{spec.env}: observations {spec.observation_shape}, {spec.actions} actions,"
        f" {config.actor.lanes} lanes"
    )
    if episodes:
        scores = [e.score for e in episodes]
        imitated = (
            "all"
            if config.learner.imitated_episodes == "all"
            else f"episode {best_episode_index(episodes)}"
        )
        progress.print_message(
            f"{len(episodes)} demonstrations, {sum(map(len, episodes)):,} steps, returns"
            f" {min(scores):g} to {max(scores):g}; imitated: {imitated}"
        )
    progress.print_message(
        f"replay of {config.replay.capacity:,} steps: {hardware.format_bytes(agent)},"
        f" of demonstrations: {hardware.format_bytes(expert)};"
        f" {device} has {hardware.format_bytes(hardware.available_memory(device))} left"
    )
    return device


def _load_newest_checkpoint(loop: TrainingLoop, folder: RunDir, progress: ProgressDisplay) -> bool:
    """Load the newest valid checkpoint; False where there is none yet."""
    saved, broken = checkpoint.load_newest(folder.checkpoints_dir)
    for reason in broken:
        progress.print_message(f"warning: {reason}")
    if saved is None:
        progress.print_message("no checkpoint yet: starting from the beginning")
        return False
    loop.load_checkpoint(saved)
    return True
