"""`train`: from a configuration to a finished run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import gymnasium
import torch

from lookfurther.config import Config, validate
from lookfurther.demos import catalog
from lookfurther.demos.episode import Episode, best
from lookfurther.learner import Learner
from lookfurther.networks import Builder, builder, parameters
from lookfurther.replay.prioritized import Replay
from lookfurther.training import checkpoint, hardware
from lookfurther.training.best_checkpoint import Best
from lookfurther.training.build import (
    STREAMS,
    build_envs,
    build_mixture,
    build_source,
    training_envs,
)
from lookfurther.training.console import Progress
from lookfurther.training.loop import Loop, Summary
from lookfurther.training.run_dir import RunFolder
from lookfurther.types import Batch, Spec


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
    config = validate(config)
    torch.manual_seed(config.run.seed)
    hardware.set_threads(config)
    title = f"{config.env} · {config.preset} · seed {config.run.seed}"
    progress = Progress(config.run.steps, title, config.run.minutes)
    make = partial(build_envs, env or config.env, config)
    with ExitStack() as stack:
        envs = [stack.enter_context(closing(group)) for group in training_envs(make, config)]
        spec = envs[0].spec
        episodes = [e for n in config.demos for e in catalog.load(n, spec, config.environment)]
        memory = _announce(config, spec, episodes, progress)
        path = Path(config.run.folder or default_folder(config))
        with RunFolder.open(path, config, resume) as folder:
            online = (network or builder(config.network))(spec)
            progress.note(f"network of {parameters(online):,} parameters")
            best = Best(config, folder, partial(make, stream=STREAMS["evaluate"]))
            learner = Learner(online, config.learner, *hardware.arithmetic(config))
            mixture = build_mixture(config, spec, episodes, memory)
            source = build_source(config, envs, learner)
            loop = Loop(config, folder, source, mixture, learner, best, progress)
            if not (resume and _resume(loop, folder, progress)):
                _first_priorities(loop)
            return loop.run()


def _first_priorities(loop: Loop) -> None:
    """Demonstrations begin with the TD errors of the initial network."""
    expert, device = loop.mixture.expert, loop.learner.weights.device
    if expert is not None:
        for batch in expert.sweep(loop.config.batch):
            priority = loop.learner.priority(Batch(*(t.to(device) for t in batch)))
            expert.update(batch.item, priority.to(expert.device))


def default_folder(config: Config) -> str:
    """runs/ENV-PRESET-SEED, with nothing a file system minds."""
    env = "".join(c if c.isalnum() or c in "-_." else "-" for c in config.env)
    return f"runs/{env}-{config.preset}-{config.run.seed}"


def _announce(
    config: Config, spec: Spec, episodes: Sequence[Episode], progress: Progress
) -> torch.device:
    """Say what is about to be taken, refuse what does not fit; gives the replays' device."""
    horizons = len(config.replay.horizons)
    agent = Replay.bytes_for(spec, config.replay.capacity, horizons)
    expert = Replay.bytes_for(spec, sum(map(len, episodes)), horizons)
    device = hardware.replay_device(config, agent, expert)
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
    return device


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
