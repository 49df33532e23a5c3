"""Behaviour cloning: the networks and demonstrations of `train`, without reward and environment.

It is the baseline that shows what imitation alone reaches.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from lookfurther.config import Config, replace
from lookfurther.demos import catalog
from lookfurther.errors import ConfigError, DemonstrationError, TrainingDiverged
from lookfurther.networks.dueling import NetworkBuilder, make_network_builder, q_values
from lookfurther.replay.prioritized import PrioritizedReplay
from lookfurther.system.output import print_line
from lookfurther.training.build import RANDOM_STREAMS, build_envs
from lookfurther.training.checkpoints import checkpoint
from lookfurther.training.expert_replay import build_expert_replay
from lookfurther.training.hardware import Hardware
from lookfurther.training.monitoring.metrics import MetricsWriter, TrainingClock
from lookfurther.training.run_dir import RunDir
from lookfurther.training.train import default_run_dir
from lookfurther.types import BEST, Spec
from lookfurther.validation import validate

CLONE_NAME = "clone"  # of the variant, instead of a preset's name
SEGMENT_STEPS = 50  # consecutive steps that are learned from or held out together


class CloneSummary(NamedTuple):
    """How cloning ended; loss and accuracy are those of the saved weights.

    They are of the held-out steps; if there are none, of all steps.
    """

    folder: Path
    epochs: int
    updates: int
    held_out_loss: float
    held_out_accuracy: float
    minutes: float


def clone(
    config: Config,
    *,
    env: Callable[[], gymnasium.Env] | None = None,
    network: NetworkBuilder | None = None,
    epochs: int = 100,
    patience: int = 5,
    held_out: float = 0.1,
) -> CloneSummary:
    """Train the network to predict the demonstrated actions, and write a run folder.

    A share `held_out` of the steps is not learned from. Cloning ends when the loss on these steps
    has not improved for `patience` epochs, or after `epochs`; the weights with the lowest such loss
    are saved. With `held_out` 0, all steps are learned from, and that loss is of the same steps.
    `learner.imitated_episodes` and `learner.imitated_steps` select the steps.
    """
    _check_arguments(config, epochs, patience, held_out)
    config = validate(replace(config, preset=CLONE_NAME))
    folder = _choose_folder(config)
    torch.manual_seed(config.run.seed)
    hardware = Hardware.resolve(config)
    hardware.limit_threads()
    make_env = partial(build_envs, env or config.env, config, 1, RANDOM_STREAMS["evaluate"])
    with closing(make_env()) as envs:
        spec = envs.spec
    replay = _build_replay(config, spec)
    rng = np.random.default_rng((config.run.seed, RANDOM_STREAMS["replay"]))
    items = _imitated_items(replay)
    learned, kept = (items[torch.from_numpy(i)] for i in split_steps(len(items), held_out, rng))
    print_line(f"{spec.env}: {len(learned):,} steps to learn from, {len(kept):,} held out")
    module = (network or make_network_builder(config.network))(spec).to(hardware.device)
    cloning = BehaviourCloning(config, module, replay, hardware.device)
    with RunDir.open(folder, config, resume=False) as run_dir:
        return _run_epochs(cloning, run_dir, learned, kept, epochs, patience)


def _check_arguments(config: Config, epochs: int, patience: int, held_out: float) -> None:
    if not config.demos:
        raise ConfigError("clone needs demonstrations: add --demos NAME")
    for name, value in {"epochs": epochs, "patience": patience}.items():
        if value < 1:
            raise ConfigError(f"{name} must be 1 or more, not {value}")
    if not 0 <= held_out < 1:
        raise ConfigError(f"held_out must be 0 or more and below 1, not {held_out}")


def _choose_folder(config: Config) -> Path:
    """The folder of a new run; cloning cannot resume one."""
    folder = Path(config.run.folder or default_run_dir(config))
    if (folder / "config.json").exists():
        raise ConfigError(f"{folder} already holds a run: choose another --run.folder")
    return folder


def _build_replay(config: Config, spec: Spec) -> PrioritizedReplay:
    """All demonstrations with their observations, one item for each step, in host memory."""
    episodes = [e for n in config.demos for e in catalog.load_set(n, spec, config.environment)]
    single = replace(config, replay__expert_horizons=(1,))
    return build_expert_replay(single, spec, episodes, torch.device("cpu"), seed=0)


def _imitated_items(replay: PrioritizedReplay) -> Tensor:
    """[n] the steps that are imitated, in order; with one horizon, an item is a slot."""
    items = replay.samplable_items()
    return items[(replay.marks.flatten()[items] & BEST) != 0]


def split_steps(
    count: int, held_out: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """The indices of steps to learn from, and of those held out, in segments.

    Neighbouring observations are almost equal. Single held-out steps would hide overfitting. With
    `held_out` 0, no step is held out.
    """
    if count and not held_out:
        return np.arange(count), np.arange(0)
    segment = np.arange(count) // SEGMENT_STEPS
    total = segment[-1] + 1 if count else 0
    if total < 2:
        raise DemonstrationError(
            f"{count} demonstrated steps are too few to hold some out: record"
            f" {SEGMENT_STEPS + 1} or more"
        )
    chosen = rng.permutation(total)[: min(total - 1, math.ceil(held_out * total))]
    is_held_out = np.isin(segment, chosen)
    return np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)


class BehaviourCloning:
    """Cross-entropy between softmax of the network's outputs and the demonstrated actions."""

    def __init__(
        self, config: Config, network: nn.Module, replay: PrioritizedReplay, device: torch.device
    ) -> None:
        self.config, self.network, self.replay, self.device = config, network, replay, device
        learner = config.learner
        self.optimizer = torch.optim.Adam(
            network.parameters(), learner.learning_rate, eps=learner.adam_eps
        )
        self.generator = torch.Generator().manual_seed(config.run.seed)
        self.updates = 0

    def learn_epoch(self, items: Tensor) -> float:
        """One update for each batch of the shuffled items; returns the mean loss."""
        self.network.train()
        shuffled = items[torch.randperm(len(items), generator=self.generator)]
        losses = [self._update(batch) for batch in shuffled.split(self.config.batch_size)]
        return float(torch.stack(losses).mean())

    def _update(self, items: Tensor) -> Tensor:
        logits, actions = self._predict(items)
        loss = nn.functional.cross_entropy(logits, actions)
        self.optimizer.zero_grad()
        loss.backward()
        limit = self.config.learner.max_gradient_norm
        nn.utils.clip_grad_norm_(self.network.parameters(), limit)
        self.optimizer.step()
        self.updates += 1
        return loss.detach()

    @torch.no_grad()
    def measure(self, items: Tensor) -> tuple[float, float]:
        """The mean loss and the share of actions that the network predicts."""
        self.network.eval()
        loss, correct = 0.0, 0
        for batch in items.split(self.config.batch_size):
            logits, actions = self._predict(batch)
            loss += float(nn.functional.cross_entropy(logits, actions, reduction="sum"))
            correct += int((logits.argmax(-1) == actions).sum())
        return loss / len(items), correct / len(items)

    def _predict(self, items: Tensor) -> tuple[Tensor, Tensor]:
        """The network's outputs [B, A] and the demonstrated actions [B]."""
        batch = self.replay.gather_items(items)
        return q_values(self.network, batch.x.to(self.device)), batch.a.to(self.device)


def _run_epochs(
    cloning: BehaviourCloning,
    run_dir: RunDir,
    learned: Tensor,
    held_out: Tensor,
    epochs: int,
    patience: int,
) -> CloneSummary:
    """Learn until the measured loss stops improving; the best weights are in the run folder."""
    measured, steps, when = learned, "learned", "after the epoch"
    if len(held_out):
        measured, steps, when = held_out, "held_out", "held out"
    clock, metrics = TrainingClock(), MetricsWriter(run_dir.metrics_file)
    best, best_epoch, epoch = (math.inf, 0.0), 0, 0
    with closing(metrics):
        while epoch < epochs and epoch - best_epoch < patience:
            epoch += 1
            learned_loss = cloning.learn_epoch(learned)
            loss, accuracy = cloning.measure(measured)
            if not math.isfinite(learned_loss + loss):
                raise TrainingDiverged(f"the loss of epoch {epoch} is not finite")
            minutes = clock.elapsed_seconds() / 60
            row = {"step": cloning.updates, "updates": cloning.updates, "epoch": epoch}
            row |= {"minutes": minutes, "loss": learned_loss}
            metrics.write(row | {f"loss_{steps}": loss, f"accuracy_{steps}": accuracy})
            print_line(
                f"epoch {epoch}: loss {learned_loss:.3g}, {when} {loss:.3g}"
                f" ({100 * accuracy:.1f} % of actions)"
            )
            if loss < best[0]:
                best, best_epoch = (loss, accuracy), epoch
                _save_weights(cloning, run_dir, clock.elapsed_seconds())
    seconds = clock.elapsed_seconds()
    return CloneSummary(run_dir.path, epoch, cloning.updates, *best, seconds / 60)


def _save_weights(cloning: BehaviourCloning, run_dir: RunDir, seconds: float) -> None:
    metadata: dict[str, Any] = {
        "step": cloning.updates,
        "updates": cloning.updates,
        "seconds": seconds,
        "spec": cloning.replay.spec._asdict(),
        "config": asdict(cloning.config),
    }
    weights = {"weights": dict(cloning.network.state_dict())}
    checkpoint.save(run_dir.checkpoints_dir, cloning.updates, weights, metadata, keep=1)
