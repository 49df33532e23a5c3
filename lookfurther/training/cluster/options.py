"""How a run uses a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LOCAL_ADDRESS = "local"


@dataclass(frozen=True)
class ClusterOptions:
    """The address of a cluster, and how actors there are asked for experience."""

    address: str = LOCAL_ADDRESS
    """local starts Ray on this machine; otherwise auto, or HOST:PORT of the head node"""
    actors: int = 0
    """ranges of lanes, each an actor with one core; 0: one for each core but one"""
    steps_per_chunk: int = 512
    """environment steps of all lanes of an actor in one chunk"""
    calls_per_actor: int = 2
    """chunks that an actor may work on or keep ready; this bounds the memory"""
    weights_dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """of the weights that are sent to actors"""
    weights_seconds: float = 1.0
    """least seconds between two sets of weights"""
    placement_seconds: float = 600.0
    """stop the run if no actor had a core for so long"""
    asks_in_turn: bool = False
    """collect chunks from all actors in a fixed order instead of as they are ready"""


def make_reproducible_options(address: str, actors: int) -> ClusterOptions:
    """Options whose runs repeat, and equal local runs bit for bit: slow, for tests."""
    return ClusterOptions(
        address=address,
        actors=actors,
        steps_per_chunk=1,
        calls_per_actor=1,
        weights_dtype="float32",
        weights_seconds=0.0,
        asks_in_turn=True,
    )
