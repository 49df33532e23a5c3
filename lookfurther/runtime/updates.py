"""Algorithm 1's inner loop: sample, learn, send priorities back; on a GPU as one graph."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lookfurther.learner import Learner
from lookfurther.mixture import Mixture
from lookfurther.runtime.captured import Captured
from lookfurther.types import Batch


class Updates:
    """Makes updates and keeps the sums of what they report, on the device.

    Where the replays lie beside the learner a whole update is one graph; replays in host memory
    sample there, and the rest is one graph.
    """

    def __init__(self, mixture: Mixture, learner: Learner) -> None:
        self.mixture, self.learner = mixture, learner
        self.device = learner.weights.device
        replays = [replay for replay in (mixture.agent, mixture.expert) if replay is not None]
        if mixture.agent.device.type == self.device.type:
            generators = [replay.generator for replay in replays]
            self.advance = Captured(self._beside, self.device, generators)
        else:
            self.learn = Captured(self._learn, self.device)
            self.advance = self._apart
        self.batch: Batch | None = None
        self.priority = torch.zeros(0)
        self.names: list[str] = []
        self.sums = torch.zeros(0)
        self.counted = 0
        self.sound = torch.ones((), dtype=torch.bool, device=self.device)

    def run(self, count: int) -> None:
        """`count` updates, one after the other."""
        for _ in range(count):
            self.advance()
            if self.device.type == "cpu":
                self.check()
            self.learner.count()
        self.counted += count

    def check(self) -> None:
        """Stop the run if a loss or a gradient was not finite; on a GPU this waits for it."""
        self.learner.check(self.sound)

    def _beside(self) -> None:
        batch = self.batch = self.mixture.sample()
        self._learn(lambda priority: self.mixture.update(batch.item, priority))

    def _apart(self) -> None:
        batch = self.mixture.sample()
        if self.batch is None:
            self.batch = Batch(*(t.to(self.device) for t in batch))
        for own, new in zip(self.batch, batch, strict=True):
            own.copy_(new)
        self.learn()
        self.mixture.update(batch.item, self.priority.to(batch.item.device))

    def _learn(self, tell: Callable[[Tensor], None] = lambda _: None) -> None:
        """Learn from self.batch, and add up what there is to report."""
        assert self.batch is not None
        self.priority, terms, sound = self.learner.advance(self.batch, tell)
        n = self.mixture.agent_items
        terms = terms | {"priority_agent": self.priority[:n].mean()}
        if self.mixture.expert is not None:
            terms = terms | {"priority_expert": self.priority[n:].mean()}
        if not self.names:
            self.names = list(terms)
            self.sums = torch.zeros(len(terms), device=self.device)
        self.sums += torch.stack(list(terms.values()))
        self.sound &= sound

    def means(self) -> dict[str, float]:
        """The means of everything reported since the last call."""
        if not self.counted:
            return {}
        values: Tensor = self.sums / self.counted
        self.sums.zero_()
        self.counted = 0
        return dict(zip(self.names, values.tolist(), strict=True))
