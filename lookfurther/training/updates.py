"""Algorithm 1's inner loop: sample, learn, update priorities; on a GPU as CUDA graphs."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from lookfurther.learner import Learner, UpdateMetrics
from lookfurther.replay.mixture import ReplayMixture
from lookfurther.system.acceleration import make_graphed
from lookfurther.types import Batch

# Updates in one graph, if that many are due: the GPU is idle at the start of each graph.
UPDATES_PER_GRAPH = 4


class UpdateRunner:
    """Runs updates and sums the metrics that they report, on the device.

    If the replays are on the learner's device, complete updates are one graph. As soon as the
    priorities of a batch are written, the next batch is sampled, prepared and evaluated by the
    target network, in parallel with the backward pass. As long as the target network does not
    change, the result equals that of sequential updates. Replays in host memory sample there, and
    the rest of an update is one graph.
    """

    def __init__(self, mixture: ReplayMixture, learner: Learner) -> None:
        self.mixture, self.learner = mixture, learner
        self.device = learner.online_weights.device
        # Two buffers: one is prepared while the learner uses the other.
        buffers = [Batch(*(t.to(self.device) for t in mixture.empty_batch())) for _ in (0, 1)]
        self.prepared_batches = [learner.prepare_batch(buffer) for buffer in buffers]
        self.priority = torch.zeros(0)
        self.term_names: list[str] = []
        self.term_sums = torch.zeros(0)
        self.update_count = 0
        if mixture.agent.device.type == self.device.type:
            self.prepare_first_batch = make_graphed(partial(self._prepare_batch, 0), self.device)
            # On a CPU each update is checked for numbers that are not finite.
            self.updates_per_graph = UPDATES_PER_GRAPH if self.device.type == "cuda" else 1
            self.graphed_updates = {
                (buffer, count, has_next): make_graphed(
                    partial(self._update_repeatedly, buffer, count, has_next), self.device
                )
                for buffer, count in ((0, 1), (1, 1), (0, UPDATES_PER_GRAPH))
                for has_next in (False, True)
            }
            self.run_updates = self._run_with_device_replay
        else:
            self.graphed_update = make_graphed(self._update_from_host_batch, self.device)
            self.host_batch = mixture.empty_batch()
            self.run_updates = self._run_with_host_replay

    def run(self, count: int) -> None:
        """Run `count` updates, one after the other."""
        if count:
            self.run_updates(count)
            self.update_count += count

    def _run_with_device_replay(self, count: int) -> None:
        buffer, is_prepared = 0, False
        while count:
            if not is_prepared:
                self.prepare_first_batch()
                buffer = 0
            same_target = min(count, self.learner.updates_until_target_copy)
            is_full_graph = buffer == 0 and same_target >= self.updates_per_graph
            updates = self.updates_per_graph if is_full_graph else 1
            is_prepared = same_target > updates
            self.graphed_updates[buffer, updates, is_prepared]()
            for _ in range(updates):
                self.learner.finish_update()
            count, buffer = count - updates, (buffer + updates) % 2

    def _prepare_batch(self, buffer: int) -> None:
        self.mixture.sample(self.prepared_batches[buffer].batch)
        self.learner.prepare_into(self.prepared_batches[buffer])

    def _update_repeatedly(self, buffer: int, count: int, has_next: bool) -> None:
        """`count` updates; with `has_next` the last one also prepares the next batch."""
        for i in range(count):
            self._update_once((buffer + i) % 2, has_next or i < count - 1)

    def _update_once(self, buffer: int, has_next: bool) -> None:
        """Learn from one buffer and, with `has_next`, prepare the other."""
        prepared = self.prepared_batches[buffer]

        def on_priority(priority: Tensor) -> None:
            self.mixture.update_priorities(prepared.batch.item, priority)
            if has_next:
                self._prepare_batch(1 - buffer)

        self.learner.update(prepared, on_priority, self._accumulate_terms)

    def _run_with_host_replay(self, count: int) -> None:
        for _ in range(count):
            self.mixture.sample(self.host_batch)
            for own, new in zip(self.prepared_batches[0].batch, self.host_batch, strict=True):
                own.copy_(new)
            self.graphed_update()
            self.mixture.update_priorities(
                self.host_batch.item, self.priority.to(self.host_batch.item.device)
            )
            self.learner.finish_update()

    def _update_from_host_batch(self) -> None:
        self.learner.prepare_into(self.prepared_batches[0])
        self.priority = self.learner.update(
            self.prepared_batches[0], on_metrics=self._accumulate_terms
        ).priority

    def _accumulate_terms(self, terms: UpdateMetrics) -> None:
        if not self.term_names:
            self.term_names = list(terms)
            self.term_sums = torch.zeros(len(terms), device=self.device)
        self.term_sums += torch.stack(list(terms.values()))

    def compute_mean_terms(self) -> dict[str, float]:
        """The means of all metrics reported since the last call."""
        if not self.update_count:
            return {}
        sums = torch.cat([self.term_sums, self.learner.gradient_norm_sum.view(1)])
        means = (sums / self.update_count).tolist()
        self.term_sums.zero_()
        self.learner.gradient_norm_sum.zero_()
        self.update_count = 0
        return dict(zip([*self.term_names, "gradient_norm"], means, strict=True))
