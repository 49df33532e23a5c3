"""Ranges of lanes that are leased to actors, and their random streams."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

from torch import Tensor

from lookfurther.training.build import RANDOM_STREAMS


def split_lanes(lanes: int, ranges: int) -> list[range]:
    """Consecutive ranges of lanes; the sizes differ by at most one, larger ones first."""
    sizes = [len(range(index, lanes, ranges)) for index in range(ranges)]
    return [range(*ends) for ends in pairwise(accumulate(sizes, initial=0))]


def select_epsilons(epsilons: Tensor, index: int, ranges: int) -> Tensor:
    """Every `ranges`-th epsilon of a schedule, from `index` on.

    Each range has low and high epsilons, so a lost node does not remove one end of the schedule.
    """
    return epsilons[index::ranges]


def select_stream(index: int, incarnation: int) -> Any:
    """The random stream of the environments of a range.

    The first two ranges of a run use the streams of a local run's two groups. An actor that
    replaces another has a stream of its own, and so plays other episodes.
    """
    local_streams = RANDOM_STREAMS["train"]
    if incarnation == 0 and index < len(local_streams):
        return local_streams[index]
    return (RANDOM_STREAMS["cluster"], index, incarnation)
