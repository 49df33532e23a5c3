"""Fuzz every reader of demonstrations and runs with truncated, altered, spliced and forged files.

LOOKFURTHER_FUZZ sets the number of files for each reader; by default it is small.
"""

from __future__ import annotations

import copy
import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lookfurther import agent
from lookfurther.cli.suite import format_row
from lookfurther.demos.episode import Episode, InputLog
from lookfurther.demos.importers import atari_demo, import_demos
from lookfurther.demos.storage import load_episodes, read_description, save_episodes
from lookfurther.errors import LookFurtherError
from lookfurther.evaluation import results, suite
from lookfurther.evaluation.results import Evaluation, EvaluationConditions, ReturnCurve
from lookfurther.report import runs, tables
from lookfurther.report.curves import compute_confidence_band, extract_curves
from lookfurther.report.learning_curve import metric_series
from lookfurther.report.model_card import metrics_at_step
from lookfurther.training import metrics
from lookfurther.types import Spec
from tests import forged
from tests.sample_recordings import old_emulator_state, write_demo

pytestmark = pytest.mark.timeout(3600)  # LOOKFURTHER_FUZZ decides the amount of work
NUM_FILES = int(os.environ.get("LOOKFURTHER_FUZZ", "40"))
fuzz = settings(
    max_examples=NUM_FILES,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
fuzz_few = settings(fuzz, max_examples=max(1, NUM_FILES // 8))  # for readers that start an emulator
SPEC = Spec("ALE/Pong-v5", (1, 84, 84), 4, "uint8", 18, 255.0)


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Data that is truncated, altered or spliced, or random data."""
    kinds = ("cut", "bytes", "bits", "number", "splice", "text", "random")
    kind = draw(st.sampled_from(kinds))
    changed = bytearray(data)
    if kind == "random":
        return draw(st.binary(max_size=300))
    if kind == "cut":
        return data[: draw(st.integers(0, len(data) - 1))]
    for _ in range(draw(st.integers(1, 8))):
        offset = draw(st.integers(0, max(len(changed) - 1, 0)))
        if kind == "bytes":
            changed[offset : offset + 1] = draw(st.binary(max_size=9))
        elif kind == "bits" and changed:
            changed[offset] ^= 1 << draw(st.integers(0, 7))
        elif kind == "number":
            value = draw(st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1]))
            width = draw(st.sampled_from([4, 8]))
            changed[offset : offset + width] = value.to_bytes(8, "little")[:width]
        elif kind == "splice":
            other = draw(st.integers(0, len(data) - 1))
            changed[offset:offset] = data[other : other + draw(st.integers(0, 200))]
        elif kind == "text":
            words = [b"null", b"-1", b"1e999", b"[]", b"{}", b'"x"', b"9" * 30, b"true", b"../"]
            changed[offset : offset + draw(st.integers(0, 9))] = draw(st.sampled_from(words))
    return bytes(changed)


def read_or_one_line_error(call: Callable[[], Any]) -> None:
    """A reader succeeds, or raises an error of this package with one line."""
    message = ""
    try:
        call()
    except LookFurtherError as error:
        message = str(error)
    assert "\n" not in message


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


# Runs

DEEP = "[" * 100_000 + "]" * 100_000
VALUES = [None, True, -1, 0, 2**31, 2**70, 10**400, 1e308, float("nan"), "x", "", [], {}, [[1]]]
values = st.sampled_from(VALUES)


@st.composite
def altered(draw: st.DrawFn, data: Any) -> Any:
    """Plain data with one value replaced, dropped or added."""
    data = copy.deepcopy(data)
    parent, key = data, draw(st.sampled_from([*data, "new"]))
    while isinstance(parent.get(key), dict) and draw(st.integers(0, 9)):
        parent = parent[key]
        key = draw(st.sampled_from([*parent, "new"]))
    if draw(st.booleans()) or key == "new":
        parent[key] = draw(values)
    elif isinstance(parent[key], list) and parent[key]:
        parent[key][draw(st.integers(0, len(parent[key]) - 1))] = draw(values)
    else:
        del parent[key]
    return data


def sound_metadata() -> dict[str, Any]:
    """Valid checkpoint metadata after a round trip through JSON."""
    config = forged.cartpole_config(
        environment__wrappers=("gymnasium.wrappers:FlattenObservation",)
    )
    return json.loads(json.dumps(forged.checkpoint_metadata(config)))


@fuzz
@given(data=st.data())
def test_forged_checkpoint_metadata(folder: Path, data: st.DataObject) -> None:
    """The hashes and all other files of the checkpoint are valid."""
    path = forged.write_checkpoint(folder / "forged", sound_metadata())
    metadata = data.draw(altered(sound_metadata()))
    forged.replace_metadata(path, json.dumps(metadata))
    read_or_one_line_error(lambda: agent.Agent.load(path))
    job = suite.SuiteJob(forged.cartpole_config(run__folder=str(folder / "forged")), "small")
    link = folder / "forged" / "checkpoints"
    link.unlink(missing_ok=True)
    link.symlink_to(path.parent)
    assert job.has_used_budget() in (True, False)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (DEEP, "cannot be read"),
        ("[]", "is not an object"),
        ("{}", "has an unusable config"),
        ('{"x": "' + "x" * 2**20 + '"}', "has more than 1,048,576 bytes"),
    ],
    ids=["deep", "list", "empty", "large"],
)
def test_invalid_checkpoint_metadata_error_gives_reason(
    folder: Path, text: str, reason: str
) -> None:
    path = forged.write_checkpoint(folder / "named", sound_metadata())
    forged.replace_metadata(path, text)
    with pytest.raises(LookFurtherError, match=reason) as caught:
        agent.Agent.load(path)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("step", -1),
        ("step", 2**70),
        ("step", True),
        ("spec", None),
        ("spec", {"env": "CartPole-v1"}),
        ("spec", Spec("CartPole-v1", (2**40,), 1, "float32", 2, 1.0)._asdict()),
        ("spec", Spec("CartPole-v1", (4,), 1, "float32", 2**40, 1.0)._asdict()),
        ("spec", Spec("CartPole-v1", (4, 1, 1, 1), 1, "float32", 2, 1.0)._asdict()),
    ],
)
def test_unusable_checkpoint_field_error_names_field(folder: Path, name: str, value: Any) -> None:
    path = forged.write_checkpoint(folder / "unusable", sound_metadata())
    forged.replace_metadata(path, json.dumps(sound_metadata() | {name: value}))
    with pytest.raises(LookFurtherError, match=f"facts.json has an unusable {name}: "):
        agent.Agent.load(path)


@pytest.mark.parametrize("plane", [[2**30], [1, 2**15, 2**15]])
def test_huge_spec_takes_no_memory(folder: Path, plane: list[int]) -> None:
    """Its network would have 2 TB; the weights in the checkpoint do not fit it."""
    path = forged.write_checkpoint(folder / "huge", sound_metadata())
    spec = sound_metadata()["spec"] | {"plane": plane}
    forged.replace_metadata(path, json.dumps(sound_metadata() | {"spec": spec}))
    with pytest.raises(LookFurtherError, match="the weights do not fit this network: "):
        agent.Agent.load(path)


def compute_report(run: runs.RunData) -> None:
    """Compute the tables and curves of a report without drawing it."""
    group = runs.group_runs([run])
    tables.runs_table(group)
    for key in ("return_low_epsilon", "minutes", "loss_td"):
        band = compute_confidence_band(extract_curves([run], "step", key))
        assert band is None or np.isfinite(band.mean).all()
        metric_series(run.rows, key)


def read_run(path: Path) -> None:
    """Read the metrics of a run folder with every reader."""
    run = runs.load_run(path)
    if run.rows:
        compute_report(run)
    metrics_at_step(path, 100)
    job = suite.SuiteJob(forged.cartpole_config(run__folder=str(path), run__minutes=5.0), "small")
    job.read_newest_row()
    assert 0 <= job.budget_used <= 1
    format_row(job)


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    """A sound run with an evaluation."""
    path = forged.write_run(folder / "run", forged.cartpole_config())
    curve = ReturnCurve.from_rewards(np.ones(3))
    evaluation = Evaluation(
        EvaluationConditions("CartPole-v1"), np.ones(2), np.ones(2, int), {"agent": curve}
    )
    results.write_evaluation(path, evaluation)
    (path / "versions.json").write_text(json.dumps({"commit": "abc"}))
    return path


RUN_FILES = [
    "config.json",
    "metrics.jsonl",
    "versions.json",
    "evaluation/noop/summary.json",
    "evaluation/noop/episodes.csv",
    "evaluation/noop/best_returns.csv",
]


@pytest.mark.parametrize("file", RUN_FILES)
@fuzz
@given(data=st.data())
def test_fuzzed_run_files(run: Path, file: str, data: st.DataObject) -> None:
    """Truncated, altered or spliced; JSON also with forged values or deep nesting."""
    path = run / file
    whole = path.read_bytes()
    if file.endswith("csv") or data.draw(st.booleans()):
        path.write_bytes(data.draw(damaged(whole)))
    else:
        content = json.loads(whole)
        path.write_text(data.draw(st.sampled_from([json.dumps(data.draw(altered(content))), DEEP])))
    try:
        read_or_one_line_error(lambda: read_run(run))
        read_or_one_line_error(
            lambda: [e.summary() for e in results.read_evaluations(run).values()]
        )
    finally:
        path.write_bytes(whole)


def test_invalid_metrics_rows_are_skipped(folder: Path) -> None:
    """A metrics file with deep nesting, wrong types, NaN and absurd numbers."""
    path = forged.write_run(folder / "rows", forged.cartpole_config())
    lines = [DEEP, "[]", "null", '{"step": -5}', '{"step": true}', '{"step": 1e9}', '{"step": "1"}']
    odd = ["NaN", "Infinity", "1e308", "-1e308", "1" * 4000, '"x"', "[[]]", "{}", "true", "null"]
    lines += [f'{{"step": {i}, "minutes": {v}, "loss_td": {v}}}' for i, v in enumerate(odd)]
    (path / "metrics.jsonl").write_text("\n".join(lines))
    rows = metrics.read_metrics(path / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(len(odd)))
    assert {metrics.get_metric(row, "minutes") for row in rows} == {None}
    read_run(path)
    (path / "metrics.jsonl").write_text("\n".join([*lines, json.dumps(forged.METRICS_ROW)]))
    read_run(path)
    assert metrics_at_step(path, 100) == forged.METRICS_ROW
