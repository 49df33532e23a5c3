"""`train`: from a configuration to a finished run."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import torch
from torch import nn

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
    config = validate(config)
    torch.manual_seed(config.run.seed)
    torch.set_num_threads(hardware.learner_threads(config))
    title = f"{config.env} · {config.preset} · seed {config.run.seed}"
    progress = Progress(config.run.steps, title, config.run.minutes)
    make = partial(_make_envs, env or config.env, config)
    with closing(make(config.actor.lanes, stream=0)) as envs:
        episodes = [e for name in config.demos for e in load(name, envs.spec)]
        _announce(config, envs.spec, episodes, progress)
        path = Path(config.run.folder or default_folder(config))
        with RunFolder.open(path, config, resume) as folder:
            online = (network or builder(config.network))(envs.spec)
            progress.note(f"network of {parameters(online):,} parameters")
            best = Best(config, folder, partial(make, stream=1))
            loop = _assemble(config, folder, envs, online, episodes, best, progress)
            if not (resume and _resume(loop, folder, progress)):
                _first_priorities(loop)
            return loop.run()


def _make_envs(
    env: str | Callable[[], gymnasium.Env], config: Config, lanes: int, stream: int
) -> Envs:
    """Environments of a random stream of their own: 0 to train on, 1 to evaluate on."""
    seed = int(np.random.SeedSequence((config.run.seed, stream)).generate_state(1)[0])
    settings = config.environment if stream == 0 else replace(config.environment, processes=0)
    return make_envs(env, settings, lanes, seed, settings.threads or hardware.cores())


def _assemble(
    config: Config,
    folder: RunFolder,
    envs: Envs,
    online: nn.Module,
    episodes: Sequence[Episode],
    best: Best,
    progress: Progress,
) -> Loop:
    """The parts of a run, tied together."""
    device = hardware.device(config.run.device)
    actor = Actor(copy.deepcopy(online), envs.spec, config, device)
    precision = hardware.precision(config.run.precision, device)
    learner = Learner(online, config.learner, device, precision)
    seeds = [int(s) for s in np.random.SeedSequence((config.run.seed, 2)).generate_state(2)]
    lanes, capacity, gamma = config.actor.lanes, config.replay.capacity, config.learner.gamma
    agent = Replay(envs.spec, lanes, capacity, config.replay, gamma, device, seeds[0])
    expert = expert_replay(config, envs.spec, episodes, device, seeds[1]) if episodes else None
    mixture = Mixture(agent, expert, config.learner.agent_items, config.learner.expert_items)
    return Loop(config, folder, LocalSource(envs, actor), mixture, learner, best, progress)


def expert_replay(
    config: Config, spec: Spec, episodes: Sequence[Episode], device: torch.device, seed: int
) -> Replay:
    """The expert replay, filled once, with rewards as the learner is to see them."""
    horizons = config.replay.horizons
    chunk = film(episodes, max(horizons), len(horizons), config.learner.imitated)
    reward = REWARDS[config.environment.reward](torch.from_numpy(chunk.reward))
    capacity = len(chunk.action) + spec.stack
    replay = Replay(spec, 1, capacity, config.replay, config.learner.gamma, device, seed)
    replay.add(chunk._replace(reward=reward.numpy()))
    return replay


def _first_priorities(loop: Loop) -> None:
    """Demonstrations begin with the TD errors of the initial network."""
    expert = loop.mixture.expert
    if expert is not None:
        for batch in expert.sweep(loop.config.batch):
            expert.update(batch.item, loop.learner.priority(batch))


def default_folder(config: Config) -> str:
    """runs/ENV-PRESET-SEED, with nothing a file system minds."""
    env = "".join(c if c.isalnum() or c in "-_." else "-" for c in config.env)
    return f"runs/{env}-{config.preset}-{config.run.seed}"


def _announce(config: Config, spec: Spec, episodes: Sequence[Episode], progress: Progress) -> None:
    """Say what is about to be taken, and refuse what does not fit."""
    device = hardware.device(config.run.device)
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
