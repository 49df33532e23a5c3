"""Fuzz the readers of demonstrations with truncated, altered, spliced and forged files."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lookfurther.demos.episode import Episode, InputLog
from lookfurther.demos.importers import atari_demo, import_demos
from lookfurther.demos.storage import load_episodes, read_description, save_episodes
from lookfurther.types import Spec
from tests.fuzzing import damaged, fuzz, fuzz_few, read_or_one_line_error
from tests.sample_recordings import old_emulator_state, write_demo

pytestmark = pytest.mark.timeout(3600)  # LOOKFURTHER_FUZZ decides the amount of work


SPEC = Spec("ALE/Pong-v5", (1, 84, 84), 4, "uint8", 18, 255.0)


def sample_recording() -> dict[str, Any]:
    ram = np.arange(128, dtype=np.uint8)
    return {
        "actions": [0, 1, 2] * 20,
        "rewards": [0.0] * 60,
        "signed_rewards": [np.float64(0)] * 60,
        "lives": [3] * 61,
        "checkpoints": [old_emulator_state(ram), old_emulator_state(ram)],
        "checkpoint_action_nr": [20, 40],
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@fuzz
@given(st.data())
def test_fuzzed_recordings(folder: Path, data: st.DataObject) -> None:
    path = folder / "Pong.demo"
    whole = write_demo(path, sample_recording()).read_bytes()
    path.write_bytes(data.draw(damaged(whole)))
    read_or_one_line_error(lambda: atari_demo.load_recording(path))


# Parts of pickles: containers, shared objects, calls of NumPy functions, wrong sizes.
OPCODES = [
    *(b"]", b"}", b")", b"(", b"e", b"a", b"s", b"u", b"t", b"\x85", b"\x86", b"\x87", b"R", b"b"),
    *(b"N", b"\x88", b"K\x01", b"J\xff\xff\xff\x7f", b"G\x7f\xf0\0\0\0\0\0\0", b"C\x0812345678"),
    *(b"X\x07\x00\x00\x00actions", b"X\x02\x00\x00\x00f8", b"B\xff\xff\xff\x7f"),
    *(b"%c%c" % (code, i) for code in b"qh" for i in range(3)),
    *(b"r\xff\xff\xff\x7f", b"j\0\0\0\0", b"cnumpy\ndtype\n", b"cnumpy\nndarray\n"),
    *(b"cnumpy.core.multiarray\n%b\n" % name for name in (b"_reconstruct", b"scalar")),
    b"](h\0h\0eq\0" * 40,
    b"h\0h\0\x86q\0" * 40,
]


@fuzz
@given(st.lists(st.sampled_from(OPCODES), max_size=40), st.sampled_from([*b"]})"]))
def test_pickles_of_random_opcodes(folder: Path, opcodes: list[bytes], last: int) -> None:
    path = folder / "Pong.demo"
    path.write_bytes(b"\x80\x03]q\0" + b"".join(opcodes) + b"%c." % last)
    read_or_one_line_error(lambda: atari_demo.load_recording(path))
    path.write_bytes(b"\x80\x03]q\0" + b"".join(opcodes) + b".")
    read_or_one_line_error(lambda: atari_demo.load_recording(path))


@fuzz
@given(st.data())
def test_fuzzed_action_sequences(folder: Path, data: st.DataObject) -> None:
    """Damage the archive, or one array in a sound archive. None is played."""
    arrays = {
        "rom": "no_such_game",
        "ale_actions": np.arange(18, dtype=np.uint8),
        "score": 3,
        "ram_patch": np.array([[1, 2]], np.uint8),
        "patch_frame": 4,
        "rewards": np.zeros(18, np.int32),
    }
    chosen = data.draw(st.sampled_from([*arrays, ""]))
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.save(member, array)
            whole = member.getvalue()
            packed.writestr(f"{name}.npy", data.draw(damaged(whole)) if name == chosen else whole)
    path = folder / "one.npz"
    path.write_bytes(file.getvalue() if chosen else data.draw(damaged(file.getvalue())))
    read_or_one_line_error(lambda: import_demos(path))


@pytest.fixture(scope="module")
def sets(folder: Path) -> dict[str, tuple[Path, bytes]]:
    """The files of a set with an input log, and of a dataset that Minari wrote."""
    import minari
    from minari.data_collector import EpisodeBuffer

    make_buffer: Any = EpisodeBuffer  # its annotations allow no arrays

    frames = np.arange(40, dtype=np.uint8) % 18
    planes = np.random.default_rng(0).integers(0, 4, (151, 1, 84, 84)).astype(np.uint8)
    input_log = InputLog(np.resize(frames, 600), np.array([[3, 4, 5]], np.int32))
    episode = Episode(planes, np.zeros(150, np.int64), np.ones(150, np.float32), True, 1, input_log)
    files = {}
    path = save_episodes("fuzz/ours-v0", [episode], SPEC, "me", folder)
    env = gymnasium.make("CartPole-v1")
    observations = np.stack([env.reset(seed=1)[0], *(env.step(0)[0] for _ in range(3))])
    ends = np.zeros(3, bool)
    buffer = make_buffer(0, 1, None, observations, np.zeros(3, int), np.ones(3), ends, ends, {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(folder))
        minari.create_dataset_from_buffers("fuzz/theirs-v0", [buffer], env=env)
    for name, data_root in (("ours", path), ("theirs", folder / "fuzz" / "theirs-v0")):
        for file in ("metadata.json", "main_data.hdf5"):
            whole = data_root / "data" / file
            files[f"{name}/{file}"] = whole, whole.read_bytes()
    return files


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("file", ["metadata.json", "main_data.hdf5"])
@fuzz
@given(data=st.data())
def test_fuzzed_demo_sets(sets: dict, file: str, data: st.DataObject) -> None:
    path, whole = sets[f"ours/{file}"]
    name = str(path.parents[1])
    path.write_bytes(data.draw(damaged(whole)))
    try:
        read_or_one_line_error(lambda: read_description(name))
        read_or_one_line_error(lambda: load_episodes(name, SPEC))
    finally:
        path.write_bytes(whole)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("file", ["metadata.json", "main_data.hdf5"])
@fuzz
@given(data=st.data())
def test_fuzzed_minari_datasets(sets: dict, file: str, data: st.DataObject) -> None:
    path, whole = sets[f"theirs/{file}"]
    path.write_bytes(data.draw(damaged(whole)))
    try:
        read_or_one_line_error(lambda: import_demos(path.parents[1], "CartPole-v1", force=True))
    finally:
        path.write_bytes(whole)


NUMBERS = [0, -1, 1, 2, 2.5, 400_000_000, 2**31, 2**63, 10**400, 1e300, "9", None, [], [1], {}]
FIELDS = [
    ("env_spec", "kwargs", "frameskip"),
    ("env_spec", "kwargs", "repeat_action_probability"),
    ("env_spec", "kwargs"),
    ("env_spec", "additional_wrappers"),
    ("observation_space", "shape", 0),
    ("observation_space", "shape"),
    ("action_space", "n"),
    ("action_space", "start"),
    ("total_episodes",),
    ("jpeg_encoding",),
]


def replace_nested(container: Any, keys: list[str | int], value: Any) -> None:
    """Replace the value at `keys`, unless an earlier change has left no such place."""
    for key in keys[:-1]:
        if not has_place(container, key):
            return
        container = container[key]
    if has_place(container, keys[-1]) or isinstance(container, dict):
        container[keys[-1]] = value


def has_place(container: Any, key: str | int) -> bool:
    if isinstance(container, dict):
        return key in container
    return isinstance(container, list) and isinstance(key, int) and key < len(container)


@pytest.mark.filterwarnings("ignore::UserWarning")
@fuzz
@given(changes=st.lists(st.tuples(st.sampled_from(FIELDS), st.sampled_from(NUMBERS)), min_size=1))
@example(changes=[(("env_spec", "kwargs"), [1]), (("env_spec", "kwargs", "frameskip"), 0)])
def test_forged_sizes_in_minari_metadata(sets: dict, changes: list[tuple[tuple, Any]]) -> None:
    """Replace sizes in the metadata by any value."""
    path, whole = sets["theirs/metadata.json"]
    metadata = json.loads(whole)
    for (field, *keys), value in changes:
        if not keys:
            metadata[field] = value
            continue
        outer = json.loads(metadata[field])
        replace_nested(outer, keys, value)
        metadata[field] = json.dumps(outer)
    path.write_text(json.dumps(metadata))
    try:
        read_or_one_line_error(lambda: import_demos(path.parents[1], "CartPole-v1", force=True))
    finally:
        path.write_bytes(whole)


FORMATS = [("hdf5", True), ("arrow", True), ("arrow", False), ("parquet", True), ("parquet", False)]


@pytest.fixture(scope="module")
def minari_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[Path, bytes]]:
    """The files of a Pong dataset of three steps in each of Minari's formats."""
    import ale_py
    import minari
    from minari.data_collector import EpisodeBuffer

    make_buffer: Any = EpisodeBuffer  # its annotations allow no arrays

    gymnasium.register_envs(ale_py)
    root = tmp_path_factory.mktemp("kept")
    env = gymnasium.make("ALE/Pong-v5", frameskip=4, repeat_action_probability=0.0)
    observations = np.stack([env.reset(seed=1)[0], *(env.step(0)[0] for _ in range(3))])
    ends = np.zeros(3, bool)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(root))
        for data_format, jpeg in FORMATS:
            buffer = make_buffer(
                0, 1, None, observations, np.zeros(3, int), np.zeros(3), ends, ends, {}
            )
            options: dict[str, Any] = {"data_format": data_format, "jpeg_encoding": jpeg}
            name = f"{data_format}{'-jpeg' * jpeg}-v0"
            minari.create_dataset_from_buffers(name, [buffer], env=env, **options)
    return {
        folder.name: {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in root.iterdir()
        if folder.is_dir()
    }


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("data_format", "jpeg"), FORMATS)
@fuzz_few
@given(data=st.data())
def test_fuzzed_images_and_tables(
    minari_files: dict, data_format: str, jpeg: bool, data: st.DataObject
) -> None:
    """Damage JPEG images, Arrow files and Parquet files."""
    pytest.importorskip("pyarrow")
    files = minari_files[f"{data_format}{'-jpeg' * jpeg}-v0"]
    path = data.draw(st.sampled_from(sorted(files, key=str)))
    root = next(folder for folder in path.parents if folder.name.endswith("-v0"))
    path.write_bytes(data.draw(damaged(files[path])))
    try:
        read_or_one_line_error(lambda: import_demos(root, "ALE/Pong-v5", force=True))
    finally:
        path.write_bytes(files[path])
