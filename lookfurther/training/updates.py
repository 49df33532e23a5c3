"""Algorithm 1's inner loop: sample, learn, send priorities back; on a GPU as graphs."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from lookfurther.gpu.graphs import Captured
from lookfurther.learner import Learner, Terms
from lookfurther.replay.mixture import Mixture
from lookfurther.types import Batch

# Updates in one graph where so many follow one another: the GPU waits at the start of each graph.
STRETCH = 4


class Updates:
    """Makes updates and keeps the sums of what they report, on the device.

    Where the replays lie beside the learner whole updates are one graph. When the priorities of
    a batch are back, the next one is fetched beside the backward pass: sampled, prepared, and
    valued by the target network. That is the same as one after the other, as long as the target
    network stays. Replays in host memory sample there; the rest is one graph.
    """

    def __init__(self, mixture: Mixture, learner: Learner) -> None:
        self.mixture, self.learner = mixture, learner
        self.device = learner.weights.device
        blanks = [Batch(*(t.to(self.device) for t in mixture.blank())) for _ in (0, 1)]
        self.fetched = [learner.fetched(blank) for blank in blanks]  # memory, to be filled
        self.priority = torch.zeros(0)
        self.names: list[str] = []
        self.sums = torch.zeros(0)
        self.counted = 0
        if mixture.agent.device.type == self.device.type:
            self.fetch = Captured(partial(self._fetch, 0), self.device)
            self.stretch = STRETCH if self.device.type == "cuda" else 1  # a CPU looks at each
            self.turns = {
                (place, count, more): Captured(
                    partial(self._turns, place, count, more), self.device
                )
                for place, count in ((0, 1), (1, 1), (0, STRETCH))
                for more in (False, True)
            }
            self.run_all = self._beside
        else:
            self.learn = Captured(self._learn_apart, self.device)
            self.drawn = mixture.blank()
            self.run_all = self._apart

    def run(self, count: int) -> None:
        """`count` updates, one after the other."""
        if count:
            self.run_all(count)
            self.counted += count

    def _beside(self, count: int) -> None:
        place, fetched = 0, False
        while count:
            if not fetched:
                self.fetch()
                place = 0
            alike = min(count, self.learner.until_copy)
            turns = self.stretch if place == 0 and alike >= self.stretch else 1
            fetched = alike > turns
            self.turns[place, turns, fetched]()
            for _ in range(turns):
                self._count()
            count, place = count - turns, (place + turns) % 2

    def _fetch(self, place: int) -> None:
        self.mixture.sample(self.fetched[place].batch)
        self.learner.prepare(self.fetched[place])

    def _turns(self, place: int, count: int, more: bool) -> None:
        """`count` turns; after the last, too, the next batch is there if more are to come."""
        for i in range(count):
            self._turn((place + i) % 2, more or i < count - 1)

    def _turn(self, place: int, more: bool) -> None:
        """Learn from one batch and, where more are to come, fetch the other."""
        fetched = self.fetched[place]

        def tell(priority: Tensor) -> None:
            self.mixture.update(fetched.batch.item, priority)
            if more:
                self._fetch(1 - place)

        self.learner.advance(fetched, tell, self._add)

    def _apart(self, count: int) -> None:
        for _ in range(count):
            self.mixture.sample(self.drawn)
            for own, new in zip(self.fetched[0].batch, self.drawn, strict=True):
                own.copy_(new)
            self.learn()
            self.mixture.update(self.drawn.item, self.priority.to(self.drawn.item.device))
            self._count()

    def _learn_apart(self) -> None:
        self.learner.prepare(self.fetched[0])
        self.priority = self.learner.advance(self.fetched[0], note=self._add).priority

    def _count(self) -> None:
        if self.device.type == "cpu":
            self.learner.check()
        self.learner.count()

    def _add(self, terms: Terms) -> None:
        if not self.names:
            self.names = list(terms)
            self.sums = torch.zeros(len(terms), device=self.device)
        self.sums += torch.stack(list(terms.values()))

    def means(self) -> dict[str, float]:
        """The means of everything reported since the last call."""
        if not self.counted:
            return {}
        sums = torch.cat([self.sums, self.learner.norms.view(1)])
        means = (sums / self.counted).tolist()
        self.sums.zero_()
        self.learner.norms.zero_()
        self.counted = 0
        return dict(zip([*self.names, "gradient_norm"], means, strict=True))
