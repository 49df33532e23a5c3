"""Checkpoints are complete or absent after kills, full disks, damaged files and signals."""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from lookfurther.errors import CheckpointError
from lookfurther.system import files
from lookfurther.training import checkpoint, checkpoint_manifest, serialization
from lookfurther.training.checkpoint import (
    load,
    load_best,
    load_newest,
    save,
    save_and_remove_others,
)
from lookfurther.training.checkpoint_manifest import verify_hashes
from lookfurther.training.signals import StopSignals

ROOT = Path(__file__).parents[1]

Files = dict[str, dict[str, Tensor]]


def build_files(step: int, size: int = 500) -> Files:
    """Two parts whose content depends on the step."""
    return {
        "learner": {"w": torch.full((size // 4,), float(step)), "b": torch.tensor(step)},
        "agent_replay": {"plane": torch.full((size,), step % 256, dtype=torch.uint8)},
    }


def save_step(folder: Path, step: int, keep: int = 2, size: int = 500) -> Path:
    return save(folder, step, build_files(step, size), {"step": step}, keep)


def list_steps(folder: Path) -> list[int]:
    """The saved steps; anything else in the folder must be hidden."""
    return sorted(int(p.name.removeprefix("step_")) for p in folder.glob("[!.]*"))


def list_leftovers(folder: Path) -> list[str]:
    """The names of temporary folders, without process ids."""
    return sorted(re.sub(r"\.\d+$", "", p.name) for p in folder.glob(".*"))


def is_checkpoint_of(saved: checkpoint.Checkpoint | None, step: int) -> bool:
    """Whether a checkpoint has exactly the tensors of `build_files(step)`."""
    assert saved is not None
    expected = build_files(step)
    assert saved.files.keys() == expected.keys()
    for part, tensors in expected.items():
        assert saved.files[part].keys() == tensors.keys()
        assert all(torch.equal(saved.files[part][k], v) for k, v in tensors.items())
    return saved.metadata == {"step": step}


def run_in_subprocess(
    function: Callable[..., None], *arguments: Any
) -> subprocess.CompletedProcess[str]:
    """Run a function of this file in another process."""
    call = f"from {__name__} import {function.__name__} as f; f(*{arguments!r})"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", call], cwd=ROOT, env=environment, capture_output=True, text=True
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


# Damaged and forged files


def flip_bit(path: Path, bit: int) -> None:
    with path.open("r+b") as file:
        byte = os.pread(file.fileno(), 1, bit // 8)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 1 << bit % 8]), bit // 8)


def edit_manifest(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Edit a manifest and update its hash, as an attacker would."""
    manifest = json.loads((path / "manifest.json").read_text().partition("\n")[2])
    edit(manifest)
    body = json.dumps(manifest)
    (path / "manifest.json").write_text(hashlib.sha256(body.encode()).hexdigest() + "\n" + body)


@pytest.mark.parametrize("name", ["agent_replay.safetensors", "facts.json", "manifest.json"])
@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.999])
def test_truncated_file_falls_back_to_previous_checkpoint(
    tmp_path: Path, name: str, share: float
) -> None:
    save_step(tmp_path, 1)
    file = save_step(tmp_path, 2) / name
    full_size = file.stat().st_size
    size = int(share * full_size)
    os.truncate(file, size)
    saved, reasons = load_newest(tmp_path)
    assert is_checkpoint_of(saved, 1)
    fault = "cut or altered" if name == "manifest.json" else f"cut: {size} of {full_size} bytes"
    assert [fault in r and name in r and "step_000000000002" in r for r in reasons] == [True]
    shutil.rmtree(tmp_path / "step_000000000001")
    with pytest.raises(CheckpointError, match=f"no sound checkpoint.*{name}"):
        load_newest(tmp_path)


def test_flipped_bit_is_detected(tmp_path: Path) -> None:
    path, rng = save_step(tmp_path, 1), random.Random(0)
    for _ in range(200):
        file = rng.choice(sorted(path.iterdir()))
        bit = rng.randrange(8 * file.stat().st_size)
        flip_bit(file, bit)
        for read in (verify_hashes, load):
            with pytest.raises(CheckpointError, match=rf"{file.name} is .*altered \(SHA-256\)"):
                read(path)
        flip_bit(file, bit)
    assert is_checkpoint_of(load(path), 1)


def test_flipped_manifest_bit_is_detected(tmp_path: Path) -> None:
    path = save_step(tmp_path, 1)
    for bit in range(8 * (path / "manifest.json").stat().st_size):
        flip_bit(path / "manifest.json", bit)
        with pytest.raises(CheckpointError, match=r"manifest\.json"):
            verify_hashes(path)
        flip_bit(path / "manifest.json", bit)


def test_missing_or_extra_file_is_refused(tmp_path: Path) -> None:
    path = save_step(tmp_path, 1)
    (path / "extra").touch()
    with pytest.raises(CheckpointError, match="extra does not belong"):
        load(path)
    (path / "extra").unlink()
    with (path / "learner.safetensors").open("ab") as file:
        file.write(b"x")
    with pytest.raises(CheckpointError, match=r"learner\.safetensors is too long: "):
        load(path)
    for name in ("learner.safetensors", "manifest.json"):
        (path / name).unlink()
        with pytest.raises(CheckpointError, match=f"{name} is missing"):
            load(path)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda p: os.symlink("/dev/zero", p)])
def test_special_files_are_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = save_step(tmp_path, 1)
    for name in ("learner.safetensors", "manifest.json"):
        (path / name).unlink()
        make(path / name)
        with pytest.raises(CheckpointError, match=f"{name} is not a plain file"):
            load(path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: m.update(format=3), "its format is 3, this version reads 2"),
        (lambda m: m.pop("format"), "is not a manifest"),
        (lambda m: m["files"].pop("facts.json"), "is not a manifest"),
        (lambda m: m.update(files=[]), "is not a manifest"),
        (
            lambda m: m["files"].update({"../x.safetensors": {"size": 0, "sha256": ""}}),
            "invalid.*x",
        ),
        (lambda m: m["files"].update({"/x.safetensors": {"size": 0, "sha256": ""}}), "invalid.*x"),
        (lambda m: m["files"].update({"x.pickle": {"size": 0, "sha256": ""}}), "invalid.*pickle"),
        (lambda m: m["files"]["facts.json"].update(size="1"), "invalid.*facts"),
        (lambda m: m["files"].update({"facts.json": None}), "invalid.*facts"),
        (lambda m: m["files"].update({"y.safetensors": {"size": 0, "sha256": ""}}), "y.*missing"),
    ],
)
def test_forged_manifest_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], reason: str
) -> None:
    path = save_step(tmp_path, 1)
    edit_manifest(path, change)
    with pytest.raises(CheckpointError, match=reason):
        load(path)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_step(tmp_path_factory.mktemp("sample"), 1)


def replace_file(path: Path, name: str, content: bytes) -> None:
    """Replace a file and update its hash."""
    (path / name).write_bytes(content)
    entry = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    edit_manifest(path, lambda manifest: manifest["files"].update({name: entry}))


@st.composite
def mangled_bytes(draw: st.DrawFn, source: bytes) -> bytes:
    """A file with some bytes replaced by others: from one byte to all of them."""
    start, end = sorted(draw(st.tuples(*[st.integers(0, len(source))] * 2)))
    return source[:start] + draw(st.binary(max_size=40)) + source[end:]


@settings(max_examples=300, deadline=None)
@given(st.data(), st.sampled_from(["learner.safetensors", "facts.json", "manifest.json"]))
def test_fuzzed_file_raises_only_checkpoint_error(
    sample: Path, data: st.DataObject, name: str
) -> None:
    original = (sample / name).read_bytes()
    content = data.draw(mangled_bytes(original))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(shutil.copytree(sample, Path(folder) / sample.name))
        (path / name).write_bytes(content)
        if content != original:
            with pytest.raises(CheckpointError, match=name):
                load(path)
        if name != "manifest.json":
            replace_file(path, name, content)
            with suppress(CheckpointError):
                load(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("facts.json", b"[" * 100_000),
        ("facts.json", b"\xff"),
        ("facts.json", b"[]"),
        ("facts.json", b"1" * 10_000),
        ("learner.safetensors", b""),
        ("learner.safetensors", b"\x80\x04}."),
        ("learner.safetensors", (2**62).to_bytes(8, "little") + b"{}"),
    ],
)
def test_hostile_file_with_valid_hash_is_refused(
    sample: Path, tmp_path: Path, name: str, content: bytes
) -> None:
    path = Path(shutil.copytree(sample, tmp_path / "copy"))
    replace_file(path, name, content)
    with pytest.raises(CheckpointError, match="copy"):
        load(path)


# Kills while saving


# The modules that a save executes.
SAVING_MODULES = {module.__file__ for module in (checkpoint, checkpoint_manifest, files)}


def act_at_line(number: int, act: Callable[[], None]) -> None:
    """Act before the number-th line that the modules of checkpoints execute from now on."""
    count = iter(range(1, sys.maxsize))

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in SAVING_MODULES:
            return None
        if event == "line" and next(count) == number:
            act()
        return trace

    sys.settrace(trace)


def save_until_killed(folder: Path, step: int) -> None:
    while True:
        save_step(folder, step := step + 1, size=20_000)


def kill_at_random_times(root: str, kills: int) -> None:
    """Kill a process in its save loop repeatedly; print (newest step, interrupted saves)."""
    folder, rng, reached, interrupted = Path(root), random.Random(5), 0, 0
    for _ in range(kills):
        line = rng.randrange(1_000)  # a save takes about 300
        if (child := os.fork()) == 0:
            act_at_line(line + 1, lambda: os.kill(os.getpid(), signal.SIGKILL))
            save_until_killed(folder, reached)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        interrupted += bool(list_leftovers(folder))
        for path in folder.glob("step_*"):
            verify_hashes(path)
        saved, reasons = load_newest(folder)
        step = saved.metadata["step"] if saved else 0
        assert step >= reached
        assert not reasons
        reached = step
    print(reached, interrupted)


def test_random_kills_leave_checkpoints_valid(tmp_path: Path) -> None:
    """The kills are at random lines of the first few saves of a process."""
    answer = run_in_subprocess(kill_at_random_times, str(tmp_path), 25)
    assert answer.returncode == 0, answer.stderr
    reached, interrupted = map(int, answer.stdout.split())
    assert reached > 0
    assert interrupted > 0


def act_at_call(number: int, act: Callable[[], None]) -> None:
    """Act before (odd) or after (even) the (number / 2)-th call that changes the disk."""
    count = iter(range(1, sys.maxsize))

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if next(count) == number:
                act()
            answer = function(*arguments, **options)
            if next(count) == number:
                act()
            return answer

        return call

    for name in ("mkdir", "fsync", "replace", "rename", "unlink", "rmdir"):
        setattr(os, name, watched(getattr(os, name)))


def save_and_act_at_call(root: str, number: int) -> None:
    """Save once per stage with a signal at that stage; each folder stays as it was left."""
    before = Path(root) / "before"
    save_step(before, 1)
    save_step(before, 2)
    for call in range(1, sys.maxsize):
        folder = Path(shutil.copytree(before, Path(root) / f"{call:03d}"))
        if (child := os.fork()) == 0:
            with StopSignals() as signals:
                act_at_call(call, lambda: os.kill(os.getpid(), number))
                save_step(folder, 3)
            os._exit(20 if signals.received_signal is None else 10)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(code)
        if code == 20:
            return


def test_kill_at_any_stage_leaves_checkpoints_valid(tmp_path: Path) -> None:
    answer = run_in_subprocess(save_and_act_at_call, str(tmp_path), int(signal.SIGKILL))
    assert answer.returncode == 0, answer.stderr
    assert set(answer.stdout.split()[:-1]) == {"-9"}
    found = []
    for folder in sorted(tmp_path.glob("[0-9]*")):
        found.append((list_steps(folder), list_leftovers(folder)))
        saved, reasons = load_newest(folder)
        assert is_checkpoint_of(saved, max(list_steps(folder)))
        assert not reasons
        for path in folder.glob("step_*"):
            assert is_checkpoint_of(load(path), int(path.name[-1]))
        save_step(folder, 4)
        assert list_steps(folder) == [found[-1][0][-1], 4]
        assert list_leftovers(folder) == []
    stages = [stage for i, stage in enumerate(found) if i == 0 or stage != found[i - 1]]
    assert stages == [
        ([1, 2], []),
        ([1, 2], [".writing-step_000000000003"]),
        ([1, 2, 3], []),
        ([2, 3], [".removing-step_000000000001"]),
        ([2, 3], []),
    ]


# The best checkpoint


def save_best(folder: Path, step: int, score: float) -> Path:
    return save_and_remove_others(folder, step, build_files(int(score)), {"score": score})


def load_best_score(folder: Path) -> float:
    """The score of the best checkpoint, whose content must belong to the score."""
    saved, _ = load_best(folder)
    assert saved is not None
    assert saved.files["learner"]["b"] == int(saved.metadata["score"])
    return saved.metadata["score"]


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


def save_best_and_kill_at_calls(root: str) -> None:
    """Save over the same step once per stage, killed at that stage, each in its own folder."""
    for call in range(1, sys.maxsize):
        folder = Path(root) / f"{call:03d}"
        save_best(folder, 7, 1.0)
        if (child := os.fork()) == 0:
            act_at_call(call, lambda: os.kill(os.getpid(), signal.SIGKILL))
            save_best(folder, 7, 2.0)
            os._exit(20)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 20:
            return


def test_kill_during_best_save_leaves_old_or_new(tmp_path: Path) -> None:
    answer = run_in_subprocess(save_best_and_kill_at_calls, str(tmp_path))
    assert answer.returncode == 0, answer.stderr
    scores = [load_best_score(folder) for folder in sorted(tmp_path.iterdir())]
    assert scores == sorted(scores)
    assert set(scores) == {1.0, 2.0}


# Full disks


def save_on_full_disk(root: str) -> None:
    """Save with a limit on file sizes, which a write exceeds in the middle of a file."""
    folder, (_, hard) = Path(root), resource.getrlimit(resource.RLIMIT_FSIZE)
    save_step(folder, 1)
    for limit in (0, 300, 3_000, 90_000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        with pytest.raises(
            CheckpointError, match=r"step_000000000002 could not be saved: .*too large"
        ):
            save_step(folder, 2, size=100_000)
        assert list_steps(folder) == [1]
        assert list_leftovers(folder) == []
        assert is_checkpoint_of(load_newest(folder)[0], 1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    save_step(folder, 2)
    assert list_steps(folder) == [1, 2]
    assert is_checkpoint_of(load_newest(folder)[0], 2)


def test_full_disk_loses_only_new_checkpoint(tmp_path: Path) -> None:
    answer = run_in_subprocess(save_on_full_disk, str(tmp_path))
    assert answer.returncode == 0, answer.stderr


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], None]:
    """Make the n-th call of a function of `os` fail."""

    def arrange(name: str, number: int) -> None:
        function, count = getattr(os, name), iter(range(1, sys.maxsize))

        def call(*arguments: Any, **options: Any) -> Any:
            if next(count) == number:
                raise OSError(28, "No space left on device")
            return function(*arguments, **options)

        monkeypatch.setattr(os, name, call)

    return arrange


@pytest.mark.parametrize(
    ("name", "number", "saved_steps"),
    [
        *[("fsync", n, [1, 2]) for n in range(1, 6)],  # four files and their folder
        ("fsync", 6, [1, 2, 3]),  # the parent
        ("mkdir", 3, [1, 2]),
        ("replace", 1, [1, 2]),
        ("rename", 1, [1, 2, 3]),  # the removal of an old one
    ],
)
def test_failed_system_call_leaves_no_temporary_files(
    tmp_path: Path,
    refusing: Callable[[str, int], None],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    number: int,
    saved_steps: list[int],
) -> None:
    save_step(tmp_path, 1)
    save_step(tmp_path, 2)
    refusing(name, number)
    with pytest.raises(CheckpointError, match="No space left on device"):
        save_step(tmp_path, 3)
    monkeypatch.undo()
    assert list_steps(tmp_path) == saved_steps
    assert list_leftovers(tmp_path) == []
    assert is_checkpoint_of(load_newest(tmp_path)[0], saved_steps[-1])
    save_step(tmp_path, 4)
    assert is_checkpoint_of(load_newest(tmp_path)[0], 4)


# Signals


def test_save_completes_after_sigint_at_any_stage(tmp_path: Path) -> None:
    answer = run_in_subprocess(save_and_act_at_call, str(tmp_path), int(signal.SIGINT))
    assert answer.returncode == 0, answer.stderr
    assert set(answer.stdout.split()[:-1]) == {"10"}
    for folder in tmp_path.glob("[0-9]*"):
        assert list_steps(folder) == [2, 3]
        assert list_leftovers(folder) == []
        assert is_checkpoint_of(load_newest(folder)[0], 3)


def receive_two_signals() -> None:
    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received_signal == "SIGTERM"
        os.kill(os.getpid(), signal.SIGINT)


def test_second_signal_exits_immediately() -> None:
    if (child := os.fork()) == 0:
        try:
            receive_two_signals()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 128 + signal.SIGINT


def test_stop_signals_restore_previous_handlers() -> None:
    numbers = (signal.SIGTERM, signal.SIGINT)
    previous = [signal.getsignal(n) for n in numbers]
    with suppress(ZeroDivisionError), StopSignals() as signals:
        assert signals.received_signal is None
        signal.raise_signal(signal.SIGTERM)
        assert signals.received_signal == "SIGTERM"
        raise ZeroDivisionError
    assert [signal.getsignal(n) for n in numbers] == previous


def test_stop_signals_in_thread_keep_handlers() -> None:
    previous, seen = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with StopSignals() as signals:
            seen.append((signals.received_signal, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(None, previous)]
