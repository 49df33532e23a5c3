"""`train`: from a configuration to a finished run."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import torch

from lookfurther.actor import Actor
from lookfurther.config import Config, validate
from lookfurther.demos.episodes import Episode, best, film
from lookfurther.demos.store import load
from lookfurther.envs import Envs, make_envs
from lookfurther.learner import Learner
from lookfurther.mixture import Mixture
from lookfurther.networks import Builder, builder, parameters
from lookfurther.replay import Replay
from lookfurther.runtime import checkpoint, hardware
from lookfurther.runtime.best import Best
from lookfurther.runtime.folder import RunFolder
from lookfurther.runtime.local import LocalSource
from lookfurther.runtime.loop import Loop, Summary
from lookfurther.runtime.progress import Progress
from lookfurther.transforms import REWARDS
from lookfurther.types import Spec


def train(
    config: Config,
    *,
    env: Callable[[], gymnasium.Env] | None = None,
    network: Builder | None = None,
    resume: bool = False,
) -> Summary:
    """Train an agent and give how it went; the run folder holds everything else.

    `env` makes an environment where config.env is not an id, and `network` builds one where
    none of ours fits: a function of the `Spec` to a module that maps observations to values.
    """
    validate(config)
    device = hardware.device(config.run.device)
    torch.manual_seed(config.run.seed)
    torch.set_num_threads(hardware.learner_threads(config))
    seeds = [int(s) for s in np.random.SeedSequence(config.run.seed).generate_state(3)]
    threads = config.environment.threads or hardware.cores()
    title = f"{config.env} · {config.preset} · seed {config.run.seed}"
    progress = Progress(config.run.steps, title, config.run.minutes)
    envs = make_envs(env or config.env, config.environment, config.actor.lanes, seeds[0], threads)
    try:
        spec = envs.spec
        episodes = [e for name in config.demos for e in load(name, spec)]
        _announce(config, spec, episodes, device, progress)
        path = Path(config.run.folder or default_folder(config))
        with RunFolder.open(path, config, resume) as folder:
            online = (network or builder(config.network))(spec)
            progress.note(f"network of {parameters(online):,} parameters, on {device}")
            precision = hardware.precision(config.run.precision, device)
            actor = Actor(copy.deepcopy(online), spec, config, device)
            learner = Learner(online, config.learner, device, precision)
            agent = Replay(
                spec,
                config.actor.lanes,
                config.replay.capacity,
                config.replay,
                config.learner.gamma,
                device,
                seeds[1],
            )
            expert = expert_replay(config, spec, episodes, device, seeds[2]) if episodes else None
            counts = config.learner.agent_items, config.learner.expert_items
            mixture = Mixture(agent, expert, *counts)
            best = Best(config, folder, partial(_evaluation_envs, env or config.env, config))
            source = LocalSource(envs, actor)
            loop = Loop(config, folder, source, mixture, learner, best, progress)
            resumed = resume and _resume(loop, folder, progress)
            if expert is not None and not resumed:
                for batch in expert.sweep(config.batch):
                    expert.update(batch.item, learner.priority(batch))
            return loop.run()
    finally:
        envs.close()


def _evaluation_envs(env: str | Callable[[], gymnasium.Env], config: Config, lanes: int) -> Envs:
    """Environments apart from the training ones, and the same at every call."""
    settings = replace(config.environment, processes=0)
    return make_envs(env, settings, lanes, config.run.seed + 500_000, settings.threads or 1)


def default_folder(config: Config) -> str:
    """runs/ENV-PRESET-SEED, with nothing a file system minds."""
    env = "".join(c if c.isalnum() or c in "-_." else "-" for c in config.env)
    return f"runs/{env}-{config.preset}-{config.run.seed}"


def expert_replay(
    config: Config, spec: Spec, episodes: Sequence[Episode], device: torch.device, seed: int
) -> Replay:
    """The expert replay, filled once; its priorities are set by the first sweep."""
    horizons = config.replay.horizons
    chunk = film(episodes, max(horizons), len(horizons), config.learner.imitated)
    reward = REWARDS[config.environment.reward](torch.from_numpy(chunk.reward))
    capacity = len(chunk.action) + spec.stack
    replay = Replay(spec, 1, capacity, config.replay, config.learner.gamma, device, seed)
    replay.add(chunk._replace(reward=reward.numpy()))
    return replay


def _announce(
    config: Config,
    spec: Spec,
    episodes: Sequence[Episode],
    device: torch.device,
    progress: Progress,
) -> None:
    """Say what is about to be taken, and refuse what does not fit."""
    horizons = len(config.replay.horizons)
    agent = Replay.bytes_for(spec, config.replay.capacity, horizons)
    expert = Replay.bytes_for(spec, sum(map(len, episodes)), horizons)
    hardware.check_memory(config, agent, expert, device)
    progress.note(
        f"{spec.env}: observations {spec.observation}, {spec.actions} actions,"
        f" {config.actor.lanes} lanes"
    )
    if episodes:
        scores = [e.score for e in episodes]
        imitated = "all" if config.learner.imitated == "all" else f"episode {best(episodes)}"
        progress.note(
            f"{len(episodes)} demonstrations, {sum(map(len, episodes)):,} steps, returns"
            f" {min(scores):g} to {max(scores):g}; imitated: {imitated}"
        )
    progress.note(
        f"replay of {config.replay.capacity:,} steps: {hardware.gib(agent)}, of demonstrations:"
        f" {hardware.gib(expert)}; {device} has {hardware.gib(hardware.memory_left(device))} left"
    )


def _resume(loop: Loop, folder: RunFolder, progress: Progress) -> bool:
    """Load the newest valid checkpoint; False where there is none yet."""
    saved, broken = checkpoint.newest(folder.checkpoints)
    for reason in broken:
        progress.note(f"warning: {reason}")
    if saved is None:
        progress.note("no checkpoint yet: starting from the beginning")
        return False
    loop.load(saved)
    return True
