"""The actors of Sec. 3.4: lanes, each with its own epsilon, evaluated as one batch.

All arithmetic is on tensors of fixed place and shape, so that on a GPU `choose` and `close` can
each be one captured graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lookfurther.config import Config
from lookfurther.exploration import EPSILON_SCHEDULES, EXPLORATIONS, Exploration
from lookfurther.losses import value_of_action
from lookfurther.priorities import PRIORITY_FUNCTIONS, initial_td_error
from lookfurther.transforms import REWARD_TRANSFORMS, make_value_transform
from lookfurther.types import END, FIRST, TERMINAL, TRUNCATED, Chunk, Spec, Step

if TYPE_CHECKING:
    from lookfurther.master_weights import MasterWeights

DROPPED = 128  # beside the marks of a slot: the episode before it failed
WINDOW_TENSORS = ("q_a", "v", "rewards", "marks", "alive")


class Actor:
    """Chooses actions and turns what follows into Chunks with initial priorities.

    `load` takes what the environments answered; then `observe` gives the slot that this answer
    completes, and `act` the next actions.
    """

    def __init__(self, weights: MasterWeights, spec: Spec, config: Config, lanes: range) -> None:
        self.weights, self.spec, self.lanes = weights, spec, lanes
        device = self.device = weights.device
        self.horizons, self.gamma = config.replay.horizons, config.learner.gamma
        self.value_transform = make_value_transform(
            config.learner.value_transform, config.learner.value_transform_eps
        )
        self.priority_function = PRIORITY_FUNCTIONS[config.learner.priority_type]
        self.reward_transform = REWARD_TRANSFORMS[config.environment.reward_transform]
        ladder = EPSILON_SCHEDULES[config.actor.epsilon_schedule](config.actor.lanes)
        self.epsilon = ladder[lanes.start : lanes.stop].float().to(device)
        self.generator = torch.Generator(device).manual_seed(config.run.seed + lanes.start)
        m, window = len(lanes), max(self.horizons) + 1
        self.exploration: Exploration = EXPLORATIONS[config.actor.exploration](m, device)
        dtype = getattr(torch, spec.dtype)
        # What came in last.
        self.x = torch.zeros(m, *spec.observation_shape, dtype=dtype, device=device)
        self.plane = torch.zeros(m, *spec.plane, dtype=dtype, device=device)
        self.reward = torch.zeros(m, device=device)
        self.mark = torch.zeros(m, dtype=torch.uint8, device=device)
        # The slot that waits for the reward of its action.
        self.open_slot = {
            "plane": torch.zeros(m, *spec.plane, dtype=dtype, device=device),
            "action": torch.zeros(m, dtype=torch.int64, device=device),
            "mark": torch.zeros(m, dtype=torch.uint8, device=device),
            "q_a": torch.zeros(m, device=device),
            "v": torch.zeros(m, device=device),
        }
        # The slot closed last, kept apart: it may still be read while the next one is chosen.
        self.closed_slot = {
            k: torch.zeros_like(self.open_slot[k]) for k in ("plane", "action", "mark")
        }
        self.closed_slot["reward"] = torch.zeros(m, device=device)
        self.closed_slot["priority"] = torch.zeros(m, len(self.horizons), device=device)
        # The last `window` slots of each lane, oldest first; one not alive is never sampled.
        self.q_a = torch.zeros(m, window, device=device)
        self.v = torch.zeros(m, window, device=device)
        self.rewards = torch.zeros(m, window, device=device)
        self.marks = torch.zeros(m, window, dtype=torch.uint8, device=device)
        self.alive = torch.zeros(m, window, dtype=torch.bool, device=device)
        self.all_finite = torch.ones((), dtype=torch.bool, device=device)  # values were all finite
        self.episode_length = np.zeros(m, dtype=np.int64)  # slots of the lane's episode so far
        self.invalidate_newest = np.zeros(m, dtype=np.int64)
        # Whether of stacks that go on only the newest plane is taken to the device.
        self.copies_newest_plane = self.x.is_cuda and spec.stack > 1
        loaded = ("x", "plane", "reward", "mark")
        self._pinned = {name: _pinned_buffer(getattr(self, name)) for name in loaded}

    def load_step(self, step: Step) -> None:
        """Take the environments' answer to the actions."""
        self.copy_to_device(
            step, whole_stacks=not self.copies_newest_plane or bool(step.first.any())
        )
        self.invalidate_newest = np.where(step.dropped, self.episode_length, 0)
        self.episode_length = np.where(step.first, 1, self.episode_length + 1)

    def copy_to_device(self, step: Step, whole_stacks: bool = True) -> None:
        """Take what the environments show to the device, whole or the newest planes alone."""
        mark = step.first * FIRST + step.terminal * TERMINAL + step.truncated * TRUNCATED
        mark = (mark + step.dropped * DROPPED).astype(np.uint8)
        planes = self.spec.plane[0]
        seen = {"x": step.observation} if whole_stacks else {"plane": step.observation[:, -planes:]}
        for name, new in (seen | {"reward": step.reward, "mark": mark}).items():
            _copy_array(getattr(self, name), self._pinned[name], new)
        if not whole_stacks:
            self.x.copy_(torch.cat([self.x[:, planes:], self.plane], 1))

    def act(self) -> np.ndarray:
        """a_t [m] for the observations x_t loaded last."""
        self.select_actions()
        return self.open_slot["action"].cpu().numpy().copy()

    def observe(self) -> Chunk:
        """The slot of x_t, its reward known from what was loaded last, and priorities now due."""
        self.close_slot()
        return self.closed_chunk()

    @torch.no_grad()
    def select_actions(self) -> None:
        """Evaluate the network on x_t and choose a_t."""
        q = self.weights.q_values(self.x)
        first = (self.mark & FIRST) != 0
        a = self.exploration.select_actions(q, self.epsilon, first, self.generator)
        self.open_slot["plane"].copy_(self.x[:, -self.spec.plane[0] :])
        self.open_slot["action"].copy_(a)
        self.open_slot["mark"].copy_(self.mark & ~DROPPED)
        self.open_slot["q_a"].copy_(value_of_action(q, a))
        self.open_slot["v"].copy_(q.max(-1).values)

    @torch.no_grad()
    def close_slot(self) -> None:
        """Append the slot of x_t to the window and compute the priorities of its oldest."""
        slot = self.open_slot
        alive = (slot["mark"] & END) == 0
        new = (slot["q_a"], slot["v"], self.reward_transform(self.reward), slot["mark"], alive)
        for name, value in zip(WINDOW_TENSORS, new, strict=True):
            window = getattr(self, name)
            window.copy_(torch.cat([window[:, 1:], value.unsqueeze(-1)], -1))
        self.alive &= ((self.mark & DROPPED) == 0).unsqueeze(-1)
        for name in ("plane", "action", "mark"):
            self.closed_slot[name].copy_(slot[name])
        self.closed_slot["reward"].copy_(self.rewards[:, -1])
        self.closed_slot["priority"].copy_(self._initial_priorities())
        self.all_finite &= torch.isfinite(self.closed_slot["priority"]).all()

    def closed_chunk(self) -> Chunk:
        """The slot closed last; its tensors are written again by the next `close`."""
        return Chunk(
            **{k: v[None] for k, v in self.closed_slot.items()},
            invalidate_newest=self.invalidate_newest,
        )

    def invalidate_pending(self, lanes: np.ndarray) -> None:
        """The films of lanes [m] bool break off here: what is pending is never sampled."""
        self.alive[torch.from_numpy(lanes).to(self.device)] = False

    def _initial_priorities(self) -> Tensor:
        """[m, H] for the oldest slot of the window: above 0 where it may be sampled."""
        error = [
            initial_td_error(
                self.q_a[:, 0],
                self.v,
                self.rewards[:, :-1],
                self.marks[:, 1:],
                n,
                self.gamma,
                self.value_transform,
            )
            for n in self.horizons
        ]
        priority = self.priority_function(torch.stack(error, -1))
        priority = priority.clamp(min=torch.finfo(torch.float32).tiny)
        return torch.where(self.alive[:, :1], priority, 0.0)

    def state(self) -> dict[str, Tensor]:
        """Everything, for a checkpoint, taken between `observe` and `act`."""
        window = {name: getattr(self, name) for name in WINDOW_TENSORS}
        random = {
            "generator": self.generator.get_state(),
            "length": torch.from_numpy(self.episode_length),
        }
        return window | random | self.exploration.state()

    def load_state(self, state: dict[str, Tensor]) -> None:
        """The inverse of `state`."""
        for name in WINDOW_TENSORS:
            getattr(self, name).copy_(state[name])
        for name, own in self.exploration.state().items():
            own.copy_(state[name])
        self.episode_length = state["length"].numpy().copy()
        self.generator.set_state(state["generator"].cpu())


def _copy_array(own: Tensor, staged: Tensor | None, new: np.ndarray) -> None:
    """Take an array to the device; from page-locked memory alone does a copy not wait."""
    if staged is None:
        own.copy_(torch.from_numpy(new))
    else:
        np.copyto(staged.numpy(), new)  # with one thread
        own.copy_(staged, non_blocking=True)


def _pinned_buffer(tensor: Tensor) -> Tensor | None:
    """Page-locked host memory of the same shape, for what lies on a GPU."""
    return torch.empty_like(tensor, device="cpu", pin_memory=True) if tensor.is_cuda else None
