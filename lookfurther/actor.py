"""The actors of Sec. 3.4: lanes, each with its own epsilon, evaluated as one batch.

All tensors have fixed addresses and shapes, so on a GPU `select_actions` and `close_slot` are each
one captured graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lookfurther.config import Config
from lookfurther.exploration import EXPLORATIONS, Exploration, initial_epsilons
from lookfurther.losses import value_of_action
from lookfurther.networks.dueling import network_value_transform
from lookfurther.priorities import PRIORITY_FUNCTIONS, initial_td_error
from lookfurther.system.pinned_memory import copy_array, make_pinned_buffer
from lookfurther.transforms import REWARD_TRANSFORMS
from lookfurther.types import END, FIRST, TERMINAL, TRUNCATED, Chunk, Spec, Step

if TYPE_CHECKING:
    from lookfurther.master_weights import MasterWeights

DROPPED = 128  # in addition to the marks of a slot: the episode before it failed
WINDOW_TENSORS = ("q_a", "v", "rewards", "marks", "alive")


class Actor:
    """Selects actions and turns the resulting steps into Chunks with initial priorities.

    One step: `select_actions` for x_t, `load_step` with the reward and x_{t+1}, `close_slot`, then
    `closed_chunk`.
    """

    def __init__(self, weights: MasterWeights, spec: Spec, config: Config, lanes: range) -> None:
        self.weights, self.spec, self.lanes = weights, spec, lanes
        device = self.device = weights.device
        self.horizons, self.gamma = config.replay.horizons, config.learner.gamma
        self.value_transform = network_value_transform(weights.network, config.learner)
        self.priority_function = PRIORITY_FUNCTIONS[config.learner.priority_type]
        self.reward_transform = REWARD_TRANSFORMS[config.environment.reward_transform]
        a = config.actor
        epsilons = initial_epsilons(a.epsilon_schedule, a.lanes, a.epsilon_end)
        self.epsilon = epsilons[lanes.start : lanes.stop].float().to(device)
        self.generator = torch.Generator(device).manual_seed(config.run.seed + lanes.start)
        self.exploration: Exploration = EXPLORATIONS[config.actor.exploration](len(lanes), device)
        self._allocate_slots()
        self._allocate_window()
        self.all_finite = torch.ones((), dtype=torch.bool, device=device)  # values and priorities
        self.episode_length = np.zeros(len(lanes), dtype=np.int64)  # slots so far
        self.invalidate_newest = np.zeros(len(lanes), dtype=np.int64)
        # While an episode continues, copy only the newest plane of a stack to the GPU.
        self.copies_newest_plane = self.x.is_cuda and spec.stack > 1
        loaded = ("x", "plane", "reward", "mark")
        self._pinned = {name: make_pinned_buffer(getattr(self, name)) for name in loaded}

    def _allocate_slots(self) -> None:
        """Tensors of the step loaded last, of the open slot and of the closed slot."""
        m, spec, device = len(self.lanes), self.spec, self.device
        dtype = getattr(torch, spec.dtype)
        # The step loaded last.
        self.x = torch.zeros(m, *spec.observation_shape, dtype=dtype, device=device)
        self.plane = torch.zeros(m, *spec.plane, dtype=dtype, device=device)
        self.reward = torch.zeros(m, device=device)
        self.mark = torch.zeros(m, dtype=torch.uint8, device=device)
        # The slot of x_t, until the reward of its action arrives.
        self.open_slot = {
            "plane": torch.zeros(m, *spec.plane, dtype=dtype, device=device),
            "action": torch.zeros(m, dtype=torch.int64, device=device),
            "mark": torch.zeros(m, dtype=torch.uint8, device=device),
            "q_a": torch.zeros(m, device=device),
            "v": torch.zeros(m, device=device),
        }
        # The slot closed last, in its own memory: it may be read while actions are selected.
        self.closed_slot = {
            k: torch.zeros_like(self.open_slot[k]) for k in ("plane", "action", "mark")
        }
        self.closed_slot["reward"] = torch.zeros(m, device=device)
        self.closed_slot["priority"] = torch.zeros(m, len(self.horizons), device=device)

    def _allocate_window(self) -> None:
        """The last max(horizons) + 1 slots of each lane, oldest first.

        A slot that is not alive is never sampled.
        """
        m, window, device = len(self.lanes), max(self.horizons) + 1, self.device
        self.q_a = torch.zeros(m, window, device=device)
        self.v = torch.zeros(m, window, device=device)
        self.rewards = torch.zeros(m, window, device=device)
        self.marks = torch.zeros(m, window, dtype=torch.uint8, device=device)
        self.alive = torch.zeros(m, window, dtype=torch.bool, device=device)

    def load_step(self, step: Step) -> None:
        """Load the environments' response to the actions."""
        whole_stacks = not self.copies_newest_plane or bool(step.first.any())
        self.copy_to_device(step, whole_stacks)
        self.invalidate_newest = np.where(step.dropped, self.episode_length, 0)
        self.episode_length = np.where(step.first, 1, self.episode_length + 1)

    def copy_to_device(self, step: Step, whole_stacks: bool = True) -> None:
        """Copy a step to the device, with whole stacks or only their newest planes."""
        mark = step.first * FIRST + step.terminal * TERMINAL + step.truncated * TRUNCATED
        mark = (mark + step.dropped * DROPPED).astype(np.uint8)
        planes = self.spec.plane[0]
        observed = (
            {"x": step.observation} if whole_stacks else {"plane": step.observation[:, -planes:]}
        )
        for name, new in (observed | {"reward": step.reward, "mark": mark}).items():
            copy_array(getattr(self, name), self._pinned[name], new)
        if not whole_stacks:
            self.x.copy_(torch.cat([self.x[:, planes:], self.plane], 1))

    @torch.no_grad()
    def select_actions(self) -> None:
        """Evaluate the network on x_t and write a_t [m] to `open_slot`."""
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
        """Append the slot of x_t to the window and compute the priorities of the oldest slot."""
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
        """The slot closed last; the next `close_slot` overwrites its tensors."""
        return Chunk(
            **{k: v[None] for k, v in self.closed_slot.items()},
            invalidate_newest=self.invalidate_newest,
        )

    def invalidate_pending(self, lanes: np.ndarray) -> None:
        """The trajectories of lanes [m] bool stop here: pending slots are never sampled."""
        self.alive[torch.from_numpy(lanes).to(self.device)] = False

    def _initial_priorities(self) -> Tensor:
        """[m, H] of the oldest slot of the window; above 0 if it may be sampled."""
        td_errors = [
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
        priority = self.priority_function(torch.stack(td_errors, -1))
        priority = priority.clamp(min=torch.finfo(torch.float32).tiny)
        return torch.where(self.alive[:, :1], priority, 0.0)

    def state(self) -> dict[str, Tensor]:
        """Everything for a checkpoint, valid between `close_slot` and `select_actions`."""
        window = {name: getattr(self, name) for name in WINDOW_TENSORS}
        random = {
            "generator": self.generator.get_state(),
            "length": torch.from_numpy(self.episode_length),
        }
        return window | random | self.exploration.state()

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        for name in WINDOW_TENSORS:
            getattr(self, name).copy_(state[name])
        for name, own in self.exploration.state().items():
            own.copy_(state[name])
        self.episode_length = state["length"].numpy().copy()
        self.generator.set_state(state["generator"].cpu())
