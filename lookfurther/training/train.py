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
from lookfurther.demos.noop_starts import find_noop_starts
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
    folder = _check_run_files(config, resume)
    hardware = _prepare_torch(config)
    progress = QuietProgress() if quiet else _make_progress_display(config)
    with _open_plan(env or config.env, config, hardware, cluster, progress) as plan:
        demos = _load_demos(config, plan.spec)
        replay_device = _describe_run(config, plan, demos, hardware.device, progress)
        online = build_network(network or make_network_builder(config.network), plan.spec)
        if init is not None and not resume:
            check_initial_weights(online, Path(init))  # before a folder is made
        with RunDir.open(folder, config, resume) as run_dir:
            progress.print_message(f"network of {count_parameters(online):,} parameters")
            learner = build_learner(config, online, hardware)
            mixture = build_mixture(config, plan.spec, demos, replay_device, hardware.is_compiled)
            source, concurrent = plan.build_source(learner, demos), plan.is_learning_concurrent
            loop = TrainingLoop(config, source, mixture, learner, concurrent)
            run = _build_run(loop, run_dir, env, callbacks, progress)
            _load_initial_state(run, init, resume)
            return run.run()


def _check_run_files(config: Config, resume: bool) -> Path:
    """The run folder, if it and the sets of demonstrations can be used.

    This runs before environments are built, which may take long.
    """
    folder = Path(config.run.folder or default_run_dir(config))
    check_run_dir(folder, config, resume)
    for name in config.demos:
        catalog.find_set(name)
    return folder


def _prepare_torch(config: Config) -> Hardware:
    """Seed torch and limit its threads; returns the hardware of the run."""
    torch.manual_seed(config.run.seed)
    hardware = Hardware.resolve(config)
    hardware.limit_threads()
    return hardware


def _load_demos(config: Config, spec: Spec) -> list[Episode]:
    """The episodes of all sets of demonstrations."""
    sets = [catalog.load_set(name, spec, config.environment) for name in config.demos]
    return [episode for episodes in sets for episode in episodes]


def _build_run(
    loop: TrainingLoop,
    run_dir: RunDir,
    env: Callable[[], gymnasium.Env] | None,
    callbacks: Sequence[Callback],
    progress: Progress,
) -> TrainingRun:
    """The run of a loop, with its evaluations, loggers and callbacks."""
    config = loop.config
    evaluation_envs = partial(
        build_envs, env or config.env, config, stream=RANDOM_STREAMS["evaluate"]
    )
    best = BestCheckpoint(config, run_dir, evaluation_envs)
    context = RunContext(config, run_dir.path, loop.learner.acting_weights.network)
    loggers = [LOGGERS[name]() for name in config.run.loggers]
    hooks = CallbackList([*loggers, *callbacks], context, progress.print_warning)
    return TrainingRun(config, run_dir, loop, best, progress, hooks)


def _load_initial_state(run: TrainingRun, init: str | Path | None, resume: bool) -> None:
    """Load the newest checkpoint of a resumed run, or else the initial weights if given."""
    if resume and _load_newest_checkpoint(run):
        return
    if init is not None:
        parts = warm_start(run.loop.learner, Path(init))
        run.progress.print_message(f"start from {init}: {', '.join(parts)}")
    _set_initial_demo_priorities(run.loop)


def _make_progress_display(config: Config) -> ProgressDisplay:
    title = f"{config.env} · {config.preset} · seed {config.run.seed}"
    return ProgressDisplay(config.run.steps, title, config.run.minutes)


def _open_plan(
    env: str | Callable[[], gymnasium.Env],
    config: Config,
    hardware: Hardware,
    cluster: ClusterOptions | None,
    progress: Progress,
) -> AbstractContextManager[SourcePlan]:
    """Choose where the actors run; Ray is imported only if that is a cluster."""
    if cluster is None:
        return open_local_plan(partial(build_envs, env, config), config, hardware)
    try:
        from lookfurther.training.cluster.connection import open_cluster_plan
    except ModuleNotFoundError as error:
        raise ConfigError(f"--cluster needs {error.name}: install lookfurther[ray]") from None
    progress.print_message(f"connecting to Ray ({cluster.address}), which may take half a minute")
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
    plan: SourcePlan,
    episodes: Sequence[Episode],
    learner_device: torch.device,
    progress: Progress,
) -> torch.device:
    """Print what the run uses, or raise if its replays do not fit; returns the replays' device."""
    spec = plan.spec
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
    if episodes and config.replay.expert_noop_starts:
        starts = find_noop_starts(config.environment, episodes)
        hint = "" if starts else " (lookfurther demos align SET --starts makes demonstrations)"
        progress.print_message(
            f"no-op starts with a demonstration: {len(starts)} of"
            f" {config.environment.noop_max + 1}{hint}"
        )
    progress.print_message(
        f"replay of {capacity:,} steps: {format_bytes(agent_bytes)}, of demonstrations:"
        f" {format_bytes(expert_bytes)}; {device} has {format_bytes(available_memory(device))} left"
    )
    if plan.message:
        progress.print_message(plan.message)
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
