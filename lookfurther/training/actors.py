"""Groups of actors that step environments and produce Chunks of experience."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lookfurther.actor import Actor
from lookfurther.envs import Envs
from lookfurther.errors import ConfigError
from lookfurther.master_weights import MasterWeights
from lookfurther.replay.prioritized import PrioritizedReplay
from lookfurther.system.acceleration import make_graphed
from lookfurther.training.episode_limits import EpisodeLimits
from lookfurther.training.monitoring.episode_stats import EpisodeStats
from lookfurther.training.signals import EnvCallTracker
from lookfurther.training.weight_sync import WeightSync, select_prefix
from lookfurther.types import Chunk, Step


class ActorGroup:
    """Lanes that step together: their environments and their actor.

    On a GPU the actor has its own stream, with a higher priority than the learner's.
    """

    def __init__(
        self,
        envs: Envs,
        actor: Actor,
        limits: EpisodeLimits | None = None,
    ) -> None:
        self.envs, self.actor = envs, actor
        self.limits = limits or EpisodeLimits(np.zeros(envs.lanes, np.int64))
        if self.limits.life_loss != "continue" and envs.lives is None:
            raise ConfigError(f"actor.life_loss is for Atari games only, not {envs.spec.env}")
        self.env_calls = EnvCallTracker()
        self.is_stepping = False  # actions were sent, and no step was received yet
        self.choose_actions = make_graphed(
            actor.select_actions, actor.device, [actor.generator], high_priority=True
        )
        self.finish_slot = make_graphed(actor.close_slot, actor.device, high_priority=True)
        self.is_cuda = actor.device.type == "cuda"
        self.stream: Any = None
        if self.is_cuda:
            self.stream = torch.cuda.Stream(actor.device, priority=-1)
            self.actions_ready_event = torch.cuda.Event(blocking=True)
            self.chunk_read_event = torch.cuda.Event()
            self.pinned_actions = torch.empty_like(
                actor.open_slot["action"], device="cpu", pin_memory=True
            )
        self.last_step, self.lives = envs.reset(), envs.lives
        with self.on_actor_stream():
            actor.load_step(self.last_step)

    def resume_episodes(self, step: Step, is_continued: np.ndarray) -> None:
        """Continue from a checkpoint's observations; other lanes have started a new episode."""
        self.last_step, self.lives = step, self.envs.lives
        with self.on_actor_stream():
            self.actor.copy_to_device(step)
            self.actor.invalidate_pending(~is_continued)
        self.actor.episode_length = np.where(is_continued, self.actor.episode_length, 1)
        self.limits.restart(~is_continued)

    def start_step(self) -> None:
        """Select actions and send them; the environments step in the background."""
        with self.on_actor_stream():
            self.choose_actions()
            if self.is_cuda:
                self.pinned_actions.copy_(self.actor.open_slot["action"], non_blocking=True)
                self.actions_ready_event.record(self.stream)
        if self.is_cuda:
            self.actions_ready_event.synchronize()
        actions = self.pinned_actions if self.is_cuda else self.actor.open_slot["action"]
        self.is_stepping = True
        with self.env_calls:
            self.envs.send(self._adapt_actions(actions.numpy()))

    def collect_chunk(self) -> Chunk:
        """Wait for the environments and return the slot that is now complete."""
        with self.env_calls:
            step = self.envs.recv()
            is_life_lost = self._find_life_losses(step)
            self.last_step = self._apply_limits(step, is_life_lost)
        self.is_stepping = False
        # For the values a lost life is terminal, even if the game goes on.
        is_terminal = self.last_step.terminal | is_life_lost
        with self.on_actor_stream():
            self.actor.load_step(self.last_step._replace(terminal=is_terminal))
            if self.is_cuda:
                self.stream.wait_event(self.chunk_read_event)
            self.finish_slot()
        if self.is_cuda:  # readers of the chunk must wait for its writer
            torch.cuda.current_stream().wait_stream(self.stream)
        return self.actor.closed_chunk()

    @property
    def is_counted(self) -> np.ndarray:
        """[m] bool: the lanes whose returns are the agent's own."""
        return np.ones(self.envs.lanes, bool)

    def collect_metrics(self) -> dict[str, float]:
        """Metrics of this group alone."""
        return {}

    def get_envs_state(self) -> dict[str, np.ndarray]:
        """The state that continues the episodes in progress; empty if that is not possible."""
        if self.is_stepping:
            return {}
        self.is_stepping = True  # until the environments return
        with self.env_calls:
            state = self.envs.state()
        self.is_stepping = False
        return state

    def _adapt_actions(self, actions: np.ndarray) -> np.ndarray:
        """The actions [m] as the environments need them."""
        return actions

    def _apply_limits(self, step: Step, is_life_lost: np.ndarray) -> Step:
        """The step after ending the episodes that are due."""
        ends = self.limits.add_step(step)
        if self.limits.life_loss == "reset":
            ends = ends | is_life_lost
        if not ends.any():
            return step
        step, is_terminal = self.envs.truncate(ends), ends & is_life_lost
        return step._replace(
            terminal=step.terminal | is_terminal, truncated=step.truncated & ~is_terminal
        )

    def _find_life_losses(self, step: Step) -> np.ndarray:
        """[m] bool: the lanes whose step lost a life, where that is an event."""
        before, self.lives = self.lives, self.envs.lives
        if self.limits.life_loss == "continue":
            return np.zeros(self.envs.lanes, bool)
        assert before is not None
        assert self.lives is not None
        return (self.lives < before) & ~(step.terminal | step.truncated | step.first)

    def on_actor_stream(self) -> AbstractContextManager[Any]:
        """A context that uses the actor's stream."""
        return torch.cuda.stream(self.stream) if self.is_cuda else nullcontext()

    def release_chunk(self) -> None:
        """Mark the chunk as read: `finish_slot` may overwrite it."""
        if self.is_cuda:
            self.chunk_read_event.record()


class ActorPool:
    """The `ChunkSource` of this machine: starts a step of one group, collects the next one's Chunk.

    With several groups, one acts while the environments of the others step.
    """

    def __init__(self, groups: Sequence[ActorGroup], weights: MasterWeights) -> None:
        self.groups = list(groups)
        self.weight_sync = WeightSync(
            weights, [group.stream for group in self.groups if group.is_cuda]
        )
        self.lanes = sum(len(group.actor.lanes) for group in self.groups)
        self.is_counted = np.concatenate([group.is_counted for group in self.groups])
        self.episode_stats = EpisodeStats(self.lanes, is_counted=self.is_counted)
        self.acting_group = 0  # the index of the group that acts next
        self.has_started = False

    def connect_replay(self, replay: PrioritizedReplay) -> None:
        """Add chunks to this replay; on a GPU the write of each group is one graph."""
        self.replay = replay
        self.slot_writers = [
            make_graphed(partial(self._write_slots, group), replay.device) for group in self.groups
        ]

    def _write_slots(self, group: ActorGroup) -> None:
        self.replay.write_slots(group.actor.closed_chunk(), group.actor.lanes.start)

    def start_step(self) -> None:
        """Start a step of the group that acts next."""
        self.weight_sync.tick()
        if not self.has_started:  # the others must be stepping before their chunk is collected
            for group in self.groups[1:]:
                group.start_step()
            self.has_started = True
        self.groups[self.acting_group].start_step()

    def collect_chunk(self) -> None:
        """Wait for the chunk of the next group."""
        self.acting_group = (self.acting_group + 1) % len(self.groups)
        group = self.groups[self.acting_group]
        group.collect_chunk()
        self.episode_stats.add_step(group.last_step, group.actor.lanes)

    def add_chunk(self) -> None:
        """Add the collected chunk to the replay."""
        group = self.groups[self.acting_group]
        self.slot_writers[self.acting_group]()
        self.replay.finish_add(group.actor.closed_chunk(), group.actor.lanes.start)
        group.release_chunk()

    def set_epsilon(self, epsilon: float) -> None:
        """Give every lane the same epsilon."""
        for group in self.groups:
            with group.on_actor_stream():
                group.actor.epsilon.fill_(epsilon)

    def publish_weights(self, weights: MasterWeights) -> None:
        """Act with these weights from the next step on, or a few steps later on a GPU."""
        self.weight_sync.publish(weights)

    @property
    def env_calls(self) -> list[EnvCallTracker]:
        """The calls of environment code, of each group."""
        return [group.env_calls for group in self.groups]

    @property
    def is_finite(self) -> bool:
        """Whether all Q-values and n-step returns were finite; on a GPU this waits for them."""
        return all(bool(group.actor.all_finite) for group in self.groups)

    @property
    def worker_replacements(self) -> list[str]:
        """A line for each worker process that was replaced."""
        return [line for group in self.groups for line in group.envs.replacements]

    def collect_metrics(self) -> dict[str, float]:
        """Means of the groups' metrics, each over the groups that have it."""
        rows = [group.collect_metrics() for group in self.groups]
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: float(np.mean([row[name] for row in rows if name in row])) for name in names}

    def low_epsilon_lanes(self) -> np.ndarray:
        """The least exploring quarter of the lanes that are counted."""
        epsilon = torch.cat([group.actor.epsilon for group in self.groups])
        order = torch.argsort(epsilon, stable=True).cpu().numpy()
        order = order[self.is_counted[order]]
        return order[: max(1, len(order) // 4)]

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Everything, for a checkpoint; without environments that cannot save their state."""
        files: dict[str, dict[str, Tensor]] = {"actor": {}, "envs": {}}
        for i, group in enumerate(self.groups):
            files["actor"] |= {f"{i}.{k}": v for k, v in group.actor.state().items()}
            limits = group.limits.state()
            files["actor"] |= {f"{i}.{k}": _to_tensor(v) for k, v in limits.items()}
            envs = group.get_envs_state()
            files["envs"] |= {f"{i}.{k}": _to_tensor(v) for k, v in envs.items()}
        files["actor"] |= self.weight_sync.state()
        files["returns"] = {k: _to_tensor(v) for k, v in self.episode_stats.state().items()}
        return files

    def load_state(self, state: Mapping[str, dict[str, Tensor]]) -> int:
        """The inverse of `state`; returns the number of lanes whose episode starts again."""
        self.episode_stats.load_state(
            {key: value.numpy() for key, value in state["returns"].items()}
        )
        self.weight_sync.load_state(state["actor"])
        is_continued = np.zeros(self.lanes, bool)
        for i, group in enumerate(self.groups):
            if actor := select_prefix(state["actor"], str(i)):
                group.actor.load_state(actor)
                group.limits.load_state(actor)
            lanes = slice(group.actor.lanes.start, group.actor.lanes.stop)
            if envs := select_prefix(state["envs"], str(i)):
                arrays = {k: v.numpy() for k, v in envs.items()}
                step, is_continued[lanes] = group.envs.restore(arrays)
            else:  # they cannot save their state, or one failed when the checkpoint was saved
                step = group.envs.reset()
            group.resume_episodes(step, is_continued[lanes])
        self.episode_stats.reset_lanes(~is_continued)
        return int((~is_continued).sum())


def _to_tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))
