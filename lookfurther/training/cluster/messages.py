"""What travels between a run and its actors: chunks of experience and weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import lz4.block
import numpy as np
import torch
from torch import Tensor

from lookfurther.types import Chunk, Spec, Step

STEP_FLAGS = ("terminal", "truncated", "first", "dropped")  # bits of `PlayedChunk.step_flags`


class PlayRequest(NamedTuple):
    """One call of an actor."""

    steps: int  # of each lane, at most
    weights_version: int
    weights_time: float  # when they were published, on the clock of the run
    is_compressed: bool  # compress the planes: the run is on another node
    common_epsilon: float | None = None  # of all lanes, if they do not have their own


class PlayedChunk(NamedTuple):
    """k steps of the m lanes of an actor."""

    incarnation: int  # how many actors had these lanes before
    sequence: int  # of this actor's chunks, from 0
    weights_time: float  # of the request
    planes: Any  # [k, m, *spec.plane], or its bytes compressed by lz4
    action: np.ndarray  # [k, m], as all fields up to `priority`
    reward: np.ndarray  # transformed, as the replay stores it
    mark: np.ndarray
    priority: np.ndarray  # [k, m, H]
    invalidate_newest: np.ndarray  # [m], counted from the last of the k steps
    raw_reward: np.ndarray  # [k, m], for statistics
    step_flags: np.ndarray  # [k, m] uint8
    is_finite: bool
    replacements: tuple[str, ...]  # worker processes of the actor that were lost


def stack_chunks(chunks: Sequence[Chunk]) -> dict[str, np.ndarray]:
    """The fields of consecutive chunks of one step as [k, m, ...]; only the last one drops."""
    names = ("plane", "action", "reward", "mark", "priority")
    stacked = {
        name: np.concatenate([np.asarray(getattr(c, name)) for c in chunks]) for name in names
    }
    return stacked | {"invalidate_newest": chunks[-1].invalidate_newest}


def pack_flags(steps: Sequence[Step]) -> np.ndarray:
    """[k, m] uint8: one bit for each of STEP_FLAGS."""
    flags = np.array([[getattr(step, name) for name in STEP_FLAGS] for step in steps])
    return np.packbits(flags, axis=1, bitorder="little")[:, 0]


def unpack_steps(played: PlayedChunk) -> list[Step]:
    """The k Steps of a chunk without their observations."""
    flags = np.unpackbits(played.step_flags[:, None], axis=1, bitorder="little").astype(bool)
    no_observation = np.zeros(0)
    return [
        Step(no_observation, reward, *bits[: len(STEP_FLAGS)])
        for reward, bits in zip(played.raw_reward, flags, strict=True)
    ]


def compress_planes(planes: np.ndarray) -> bytes:
    """Planes as bytes that are several times smaller for frames of games."""
    return lz4.block.compress(np.ascontiguousarray(planes), store_size=False)


def unpack_chunk(played: PlayedChunk, spec: Spec) -> Chunk:
    """The Chunk for the replay, in memory of its own: what Ray returns cannot be written to."""
    k, m = played.action.shape
    planes = played.planes
    if isinstance(planes, bytes):
        size = k * m * int(np.prod(spec.plane)) * np.dtype(spec.dtype).itemsize
        raw = lz4.block.decompress(planes, uncompressed_size=size, return_bytearray=True)
        planes = np.frombuffer(raw, spec.dtype).reshape(k, m, *spec.plane)
    else:
        planes = np.array(planes)
    names = ("action", "reward", "mark", "priority", "invalidate_newest")
    return Chunk(plane=planes, **{name: np.array(getattr(played, name)) for name in names})


def pack_weights(state: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, np.ndarray]:
    """Weights as arrays that Ray sends without copies; NumPy has bfloat16 only as bits."""
    packed = {}
    for name, tensor in state.items():
        if tensor.is_floating_point() and dtype == torch.bfloat16:
            packed[name] = tensor.detach().to(dtype).cpu().view(torch.uint16).numpy()
        else:
            packed[name] = tensor.detach().cpu().numpy().copy()
    return packed


def unpack_weights(packed: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """The inverse of `pack_weights`, in float32."""
    state = {}
    for name, array in packed.items():
        tensor = torch.from_numpy(np.array(array))
        state[name] = tensor.view(torch.bfloat16).float() if array.dtype == np.uint16 else tensor
    return state
