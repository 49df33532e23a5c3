"""Checkpoints read back as they were saved, and the newest ones are kept."""

from __future__ import annotations

import json
import math
import os
import resource
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from lookfurther.errors import CheckpointError
from lookfurther.training.checkpoints import serialization
from lookfurther.training.checkpoints.checkpoint import load, load_best, load_newest, save
from tests.saved_checkpoints import (
    Files,
    build_files,
    flip_bit,
    is_checkpoint_of,
    list_steps,
    load_best_score,
    run_in_subprocess,
    save_best,
    save_step,
)

# Round trip

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Any dtype, any shape (also scalar and empty), any bytes, sometimes not contiguous."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    values, size = 2 if dtype is torch.bool else 256, math.prod(shape) * dtype.itemsize
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    noise = torch.randint(values, (size,), dtype=torch.uint8, generator=generator)
    tensor = noise.view(dtype).reshape(shape)
    return tensor.transpose(0, -1) if shape and draw(st.booleans()) else tensor


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equality that also holds for NaN."""
    bits = [t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*bits)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.from_regex(r"[a-z0-9_]{1,8}", fullmatch=True),
        st.dictionaries(st.text(min_size=1, max_size=5), tensors(), max_size=4),
        max_size=3,
    )
)
def test_save_load_round_trip(files: Files) -> None:
    metadata = {"step": 7, "nested": {"list": [1, 2.5, None, "ü"]}}
    with tempfile.TemporaryDirectory() as folder:
        path = save(Path(folder), 7, files, metadata, 1)
        saved = load(path)
        assert path.name == "step_000000000007"
        assert saved.path == path
        assert saved.metadata == metadata
        assert saved.files.keys() == files.keys()
        for part, expected in files.items():
            assert saved.files[part].keys() == expected.keys()
            for name, tensor in expected.items():
                assert same_bits(saved.files[part][name], tensor)


def test_tensor_file_is_written_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serialization, "PIECE_BYTES", 7)
    path = save_step(tmp_path, 3)
    assert is_checkpoint_of(load(path), 3)
    assert torch.equal(load_file(path / "learner.safetensors")["b"], torch.tensor(3))


def test_tensor_offsets_are_aligned(tmp_path: Path) -> None:
    """Each element starts at a multiple of its size, so that the file can be memory-mapped."""
    narrow, wide = torch.ones(3, dtype=torch.uint8), torch.ones(2, dtype=torch.float64)
    path = save(tmp_path, 1, {"rng": {"a": narrow, "b": wide, "c": narrow}}, {}, 1)
    data = (path / "rng.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    starts = {k: v["data_offsets"][0] for k, v in json.loads(data[8 : 8 + length]).items()}
    assert length % 8 == 0
    assert starts == {"b": 0, "a": 16, "c": 19}


def save_large(folder: str) -> None:
    """Print the growth of the peak memory while 256 MiB are saved, in MiB."""
    files = {"agent_replay": {"plane": torch.ones(1 << 28, dtype=torch.uint8)}}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    save(Path(folder), 1, files, {}, 1)
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)


def test_large_tensor_is_not_copied(tmp_path: Path) -> None:
    answer = run_in_subprocess(save_large, str(tmp_path))
    assert answer.returncode == 0, answer.stderr
    assert int(answer.stdout) < 32


@pytest.mark.parametrize("part", ["../learner", "a/b", "", "a.b"])
def test_part_name_with_path_is_refused(tmp_path: Path, part: str) -> None:
    with pytest.raises(ValueError, match="cannot name a file"):
        save(tmp_path / "c", 1, {part: {}}, {}, 1)
    assert os.listdir(tmp_path) == ["c"]
    assert os.listdir(tmp_path / "c") == []


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object()])
def test_metadata_must_be_json(tmp_path: Path, value: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        save(tmp_path, 1, {}, {"x": value}, 1)
    assert os.listdir(tmp_path) == []


# Which checkpoints are kept, and which one is loaded


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_save_keeps_newest_checkpoints(tmp_path: Path, keep: int) -> None:
    for step in (5, 999_999_999_999, 1_000_000_000_000, 1_000_000_000_001):
        save_step(tmp_path, step, keep)
    last = [999_999_999_999, 1_000_000_000_000, 1_000_000_000_001][-keep:]
    assert list_steps(tmp_path) == last
    assert is_checkpoint_of(load_newest(tmp_path)[0], 1_000_000_000_001)


def test_broken_checkpoint_does_not_count_as_kept(tmp_path: Path) -> None:
    save_step(tmp_path, 1)
    (save_step(tmp_path, 2) / "facts.json").write_bytes(b"")
    save_step(tmp_path, 3)
    assert list_steps(tmp_path) == [1, 2, 3]
    save_step(tmp_path, 4)
    assert list_steps(tmp_path) == [3, 4]


def test_save_before_broken_checkpoint_is_kept(tmp_path: Path) -> None:
    save_step(tmp_path, 1)
    flip_bit(save_step(tmp_path, 9) / "agent_replay.safetensors", 3000)
    save_step(tmp_path, 2, keep=1)
    save_step(tmp_path, 3, keep=1)
    saved, reasons = load_newest(tmp_path)
    assert is_checkpoint_of(saved, 3)
    assert len(reasons) == 1
    assert "step_000000000009: agent_replay.safetensors is altered (SHA-256)" in reasons[0]
    save_step(tmp_path, 9, keep=1)
    assert list_steps(tmp_path) == [9]
    assert is_checkpoint_of(load_newest(tmp_path)[0], 9)


def test_valid_step_is_not_written_again(tmp_path: Path) -> None:
    path = save_step(tmp_path, 1)
    inode = (path / "manifest.json").stat().st_ino
    assert save_step(tmp_path, 1) == path
    assert (path / "manifest.json").stat().st_ino == inode


def test_load_newest_without_checkpoints_returns_none(tmp_path: Path) -> None:
    assert load_newest(tmp_path) == (None, [])
    assert load_newest(tmp_path / "never") == (None, [])
    with pytest.raises(CheckpointError, match="never"):
        load(tmp_path / "never")


# The best checkpoint


@pytest.mark.parametrize("step", [3, 7, 9])
def test_better_checkpoint_replaces_other_at_any_step(tmp_path: Path, step: int) -> None:
    save_best(tmp_path, 7, 1.0)
    save_best(tmp_path, step, 2.0)
    assert load_best_score(tmp_path) == 2.0
    assert list_steps(tmp_path) == [step]
    save_best(tmp_path, step, 3.0)
    assert load_best_score(tmp_path) == 3.0
    assert list_steps(tmp_path) == [step]


def test_load_best_returns_highest_score(tmp_path: Path) -> None:
    for step, score in ((1, 2.0), (2, 5.0), (3, 4.0), (4, 5.0)):
        save(tmp_path, step, build_files(int(score)), {"score": score}, keep=9)
    save(tmp_path, 5, build_files(5), {"step": 5}, keep=9)  # without a score
    saved, reasons = load_best(tmp_path)
    assert saved is not None
    assert (saved.path.name, reasons) == ("step_000000000004", [])
    (saved.path / "learner.safetensors").write_bytes(b"")
    saved, reasons = load_best(tmp_path)
    assert saved is not None
    assert (saved.path.name, len(reasons)) == ("step_000000000002", 1)
