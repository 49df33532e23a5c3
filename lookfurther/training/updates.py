"""Algorithm 1's inner loop: sample, learn, send priorities back; on a GPU as graphs."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from lookfurther.acceleration import make_graphed
from lookfurther.learner import Learner, UpdateMetrics
from lookfurther.replay.mixture import ReplayMixture
from lookfurther.types import Batch

# Updates in one graph where so many follow one another: the GPU waits at the start of each graph.
UPDATES_PER_GRAPH = 4


class UpdateRunner:
    """Makes updates and keeps the sums of what they report, on the device.

    Where the replays lie beside the learner whole updates are one graph. When the priorities of
    a batch are back, the next one is fetched beside the backward pass: sampled, prepared, and
    valued by the target network. That is the same as one after the other, as long as the target
    network stays. Replays in host memory sample there; the rest is one graph.
    """

    def __init__(self, mixture: ReplayMixture, learner: Learner) -> None:
        self.mixture, self.learner = mixture, learner
        self.device = learner.online_weights.device
        blanks = [Batch(*(t.to(self.device) for t in mixture.empty_batch())) for _ in (0, 1)]
        self.prepared_batches = [
            learner.prepare_batch(blank) for blank in blanks
        ]  # memory, to be filled
        self.priority = torch.zeros(0)
        self.term_names: list[str] = []
        self.term_sums = torch.zeros(0)
        self.update_count = 0
        if mixture.agent.device.type == self.device.type:
            self.prepare_first_batch = make_graphed(partial(self._prepare_batch, 0), self.device)
            self.updates_per_graph = (
                UPDATES_PER_GRAPH if self.device.type == "cuda" else 1
            )  # a CPU looks at each
            self.graphed_updates = {
                (place, count, more): make_graphed(
                    partial(self._update_repeatedly, place, count, more), self.device
                )
                for place, count in ((0, 1), (1, 1), (0, UPDATES_PER_GRAPH))
                for more in (False, True)
            }
            self.run_updates = self._run_with_device_replay
        else:
            self.graphed_update = make_graphed(self._update_from_host_batch, self.device)
            self.host_batch = mixture.empty_batch()
            self.run_updates = self._run_with_host_replay

    def run(self, count: int) -> None:
        """`count` updates, one after the other."""
        if count:
            self.run_updates(count)
            self.update_count += count

    def _run_with_device_replay(self, count: int) -> None:
        place, fetched = 0, False
        while count:
            if not fetched:
                self.prepare_first_batch()
                place = 0
            alike = min(count, self.learner.updates_until_target_copy)
            turns = self.updates_per_graph if place == 0 and alike >= self.updates_per_graph else 1
            fetched = alike > turns
            self.graphed_updates[place, turns, fetched]()
            for _ in range(turns):
                self._finish_update()
            count, place = count - turns, (place + turns) % 2

    def _prepare_batch(self, buffer: int) -> None:
        self.mixture.sample(self.prepared_batches[buffer].batch)
        self.learner.prepare_into(self.prepared_batches[buffer])

    def _update_repeatedly(self, buffer: int, count: int, has_next: bool) -> None:
        """`count` turns; after the last, too, the next batch is there if more are to come."""
        for i in range(count):
            self._update_once((buffer + i) % 2, has_next or i < count - 1)

    def _update_once(self, buffer: int, has_next: bool) -> None:
        """Learn from one batch and, where more are to come, fetch the other."""
        fetched = self.prepared_batches[buffer]

        def tell(priority: Tensor) -> None:
            self.mixture.update_priorities(fetched.batch.item, priority)
            if has_next:
                self._prepare_batch(1 - buffer)

        self.learner.update(fetched, tell, self._accumulate_terms)

    def _run_with_host_replay(self, count: int) -> None:
        for _ in range(count):
            self.mixture.sample(self.host_batch)
            for own, new in zip(self.prepared_batches[0].batch, self.host_batch, strict=True):
                own.copy_(new)
            self.graphed_update()
            self.mixture.update_priorities(
                self.host_batch.item, self.priority.to(self.host_batch.item.device)
            )
            self._finish_update()

    def _update_from_host_batch(self) -> None:
        self.learner.prepare_into(self.prepared_batches[0])
        self.priority = self.learner.update(
            self.prepared_batches[0], on_metrics=self._accumulate_terms
        ).priority

    def _finish_update(self) -> None:
        if self.device.type == "cpu":
            self.learner.raise_if_diverged()
        self.learner.maybe_update_target()

    def _accumulate_terms(self, terms: UpdateMetrics) -> None:
        if not self.term_names:
            self.term_names = list(terms)
            self.term_sums = torch.zeros(len(terms), device=self.device)
        self.term_sums += torch.stack(list(terms.values()))

    def compute_mean_terms(self) -> dict[str, float]:
        """The means of everything reported since the last call."""
        if not self.update_count:
            return {}
        sums = torch.cat([self.term_sums, self.learner.gradient_norm_sum.view(1)])
        means = (sums / self.update_count).tolist()
        self.term_sums.zero_()
        self.learner.gradient_norm_sum.zero_()
        self.update_count = 0
        return dict(zip([*self.term_names, "gradient_norm"], means, strict=True))
