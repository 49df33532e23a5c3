"""Every reader of demonstrations and runs, given files that were cut, altered, spliced or forged.

LOOKFURTHER_FUZZ sets how many files each reader is given; the suite tries a few.
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
from hypothesis import HealthCheck, given, settings
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

pytestmark = pytest.mark.timeout(3600)  # LOOKFURTHER_FUZZ decides how much work it is
FILES = int(os.environ.get("LOOKFURTHER_FUZZ", "40"))
fuzz = settings(
    max_examples=FILES,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
some = settings(fuzz, max_examples=max(1, FILES // 8))  # where reading begins with an emulator
SPEC = Spec("ALE/Pong-v5", (1, 84, 84), 4, "uint8", 18, 255.0)


@st.composite
def harmed(draw: st.DrawFn, data: bytes) -> bytes:
    """data cut, with bytes changed, doubled, dropped or put in, or all of it made up."""
    kinds = ("cut", "bytes", "bits", "number", "splice", "text", "made up")
    kind = draw(st.sampled_from(kinds))
    changed = bytearray(data)
    if kind == "made up":
        return draw(st.binary(max_size=300))
    if kind == "cut":
        return data[: draw(st.integers(0, len(data) - 1))]
    for _ in range(draw(st.integers(1, 8))):
        place = draw(st.integers(0, max(len(changed) - 1, 0)))
        if kind == "bytes":
            changed[place : place + 1] = draw(st.binary(max_size=9))
        elif kind == "bits" and changed:
            changed[place] ^= 1 << draw(st.integers(0, 7))
        elif kind == "number":
            value = draw(st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1]))
            width = draw(st.sampled_from([4, 8]))
            changed[place : place + width] = value.to_bytes(8, "little")[:width]
        elif kind == "splice":
            other = draw(st.integers(0, len(data) - 1))
            changed[place:place] = data[other : other + draw(st.integers(0, 200))]
        elif kind == "text":
            words = [b"null", b"-1", b"1e999", b"[]", b"{}", b'"x"', b"9" * 30, b"true", b"../"]
            changed[place : place + draw(st.integers(0, 9))] = draw(st.sampled_from(words))
    return bytes(changed)


def ours_or_nothing(call: Callable[[], Any]) -> None:
    """A reader reads, or says in one line why it does not."""
    said = ""
    try:
        call()
    except LookFurtherError as error:
        said = str(error)
    assert "\n" not in said


def recorded() -> dict[str, Any]:
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
def test_recordings(folder: Path, data: st.DataObject) -> None:
    path = folder / "Pong.demo"
    whole = write_demo(path, recorded()).read_bytes()
    path.write_bytes(data.draw(harmed(whole)))
    ours_or_nothing(lambda: atari_demo.load_recording(path))


# Pieces of pickles: containers, shared things, calls of NumPy's names, sizes that are not so.
PIECES = [
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
@given(st.lists(st.sampled_from(PIECES), max_size=40), st.sampled_from([*b"]})"]))
def test_pickles_of_any_structure(folder: Path, pieces: list[bytes], last: int) -> None:
    path = folder / "Pong.demo"
    path.write_bytes(b"\x80\x03]q\0" + b"".join(pieces) + b"%c." % last)
    ours_or_nothing(lambda: atari_demo.load_recording(path))
    path.write_bytes(b"\x80\x03]q\0" + b"".join(pieces) + b".")
    ours_or_nothing(lambda: atari_demo.load_recording(path))


@fuzz
@given(st.data())
def test_action_sequences(folder: Path, data: st.DataObject) -> None:
    """The archive harmed, or one of its arrays within a sound archive; none is ever played."""
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
            packed.writestr(f"{name}.npy", data.draw(harmed(whole)) if name == chosen else whole)
    path = folder / "one.npz"
    path.write_bytes(file.getvalue() if chosen else data.draw(harmed(file.getvalue())))
    ours_or_nothing(lambda: import_demos(path))


@pytest.fixture(scope="module")
def sets(folder: Path) -> dict[str, tuple[Path, bytes]]:
    """A set of ours with a tape, and one of Minari's making: every file of both."""
    import minari
    from minari.data_collector import EpisodeBuffer

    frames = np.arange(40, dtype=np.uint8) % 18
    planes = np.random.default_rng(0).integers(0, 4, (151, 1, 84, 84)).astype(np.uint8)
    tape = InputLog(np.resize(frames, 600), np.array([[3, 4, 5]], np.int32))
    episode = Episode(planes, np.zeros(150, np.int64), np.ones(150, np.float32), True, 1, tape)
    files = {}
    path = save_episodes("fuzz/ours-v0", [episode], SPEC, "me", folder)
    env = gymnasium.make("CartPole-v1")
    seen = np.stack([env.reset(seed=1)[0], *(env.step(0)[0] for _ in range(3))])
    ends = np.zeros(3, bool)
    buffer = EpisodeBuffer(0, 1, None, seen, np.zeros(3, int), np.ones(3), ends, ends, {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(folder))
        minari.create_dataset_from_buffers("fuzz/theirs-v0", [buffer], env=env)
    for name, place in (("ours", path), ("theirs", folder / "fuzz" / "theirs-v0")):
        for file in ("metadata.json", "main_data.hdf5"):
            whole = place / "data" / file
            files[f"{name}/{file}"] = whole, whole.read_bytes()
    return files


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("file", ["metadata.json", "main_data.hdf5"])
@fuzz
@given(data=st.data())
def test_sets(sets: dict, file: str, data: st.DataObject) -> None:
    path, whole = sets[f"ours/{file}"]
    name = str(path.parents[1])
    path.write_bytes(data.draw(harmed(whole)))
    try:
        ours_or_nothing(lambda: read_description(name))
        ours_or_nothing(lambda: load_episodes(name, SPEC))
    finally:
        path.write_bytes(whole)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("file", ["metadata.json", "main_data.hdf5"])
@fuzz
@given(data=st.data())
def test_datasets(sets: dict, file: str, data: st.DataObject) -> None:
    path, whole = sets[f"theirs/{file}"]
    path.write_bytes(data.draw(harmed(whole)))
    try:
        ours_or_nothing(lambda: import_demos(path.parents[1], "CartPole-v1", force=True))
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


@pytest.mark.filterwarnings("ignore::UserWarning")
@fuzz
@given(changes=st.lists(st.tuples(st.sampled_from(FIELDS), st.sampled_from(NUMBERS)), min_size=1))
def test_numbers_of_a_dataset(sets: dict, changes: list[tuple[tuple, Any]]) -> None:
    """Any number where the metadata says how much there is of something."""
    path, whole = sets["theirs/metadata.json"]
    facts = json.loads(whole)
    for (field, *keys), value in changes:
        if not keys:
            facts[field] = value
            continue
        inner = outer = json.loads(facts[field])
        for key in keys[:-1]:
            inner = inner[key]
        if isinstance(inner, dict) or (isinstance(inner, list) and inner):
            inner[keys[-1]] = value
        facts[field] = json.dumps(outer)
    path.write_text(json.dumps(facts))
    try:
        ours_or_nothing(lambda: import_demos(path.parents[1], "CartPole-v1", force=True))
    finally:
        path.write_bytes(whole)


FORMS = [("hdf5", True), ("arrow", True), ("arrow", False), ("parquet", True), ("parquet", False)]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[Path, bytes]]:
    """Pong as Minari keeps it in each of its forms, three steps: every file of each."""
    import ale_py
    import minari
    from minari.data_collector import EpisodeBuffer

    gymnasium.register_envs(ale_py)
    root = tmp_path_factory.mktemp("kept")
    env = gymnasium.make("ALE/Pong-v5", frameskip=4, repeat_action_probability=0.0)
    seen = np.stack([env.reset(seed=1)[0], *(env.step(0)[0] for _ in range(3))])
    ends = np.zeros(3, bool)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(root))
        for form, jpeg in FORMS:
            buffer = EpisodeBuffer(0, 1, None, seen, np.zeros(3, int), np.zeros(3), ends, ends, {})
            options: dict[str, Any] = {"data_format": form, "jpeg_encoding": jpeg}
            name = f"{form}{'-jpeg' * jpeg}-v0"
            minari.create_dataset_from_buffers(name, [buffer], env=env, **options)
    return {
        folder.name: {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in root.iterdir()
        if folder.is_dir()
    }


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("form", "jpeg"), FORMS)
@some
@given(data=st.data())
def test_pictures_and_tables(kept: dict, form: str, jpeg: bool, data: st.DataObject) -> None:
    """JPEG pictures, Arrow's and Parquet's files, altered anywhere."""
    pytest.importorskip("pyarrow")
    files = kept[f"{form}{'-jpeg' * jpeg}-v0"]
    path = data.draw(st.sampled_from(sorted(files, key=str)))
    root = next(place for place in path.parents if place.name.endswith("-v0"))
    path.write_bytes(data.draw(harmed(files[path])))
    try:
        ours_or_nothing(lambda: import_demos(root, "ALE/Pong-v5", force=True))
    finally:
        path.write_bytes(files[path])


# Runs

DEEP = "[" * 100_000 + "]" * 100_000
VALUES = [None, True, -1, 0, 2**31, 2**70, 10**400, 1e308, float("nan"), "x", "", [], {}, [[1]]]
values = st.sampled_from(VALUES)


@st.composite
def altered(draw: st.DrawFn, data: Any) -> Any:
    """Plain data with one value anywhere in it replaced, dropped or added."""
    data = copy.deepcopy(data)
    place, key = data, draw(st.sampled_from([*data, "new"]))
    while isinstance(place.get(key), dict) and draw(st.integers(0, 9)):
        place = place[key]
        key = draw(st.sampled_from([*place, "new"]))
    if draw(st.booleans()) or key == "new":
        place[key] = draw(values)
    elif isinstance(place[key], list) and place[key]:
        place[key][draw(st.integers(0, len(place[key]) - 1))] = draw(values)
    else:
        del place[key]
    return data


def sound_facts() -> dict[str, Any]:
    """As they are after a passage through JSON."""
    config = forged.cartpole_config(
        environment__wrappers=("gymnasium.wrappers:FlattenObservation",)
    )
    return json.loads(json.dumps(forged.checkpoint_metadata(config)))


@fuzz
@given(data=st.data())
def test_forged_facts_of_checkpoints(folder: Path, data: st.DataObject) -> None:
    """Hashes and all else of the checkpoint are right."""
    path = forged.write_checkpoint(folder / "forged", sound_facts())
    facts = data.draw(altered(sound_facts()))
    forged.replace_metadata(path, json.dumps(facts))
    ours_or_nothing(lambda: agent.Agent.load(path))
    job = suite.SuiteJob(forged.cartpole_config(run__folder=str(folder / "forged")), "small")
    place = folder / "forged" / "checkpoints"
    place.unlink(missing_ok=True)
    place.symlink_to(path.parent)
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
def test_forged_facts_are_named(folder: Path, text: str, reason: str) -> None:
    path = forged.write_checkpoint(folder / "named", sound_facts())
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
def test_unusable_fact_is_named(folder: Path, name: str, value: Any) -> None:
    path = forged.write_checkpoint(folder / "unusable", sound_facts())
    forged.replace_metadata(path, json.dumps(sound_facts() | {name: value}))
    with pytest.raises(LookFurtherError, match=f"facts.json has an unusable {name}: "):
        agent.Agent.load(path)


@pytest.mark.parametrize("plane", [[2**30], [1, 2**15, 2**15]])
def test_huge_spec_takes_no_memory(folder: Path, plane: list[int]) -> None:
    """Its network would have 2 TB: the weights in the checkpoint show that it is not theirs."""
    path = forged.write_checkpoint(folder / "huge", sound_facts())
    spec = sound_facts()["spec"] | {"plane": plane}
    forged.replace_metadata(path, json.dumps(sound_facts() | {"spec": spec}))
    with pytest.raises(LookFurtherError, match="the weights do not fit this network: "):
        agent.Agent.load(path)


def drawn(run: runs.RunData) -> None:
    """What a report makes of a run's metrics, without drawing it."""
    group = runs.group_runs([run])
    tables.runs_table(group)
    for key in ("return_low_epsilon", "minutes", "loss_td"):
        found = compute_confidence_band(extract_curves([run], "step", key))
        assert found is None or np.isfinite(found.mean).all()
        metric_series(run.rows, key)


def shown(path: Path) -> None:
    """What every reader of a run folder makes of its metrics."""
    run = runs.load_run(path)
    if run.rows:
        drawn(run)
    metrics_at_step(path, 100)
    job = suite.SuiteJob(forged.cartpole_config(run__folder=str(path), run__minutes=5.0), "small")
    job.read_newest_row()
    assert 0 <= job.budget_used <= 1
    format_row(job)


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    """A sound run with an evaluation."""
    path = forged.write_run(folder / "run", forged.cartpole_config())
    trace = ReturnCurve.from_rewards(np.ones(3))
    played = Evaluation(
        EvaluationConditions("CartPole-v1"), np.ones(2), np.ones(2, int), {"agent": trace}
    )
    results.write_evaluation(path, played)
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
def test_files_of_runs(run: Path, file: str, data: st.DataObject) -> None:
    """Cut, altered or spliced anywhere; JSON also forged value by value, or nested without end."""
    path = run / file
    whole = path.read_bytes()
    if file.endswith("csv") or data.draw(st.booleans()):
        path.write_bytes(data.draw(harmed(whole)))
    else:
        told = json.loads(whole)
        path.write_text(data.draw(st.sampled_from([json.dumps(data.draw(altered(told))), DEEP])))
    try:
        ours_or_nothing(lambda: shown(run))
        ours_or_nothing(lambda: [e.summary() for e in results.read_evaluations(run).values()])
    finally:
        path.write_bytes(whole)


def test_rows_that_no_run_writes_are_left_out_and_others_shown(folder: Path) -> None:
    """A metrics file of lines nested 100,000 deep, of wrong types, NaN and absurd numbers."""
    path = forged.write_run(folder / "rows", forged.cartpole_config())
    lines = [DEEP, "[]", "null", '{"step": -5}', '{"step": true}', '{"step": 1e9}', '{"step": "1"}']
    odd = ["NaN", "Infinity", "1e308", "-1e308", "1" * 4000, '"x"', "[[]]", "{}", "true", "null"]
    lines += [f'{{"step": {i}, "minutes": {v}, "loss_td": {v}}}' for i, v in enumerate(odd)]
    (path / "metrics.jsonl").write_text("\n".join(lines))
    rows = metrics.read_metrics(path / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(len(odd)))
    assert {metrics.get_metric(row, "minutes") for row in rows} == {None}
    shown(path)
    (path / "metrics.jsonl").write_text("\n".join([*lines, json.dumps(forged.METRICS_ROW)]))
    shown(path)
    assert metrics_at_step(path, 100) == forged.METRICS_ROW
