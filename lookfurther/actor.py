"""The actors of Sec. 3.4: m lanes, each with its own epsilon, evaluated as one batch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lookfurther.config import Config
from lookfurther.exploration import LADDERS, epsilon_greedy
from lookfurther.losses import chosen
from lookfurther.priorities import PRIORITIES, initial_td_error
from lookfurther.transforms import REWARDS, transform
from lookfurther.types import END, FIRST, TERMINAL, TRUNCATED, Chunk, Spec, Step


class Moment(NamedTuple):
    """What the actor remembers of x_t until it knows what a_t led to."""

    plane: np.ndarray
    action: np.ndarray
    mark: np.ndarray
    q_a: Tensor
    v: Tensor


class Actor:
    """Chooses actions and turns what follows into Chunks with initial priorities."""

    def __init__(
        self, network: nn.Module, spec: Spec, config: Config, device: torch.device
    ) -> None:
        self.network, self.spec, self.device = network.to(device), spec, device
        self.horizons, self.gamma = config.replay.horizons, config.learner.gamma
        self.transform = transform(config.learner.transform, config.learner.transform_eps)
        self.priority = PRIORITIES[config.learner.priority]
        self.reward = REWARDS[config.environment.reward]
        m, window = config.actor.lanes, max(self.horizons) + 1
        self.epsilon = LADDERS[config.actor.ladder](m).float().to(device)
        self.generator = torch.Generator(device).manual_seed(config.run.seed)
        self.moment: Moment | None = None
        # The last `window` slots of each lane, oldest first; one not alive is never sampled.
        self.q_a = torch.zeros(m, window, device=device)
        self.v = torch.zeros(m, window, device=device)
        self.rewards = torch.zeros(m, window, device=device)
        self.marks = torch.zeros(m, window, dtype=torch.uint8, device=device)
        self.alive = torch.zeros(m, window, dtype=torch.bool, device=device)
        self.length = np.zeros(m, dtype=np.int64)  # slots of the lane's episode so far

    @torch.no_grad()
    def act(self, step: Step) -> np.ndarray:
        """a_t [m] for the observations x_t just received."""
        q = self.network(torch.from_numpy(step.observation).to(self.device)).float()
        a = epsilon_greedy(q, self.epsilon, self.generator)
        mark = step.first * FIRST + step.terminal * TERMINAL + step.truncated * TRUNCATED
        plane = step.observation[:, -self.spec.plane[0] :]
        action = a.cpu().numpy()
        self.moment = Moment(plane, action, mark.astype(np.uint8), chosen(q, a), q.max(-1).values)
        self.length = np.where(step.first, 1, self.length + 1)
        return action

    @torch.no_grad()
    def observe(self, step: Step) -> Chunk:
        """The slot of x_t, now that its reward is known, and the priorities that came due."""
        assert self.moment is not None, "act before observe"
        plane, action, mark, q_a, v = self.moment
        reward = self.reward(torch.from_numpy(step.reward))
        self._append(q_a, v, reward, torch.from_numpy(mark))
        if step.dropped.any():
            self.cut(step.dropped)
        return Chunk(
            plane=plane[None],
            action=action[None],
            reward=reward.numpy()[None],
            mark=mark[None],
            priority=self._initial_priorities().cpu().numpy()[None],
            forget=np.where(step.dropped, self.length, 0),
        )

    def cut(self, lanes: np.ndarray) -> None:
        """The films of lanes [m] bool break off here: what is pending is never sampled."""
        self.alive[torch.from_numpy(lanes).to(self.device)] = False

    def _append(self, q_a: Tensor, v: Tensor, reward: Tensor, mark: Tensor) -> None:
        alive = (mark & END) == 0
        new = {"q_a": q_a, "v": v, "rewards": reward, "marks": mark, "alive": alive}
        for name, value in new.items():
            window = getattr(self, name)
            window.copy_(torch.cat([window[:, 1:], value.to(self.device).unsqueeze(-1)], -1))

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
                self.transform,
            )
            for n in self.horizons
        ]
        priority = self.priority(torch.stack(error, -1)).clamp(min=torch.finfo(torch.float32).tiny)
        return torch.where(self.alive[:, :1], priority, 0.0)

    def state(self) -> dict[str, Tensor]:
        """Everything, for a checkpoint, taken between `observe` and `act`."""
        window = {name: getattr(self, name) for name in ("q_a", "v", "rewards", "marks", "alive")}
        weights = {f"network.{name}": p for name, p in self.network.state_dict().items()}
        random = {"generator": self.generator.get_state(), "length": torch.from_numpy(self.length)}
        return window | weights | random

    def load_state(self, state: dict[str, Tensor]) -> None:
        """The inverse of `state`."""
        for name in ("q_a", "v", "rewards", "marks", "alive"):
            getattr(self, name).copy_(state[name])
        self.length = state["length"].numpy().copy()
        self.generator.set_state(state["generator"].cpu())
        prefix = "network."
        weights = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
        self.network.load_state_dict(weights)
