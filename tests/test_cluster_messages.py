"""Ranges of lanes, and what learner and cluster actors send each other."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lookfurther.envs import get_spec
from lookfurther.exploration import initial_epsilons

pytest.importorskip("lz4", reason="needs the extra ray")
from lookfurther.training.cluster.lane_ranges import select_epsilons, select_stream, split_lanes
from lookfurther.training.cluster.messages import (
    PlayRequest,
    compress_planes,
    pack_weights,
    unpack_chunk,
    unpack_steps,
    unpack_weights,
)
from lookfurther.training.cluster.remote_actor import ActorSetup, RemoteActor
from tests.cluster_samples import OPTIONS, cluster_parts, make_cluster_loop, make_config

# Ranges of lanes


@given(lanes=st.integers(1, 300), ranges=st.integers(1, 40))
def test_ranges_cover_every_lane_once(lanes: int, ranges: int) -> None:
    ranges = min(ranges, lanes)
    split = split_lanes(lanes, ranges)
    assert [lane for part in split for lane in part] == list(range(lanes))
    assert max(map(len, split)) - min(map(len, split)) <= 1


@given(lanes=st.integers(2, 300), ranges=st.integers(1, 40))
def test_every_range_has_the_whole_epsilon_schedule(lanes: int, ranges: int) -> None:
    """Each range has one of the lowest and one of the highest `ranges` epsilons."""
    ranges = min(ranges, lanes)
    schedule = initial_epsilons("paper", lanes, 0.01)
    parts = [select_epsilons(schedule, i, ranges) for i in range(ranges)]
    assert list(map(len, parts)) == list(map(len, split_lanes(lanes, ranges)))
    assert torch.equal(torch.cat(parts).sort().values, schedule.sort().values)
    low, high = schedule.sort().values[[ranges - 1, -ranges]]
    assert all(part.min() <= low and part.max() >= high for part in parts)


def test_one_range_has_the_local_schedule() -> None:
    schedule = initial_epsilons("apex", 7, 0.01)
    assert torch.equal(select_epsilons(schedule, 0, 1), schedule)


def test_no_two_actors_share_a_random_stream() -> None:
    streams = [select_stream(i, n) for i in range(5) for n in range(5)]
    assert len(set(streams)) == len(streams)


# Messages


def test_weights_survive_the_wire() -> None:
    """bfloat16 keeps 8 bits of a float; other types are not changed."""
    state = {"w": torch.randn(5, 3), "count": torch.tensor(7)}
    exact = unpack_weights(pack_weights(state, torch.float32))
    assert torch.equal(exact["w"], state["w"])
    assert exact["count"] == 7
    rounded = unpack_weights(pack_weights(state, torch.bfloat16))
    assert torch.equal(rounded["w"], state["w"].bfloat16().float())
    assert rounded["count"] == 7


def play_once(compressed: bool, steps: int = 5, **settings: Any) -> tuple[Any, ActorSetup]:
    loop = make_cluster_loop(make_config(**settings), OPTIONS)
    source, _ = cluster_parts(loop)
    request = PlayRequest(steps, 0, 0.0, compressed)
    return RemoteActor(source.setup, 0, 0).play(request, source.weights), source.setup


def test_compressed_chunk_equals_raw_chunk() -> None:
    spec = get_spec("CartPole-v1", make_config().environment)
    chunks = [unpack_chunk(play_once(compressed)[0], spec) for compressed in (False, True)]
    for raw, compressed in zip(*chunks, strict=True):
        assert np.array_equal(raw, compressed)
        assert compressed.flags.writeable
    frames = np.zeros((8, 8, 1, 84, 84), np.uint8)
    assert len(compress_planes(frames)) < frames.nbytes / 100


def test_steps_of_chunk_keep_rewards_and_flags() -> None:
    """CartPole pays 1 for a step and 0 for a reset, which follows a terminal step."""
    played, _ = play_once(False, steps=60)
    steps = unpack_steps(played)
    assert len(steps) == 60
    assert any(step.terminal.any() for step in steps)
    for before, step in pairwise(steps):
        assert np.array_equal(step.first, before.terminal | before.truncated)
        assert np.array_equal(step.reward, np.where(step.first, 0.0, 1.0))
        assert not step.dropped.any()
