"""The floor of expert values that is backed up along the demonstrations by the target network."""

from __future__ import annotations

import torch
from torch import Tensor

from lookfurther.config import Config
from lookfurther.learner import Learner
from lookfurther.replay.mixture import ReplayMixture
from lookfurther.replay.prioritized import PrioritizedReplay
from lookfurther.returns import back_up_values

STATES_PER_PASS = 512


class ValueBackup:
    """Sets the value floors of an expert replay from the values of the target network."""

    def __init__(self, replay: PrioritizedReplay, learner: Learner) -> None:
        self.replay, self.learner = replay, learner

    @torch.no_grad()
    def refresh(self) -> None:
        """Back up values from the end of each demonstration to its start."""
        replay = self.replay
        floors = back_up_values(
            replay.rewards.cpu(), replay.marks.cpu(), self._target_values().cpu(), replay.gamma
        )
        replay.value_floors.copy_(floors)

    def _target_values(self) -> Tensor:
        """V of every slot under the target network [slots], not transformed."""
        weights, transform = self.learner.target_weights, self.learner.objective.value_transform
        slots = torch.arange(len(self.replay.actions), device=self.replay.device)
        values = []
        for part in slots.split(STATES_PER_PASS):
            x = self.replay.gather_states(part).to(weights.device)
            values.append(transform.h_inv(weights.q_values(x).max(-1).values))
        return torch.cat(values)


def start_value_backup(config: Config, mixture: ReplayMixture, learner: Learner) -> None:
    """Refresh value floors now and whenever the target network changes, for the setting backup."""
    if config.learner.value_floor != "backup" or mixture.expert is None:
        return
    backup = ValueBackup(mixture.expert, learner)
    learner.target_hooks.append(backup.refresh)
    backup.refresh()
