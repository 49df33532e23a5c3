"""`train`: runs a configuration from start to end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import gymnasium
import torch

from lookfurther.config import Config
from lookfurther.demos import catalog
from lookfurther.demos.episode import Episode, best_episode_index
from lookfurther.errors import ConfigError
from lookfurther.networks.dueling import (
    NetworkBuilder,
    count_parameters,
    make_network_builder,
)
from lookfurther.networks.user_network import build_network
from lookfurther.replay.prioritized import PrioritizedReplay
from lookfurther.system.formatting import pluralize
from lookfurther.training.build import (
    RANDOM_STREAMS,
    build_envs,
    build_learner,
    build_mixture,
    choose_mixture_device,
)
from lookfurther.training.callbacks import Callback, CallbackList, RunContext, check_callbacks
from lookfurther.training.checkpoints import checkpoint
from lookfurther.training.checkpoints.best_checkpoint import BestCheckpoint
from lookfurther.training.checkpoints.saved_weights import check_initial_weights, warm_start
from lookfurther.training.hardware import (
    Hardware,
    available_memory,
    choose_replay_device,
    format_bytes,
)
from lookfurther.training.loop import TrainingLoop
from lookfurther.training.monitoring.console import ProgressDisplay
from lookfurther.training.monitoring.loggers import LOGGERS
from lookfurther.training.monitoring.quiet_progress import Progress, QuietProgress
from lookfurther.training.monitoring.summary import Summary
from lookfurther.training.run import TrainingRun
from lookfurther.training.run_dir import RunDir, check_run_dir
from lookfurther.training.source_plan import SourcePlan, open_local_plan
from lookfurther.types import Batch, Spec
from lookfurther.validation import validate

if TYPE_CHECKING:
    from lookfurther.training.cluster.options import ClusterOptions


def train(
    config: Config,
    *,
    env: Callable[[], gymnasium.Env] | None = None,
    network: NetworkBuilder | None = None,
    resume: bool = False,
    init: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    quiet: bool = False,
    cluster: ClusterOptions | None = None,
) -> Summary:
    """Train an agent and return a summary; everything else is in the run folder.

    `env` makes an environment if config.env is not a registered id. `network` builds a custom
    network: a function from the `Spec` to a module that maps observations to Q-values. `init` is a
    run folder, a checkpoint, an export or a safetensors file whose weights the network starts
    with. A checkpoint that `resume` finds has precedence. `callbacks` are called at the run's
    events, after the loggers of `config.run.loggers`. A `quiet` run prints warnings only. With
    `cluster`, the actors are on the nodes of a Ray cluster.
    """
    config = validate(config)
    check_callbacks(callbacks)
    path = Path(config.run.folder or default_run_dir(config))
    check_run_dir(path, config, resume)  # before environments are built, which may take long
    for name in config.demos:
        catalog.find_set(name)
    torch.manual_seed(config.run.seed)
    hardware = Hardware.resolve(config)
    hardware.limit_threads()
    progress = QuietProgress() if quiet else _make_progress_display(config)
    with _open_plan(env or config.env, config, hardware, cluster) as plan:
        spec = plan.spec
        episodes = [e for n in config.demos for e in catalog.load_set(n, spec, config.environment)]
        replay_device = _describe_run(config, spec, episodes, hardware.device, progress)
        if plan.message:
            progress.print_message(plan.message)
        online = build_network(network or make_network_builder(config.network), spec)
        if init is not None and not resume:
            check_initial_weights(online, Path(init))  # before a folder is made
        with RunDir.open(path, config, resume) as run_dir:
            progress.print_message(f"network of {count_parameters(online):,} parameters")
            evaluation_envs = partial(
                build_envs, env or config.env, config, stream=RANDOM_STREAMS["evaluate"]
            )
            best = BestCheckpoint(config, run_dir, evaluation_envs)
            learner = build_learner(config, online, hardware)
            mixture = build_mixture(config, spec, episodes, replay_device, hardware.is_compiled)
            source, concurrent = plan.build_source(learner), plan.is_learning_concurrent
            loop = TrainingLoop(config, source, mixture, learner, concurrent)
            context = RunContext(config, run_dir.path, learner.online_network)
            loggers = [LOGGERS[name]() for name in config.run.loggers]
            hooks = CallbackList([*loggers, *callbacks], context, progress.print_warning)
            run = TrainingRun(config, run_dir, loop, best, progress, hooks)
            if not (resume and _load_newest_checkpoint(run)):
                if init is not None:
                    parts = warm_start(learner, Path(init))
                    progress.print_message(f"start from {init}: {', '.join(parts)}")
                _set_initial_demo_priorities(loop)
            return run.run()


def _make_progress_display(config: Config) -> ProgressDisplay:
    title = f"{config.env} · {config.preset} · seed {config.run.seed}"
    return ProgressDisplay(config.run.steps, title, config.run.minutes)


def _open_plan(
    env: str | Callable[[], gymnasium.Env],
    config: Config,
    hardware: Hardware,
    cluster: ClusterOptions | None,
) -> AbstractContextManager[SourcePlan]:
    """Choose where the actors run; Ray is imported only if that is a cluster."""
    if cluster is None:
        return open_local_plan(partial(build_envs, env, config), config, hardware)
    try:
        from lookfurther.training.cluster.connection import open_cluster_plan
    except ModuleNotFoundError as error:
        raise ConfigError(f"--cluster needs {error.name}: install lookfurther[ray]") from None
    return open_cluster_plan(cluster, env, config)


def _set_initial_demo_priorities(loop: TrainingLoop) -> None:
    """Set the priorities of demonstrations to the TD errors of the initial network."""
    device = loop.learner.online_weights.device
    for replay in loop.mixture.replays:
        for batch in replay.iter_items(loop.config.batch_size):
            priority = loop.learner.compute_priority(Batch(*(t.to(device) for t in batch)))
            replay.update_priorities(batch.item, priority.to(replay.device))


def default_run_dir(config: Config) -> str:
    """runs/ENV-PRESET-SEED, with only characters that every file system accepts."""
    env = "".join(c if c.isalnum() or c in "-_." else "-" for c in config.env)
    return f"runs/{env}-{config.preset}-{config.run.seed}"


def _describe_run(
    config: Config,
    spec: Spec,
    episodes: Sequence[Episode],
    learner_device: torch.device,
    progress: Progress,
) -> torch.device:
    """Print what the run uses, or raise if its replays do not fit; returns the replays' device."""
    capacity, horizons = config.replay.capacity, config.replay.horizons
    expert_steps, expert_horizons = sum(map(len, episodes)), config.replay.expert_horizons
    agent_bytes = PrioritizedReplay.estimate_bytes(spec, capacity, len(horizons))
    expert_bytes = PrioritizedReplay.estimate_bytes(
        spec, expert_steps, len(expert_horizons or horizons)
    )
    preferred_device = choose_mixture_device(config, learner_device)
    device = choose_replay_device(preferred_device, capacity, agent_bytes, expert_bytes)
    progress.print_message(
        f"{spec.env}: observations {spec.observation_shape}, {pluralize(spec.actions, 'action')},"
        f" {pluralize(config.actor.lanes, 'lane')}"
    )
    if episodes:
        scores = [episode.score for episode in episodes]
        is_all = config.learner.imitated_episodes == "all"
        imitated = "all" if is_all else f"episode {best_episode_index(episodes)}"
        progress.print_message(
            f"{pluralize(len(episodes), 'demonstration')}, {pluralize(expert_steps, 'step')},"
            f" returns {min(scores):g} to {max(scores):g}; imitated: {imitated}"
        )
    progress.print_message(
        f"replay of {capacity:,} steps: {format_bytes(agent_bytes)}, of demonstrations:"
        f" {format_bytes(expert_bytes)}; {device} has {format_bytes(available_memory(device))} left"
    )
    return device


def _load_newest_checkpoint(run: TrainingRun) -> bool:
    """Load the newest valid checkpoint; returns False if there is none yet."""
    saved, reasons = checkpoint.load_newest(run.run_dir.checkpoints_dir)
    for reason in reasons:
        run.progress.print_warning(reason)
    if saved is None:
        run.progress.print_message("no checkpoint yet: starting from the beginning")
        return False
    run.load_checkpoint(saved)
    return True
