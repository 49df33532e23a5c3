"""Demonstrations: conversion to a chunk, validation, files on disk, scripted experts."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import random
import re
import shutil
import tracemalloc
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest
import torch
from gymnasium.envs.registration import EnvSpec
from hypothesis import given, settings
from hypothesis import strategies as st

from lookfurther import config
from lookfurther.config import EnvConfig
from lookfurther.demos.collect import ObservationPolicy, babyai_bot, collect_episodes
from lookfurther.demos.episode import (
    Episode,
    InputLog,
    best_episode_index,
    check_episodes,
    episodes_to_chunk,
)
from lookfurther.demos.playback import episode_from_log
from lookfurther.demos.storage import append_episodes, load_episodes, save_episodes
from lookfurther.envs import get_spec
from lookfurther.errors import DemonstrationError
from lookfurther.training.build import build_expert_replay
from lookfurther.types import BEST, END, FIRST, TERMINAL, TRUNCATED, Batch, Spec

VECTOR = Spec("toy", (2,), 1, "float32", 3, 1.0)


def episode(
    spec: Spec, steps: int, terminal: bool, number: int = 0, seed: int | None = None
) -> Episode:
    """Random numbers, except that the first value of each plane encodes episode and time."""
    rng = np.random.default_rng((number, steps))
    if spec.dtype == "uint8":
        planes = rng.integers(0, 256, (steps + 1, *spec.plane)).astype(np.uint8)
    else:
        planes = rng.standard_normal((steps + 1, *spec.plane)).astype(np.float32)
    planes.reshape(steps + 1, -1)[:, 0] = 40 * number + np.arange(steps + 1) + 1
    actions = rng.integers(0, spec.actions, steps)
    return Episode(planes, actions, rng.normal(size=steps).astype(np.float32), terminal, seed=seed)


def some_episodes(spec: Spec = VECTOR) -> list[Episode]:
    return [
        episode(spec, 3, terminal=True, number=0, seed=7),
        episode(spec, 5, terminal=False, number=1, seed=None),
        episode(spec, 1, terminal=True, number=2, seed=2**32 - 1),
    ]


def episodes_equal(a: Episode, b: Episode) -> bool:
    arrays = ((a.planes, b.planes), (a.actions, b.actions), (a.rewards, b.rewards))
    return (a.terminal, a.seed) == (b.terminal, b.seed) and all(
        x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes() for x, y in arrays
    )


# Conversion to a chunk


def test_episodes_to_chunk_matches_hand_computed_chunk() -> None:
    """Two episodes, then `max_horizon` blank slots for the last priorities."""
    first = Episode(
        np.array([[1], [2], [3]], np.float32),
        np.array([4, 5]),
        np.array([0.5, 0.25], np.float32),
        True,
    )
    second = Episode(
        np.array([[6], [7]], np.float32), np.array([8]), np.array([1], np.float32), False
    )
    chunk = episodes_to_chunk([first, second], max_horizon=3, num_horizons=2)
    assert chunk.plane[:, 0, 0].tolist() == [1, 2, 3, 6, 7, 0, 0, 0]
    assert chunk.action[:, 0].tolist() == [4, 5, 0, 8, 0, 0, 0, 0]
    assert chunk.reward[:, 0].tolist() == [0.5, 0.25, 0, 1, 0, 0, 0, 0]
    marks = [FIRST, 0, TERMINAL, FIRST | BEST, TRUNCATED | BEST, END, END, END]
    assert chunk.mark[:, 0].tolist() == marks
    released = [0, 0, 0, 1, 1, 0, 1, 0]  # for the slots three before that have an action
    assert chunk.priority[:, 0].tolist() == [[p, p] for p in released]
    assert chunk.invalidate_newest.tolist() == [0]
    all_imitated = episodes_to_chunk(
        [first, second], max_horizon=3, num_horizons=2, imitated_episodes="all"
    )
    assert (all_imitated.mark[:5, 0] & BEST == BEST).all()
    assert (all_imitated.mark[5:, 0] & BEST == 0).all()


@given(st.lists(st.lists(st.integers(-5, 5), min_size=1, max_size=4), min_size=1, max_size=5))
def test_best_episode_has_highest_undiscounted_return(rewards: list[list[int]]) -> None:
    episodes = [
        Episode(
            np.zeros((len(r) + 1, 1), np.float32),
            np.zeros(len(r), int),
            np.array(r, np.float32),
            True,
        )
        for r in rewards
    ]
    totals = [sum(r) for r in rewards]
    assert [e.score for e in episodes] == totals
    assert best_episode_index(episodes) == totals.index(max(totals))


def transition(spec: Spec, demo: Episode, t: int, n: int, gamma: float) -> tuple:
    """The n-step transition at time t of an episode, computed step by step."""
    blank = np.zeros((spec.stack - 1, *spec.plane), spec.dtype)
    planes = np.concatenate([blank, demo.planes])
    observation_at = lambda i: np.concatenate(planes[i : i + spec.stack])  # noqa: E731
    r, steps = 0.0, 0
    while steps < n and t + steps < len(demo):
        r += gamma**steps * float(demo.rewards[t + steps])
        steps += 1
    is_terminal = demo.terminal and t + steps == len(demo)
    discount = 0.0 if is_terminal else gamma**steps
    next_observation = observation_at(t + steps)
    action = int(demo.actions[t])
    return (
        observation_at(t).tobytes(),
        action,
        np.float32(r),
        np.float32(discount),
        next_observation.tobytes(),
    )


@st.composite
def episode_sets(draw: st.DrawFn) -> tuple[Spec, list[Episode]]:
    plane, dtype = draw(st.sampled_from([((2,), "float32"), ((1, 3, 2), "uint8")]))
    spec = Spec("toy", plane, draw(st.integers(1, 4)), dtype, 3, 255.0 if dtype == "uint8" else 1.0)
    shapes = draw(st.lists(st.tuples(st.integers(1, 15), st.booleans()), min_size=1, max_size=4))
    return spec, [episode(spec, steps, end, i) for i, (steps, end) in enumerate(shapes)]


def item_fields(b: Batch, i: int) -> tuple:
    """Item i of a batch in the order of `transition`, then its e."""
    x, x_next = b.x_both[:, i].numpy()
    a, r, discount, e, *_ = (column[i].numpy() for column in b[1:])
    return x.tobytes(), int(a), r[()], discount[()], x_next.tobytes(), float(e)


def expert_batches(spec: Spec, episodes: list[Episode], **overrides: Any) -> list[Batch]:
    """Batches of every item that the expert replay can sample."""
    settings = config.replace(config.Config(), **overrides)
    replay = build_expert_replay(settings, spec, episodes, torch.device("cpu"), 0)
    return list(replay.iter_items(7))


@settings(deadline=None, max_examples=30)
@given(
    episode_sets(),
    st.lists(st.integers(1, 12), min_size=1, max_size=3, unique=True),
    st.sampled_from(["best", "all"]),
)
def test_expert_replay_holds_exactly_all_transitions(
    demo: tuple[Spec, list[Episode]], horizons: list[int], imitated: str
) -> None:
    """No item crosses from one episode into another, and none is lost at an end."""
    (spec, episodes), gamma = demo, 0.75
    chosen = range(len(episodes)) if imitated == "all" else [best_episode_index(episodes)]
    wanted = Counter(
        (*transition(spec, e, t, n, gamma), float(i in chosen))
        for i, e in enumerate(episodes)
        for t in range(len(e))
        for n in horizons
    )
    found = Counter(
        item_fields(b, i)
        for b in expert_batches(
            spec,
            episodes,
            replay__horizons=tuple(horizons),
            learner__gamma=gamma,
            learner__imitated_episodes=imitated,
        )
        for i in range(len(b.a))
    )
    assert found == wanted


def test_demonstrated_rewards_are_clipped_like_own_rewards() -> None:
    """They are clipped before they are summed; the stored episode stays raw."""
    demo = dataclasses.replace(
        episode(VECTOR, 3, True), rewards=np.array([5, -0.5, -7], np.float32)
    )
    settings = {"replay__horizons": (3,), "learner__gamma": 1.0}
    (batch,) = expert_batches(VECTOR, [demo], environment__reward_transform="clip", **settings)
    assert batch.r.tolist() == [-0.5, -1.5, -1.0]
    assert demo.rewards.tolist() == [5, -0.5, -7]


# Validation


def with_broken_field(field: str, value: Any) -> list[Episode]:
    """Three episodes, of which the second has another value in a field."""
    one, two, three = some_episodes()
    return [one, dataclasses.replace(two, **{field: value}), three]


def with_value(array: np.ndarray, value: Any) -> np.ndarray:
    array = array.copy()
    array.flat[-1] = value
    return array


GOOD = some_episodes()[1]


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("actions", np.zeros(0, np.int64), "no steps"),
        ("planes", np.zeros((6, 3), np.float32), r"planes \(3,\), but toy shows \(2,\)"),
        ("planes", GOOD.planes.astype(np.float64), "planes of type float64, not float32"),
        ("planes", GOOD.planes[:-1], "5 planes for 5 actions"),
        ("rewards", GOOD.rewards[:-1], "4 rewards for 5 actions"),
        ("rewards", with_value(GOOD.rewards, np.nan), "a reward that is not finite"),
        ("rewards", with_value(GOOD.rewards, np.inf), "a reward that is not finite"),
        ("planes", with_value(GOOD.planes, -np.inf), "a plane value that is not finite"),
        ("actions", with_value(GOOD.actions, 3), r"an action outside 0 \.\.\. 2"),
        ("actions", with_value(GOOD.actions, -1), r"an action outside 0 \.\.\. 2"),
        ("actions", GOOD.actions.reshape(-1, 1), r"actions of shape \(5, 1\)"),
        ("rewards", GOOD.rewards.reshape(-1, 1), r"rewards of shape \(5, 1\)"),
    ],
)
def test_invalid_episode_error_names_fault(
    tmp_path: Path, field: str, value: Any, expected: str
) -> None:
    check_episodes(some_episodes(), VECTOR, "good")
    with pytest.raises(DemonstrationError, match=f"^mine-v0, episode 1: {expected}$"):
        check_episodes(with_broken_field(field, value), VECTOR, "mine-v0")
    with pytest.raises(DemonstrationError, match=f"^mine-v0, episode 1: {expected}$"):
        save_episodes("mine-v0", with_broken_field(field, value), VECTOR, "me", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_plane_value_above_maximum_is_an_error() -> None:
    spec = Spec("grid", (1, 2, 2), 1, "uint8", 3, 1.0)
    planes = np.ones((2, 1, 2, 2), np.uint8)
    good = Episode(planes, np.zeros(1, np.int64), np.zeros(1, np.float32), True)
    check_episodes([good], spec, "good")
    bad = dataclasses.replace(good, planes=with_value(planes, 2))
    with pytest.raises(DemonstrationError, match="mine, episode 1: a plane value above 1"):
        check_episodes([good, bad], spec, "mine")


def test_empty_demonstrations_are_an_error() -> None:
    with pytest.raises(DemonstrationError, match="mine holds no episodes"):
        check_episodes([], VECTOR, "mine")


# Files on disk

FILES = {
    "vectors": VECTOR,
    # Minari stores such planes as JPEG.
    "photographs": Spec("photos", (16, 16, 3), 4, "uint8", 5, 255.0),
    "floats": Spec("field", (2, 3, 4), 1, "float32", 2, 1.0),
}


@pytest.fixture(scope="module", params=FILES)
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    spec = FILES[request.param]
    root = tmp_path_factory.mktemp(request.param)
    episodes = some_episodes(spec)
    if spec.dtype == "float32":
        episodes[0].planes.flat[-3:] = -0.0, 1e-45, np.finfo(np.float32).max
    return spec, episodes, root, save_episodes("tests/shown-v0", episodes, spec, "a test", root)


def test_saved_set_loads_bit_for_bit(stored: Any) -> None:
    spec, episodes, root, path = stored
    for found in (load_episodes("tests/shown-v0", spec, root), load_episodes(str(path), spec)):
        assert len(found) == len(episodes)
        assert all(map(episodes_equal, found, episodes))


def test_minari_reads_saved_set(stored: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import minari
    from minari.cli import app
    from minari.namespace import list_local_namespaces
    from typer.testing import CliRunner

    _, episodes, root, _ = stored
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(root))
    assert list(minari.list_local_datasets()) == ["tests/shown-v0"]
    assert list_local_namespaces() == ["tests"]
    for arguments, expected in (
        (["list", "local"], r"tests/sho\S* .* 3 .* 9 "),
        (["show", "tests/shown-v0"], "Total Steps"),
    ):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0
        assert re.search(expected, result.output)
    dataset = minari.load_dataset("tests/shown-v0")
    for saved, read in zip(episodes, dataset.iterate_episodes(), strict=True):
        assert np.asarray(read.observations).tobytes() == saved.planes.tobytes()
        assert read.actions.tolist() == saved.actions.tolist()
        assert read.rewards.astype(np.float32).tolist() == saved.rewards.tolist()
        assert read.terminations.tolist() == [False] * (len(saved) - 1) + [saved.terminal]
        assert read.truncations.tolist() == [False] * (len(saved) - 1) + [not saved.terminal]


def test_stored_env_spec_is_built_only_by_minari(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import minari

    pytest.importorskip("ale_py")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    input_log = InputLog(np.zeros(12, np.uint8))
    pong, sticky = "ALE/Pong-v5", EnvConfig(sticky_prob=0.25, action_repeat=3)
    spec = get_spec(pong, sticky)
    data = (
        save_episodes(
            "pong-v0", [episode_from_log(input_log, pong, 3, 0.25)], spec, "me", env_config=sticky
        )
        / "data"
    )
    save_episodes(
        "cart-v0", *collect_episodes("CartPole-v1", EnvConfig(), lambda _: lambda: 0, [0]), "me"
    )
    with minari.load_dataset("pong-v0").recover_environment() as env:
        assert env.action_space == gymnasium.spaces.Discrete(18)
        assert env.observation_space.shape == (210, 160)
        assert env.spec is not None
        assert env.spec.max_episode_steps is not None  # d3rlpy needs it
        assert env.spec.kwargs["frameskip"] == 3
        assert env.spec.kwargs["repeat_action_probability"] == 0.25
    with minari.load_dataset("cart-v0").recover_environment() as env:
        assert env.observation_space.shape == (4,)
    metadata = json.loads((data / "metadata.json").read_text())
    metadata["env_spec"] = EnvSpec("CartPole-v1", entry_point="no.such.module:Env").to_json()
    (data / "metadata.json").write_text(json.dumps(metadata))
    monkeypatch.setattr(gymnasium, "make", None)
    assert len(load_episodes("pong-v0", spec, env_config=sticky)) == 1


def test_unregistered_environment_has_no_env_spec(tmp_path: Path) -> None:
    path = save_episodes("mine-v0", some_episodes(), VECTOR, "me", tmp_path)
    assert "env_spec" not in json.loads((path / "data" / "metadata.json").read_text())


def test_save_rejects_taken_and_malformed_names(tmp_path: Path) -> None:
    save_episodes("mine-v0", some_episodes(), VECTOR, "me", tmp_path)
    with pytest.raises(DemonstrationError, match="a set named mine-v0 exists"):
        save_episodes("mine-v0", some_episodes(), VECTOR, "me", tmp_path)
    save_episodes("mine-v1", some_episodes()[:1], VECTOR, "me", tmp_path)
    assert len(load_episodes("mine-v0", VECTOR, tmp_path)) == 3
    with pytest.raises(DemonstrationError, match=r"Malformed dataset ID: no version\."):
        save_episodes("no version", some_episodes(), VECTOR, "me", tmp_path)


def test_root_argument_overrides_minari_datasets_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "users"))
    save_episodes("mine-v0", some_episodes(), VECTOR, "me", tmp_path / "other")
    assert os.environ["MINARI_DATASETS_PATH"] == str(tmp_path / "users")
    save_episodes("mine-v0", some_episodes()[:2], VECTOR, "me")
    assert len(load_episodes("mine-v0", VECTOR)) == 2
    monkeypatch.delenv("MINARI_DATASETS_PATH")
    assert len(load_episodes("mine-v0", VECTOR, tmp_path / "other")) == 3
    assert "MINARI_DATASETS_PATH" not in os.environ


@pytest.mark.parametrize("name", ["nothing-v0", "a/b-v3", "no version", "/nowhere/at/all"])
def test_missing_set_error_names_set(tmp_path: Path, name: str) -> None:
    with pytest.raises(DemonstrationError, match=f"^no demonstrations named {name}: make or "):
        load_episodes(name, VECTOR, tmp_path)


@pytest.mark.parametrize("change", [{"env": "other"}, {"actions": 4}, {"actions": 2}])
def test_load_rejects_other_environment_or_action_count(tmp_path: Path, change: dict) -> None:
    path = save_episodes("mine-v0", some_episodes(), VECTOR, "me", tmp_path)
    spec = VECTOR._replace(**change)
    expected = f"{path} shows toy with 3 actions, the training environment is {spec.env} with"
    with pytest.raises(DemonstrationError, match=re.escape(f"{expected} {spec.actions}")):
        load_episodes(str(path), spec)


def test_load_rejects_other_plane_shape(tmp_path: Path) -> None:
    path = save_episodes("mine-v0", some_episodes(), VECTOR, "me", tmp_path)
    with pytest.raises(DemonstrationError, match=r"episode 0: planes \(2,\), but toy shows \(5,\)"):
        load_episodes(str(path), VECTOR._replace(plane=(5,)))


# Truncated, altered and hostile files


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The folder of a valid set that a test may damage."""
    return save_episodes("mine-v0", some_episodes(), VECTOR, "me", tmp_path) / "data"


def assert_load_fails(files: Path, expected: str = "") -> None:
    with pytest.raises(DemonstrationError, match=expected) as caught:
        load_episodes(str(files.parent), VECTOR)
    assert "\n" not in str(caught.value)
    assert str(files.parent) in str(caught.value)


@pytest.mark.parametrize("share", [0, 0.0001, 0.5, 0.999])
def test_truncated_file_is_an_error(files: Path, share: float) -> None:
    data = (files / "main_data.hdf5").read_bytes()
    (files / "main_data.hdf5").write_bytes(data[: int(len(data) * share)])
    assert_load_fails(files, "is not a readable set of ours: ")


def test_flipped_bit_changes_nothing_or_is_an_error(files: Path) -> None:
    """Some bits of an HDF5 file have no meaning here. Any other flipped bit must be an error."""
    path, rng, found = files / "main_data.hdf5", random.Random(0), {}
    data = path.read_bytes()
    with h5py.File(path) as file:
        data_of: Any = file["episode_1/observations"]
        planes = data_of.id.get_offset()
    places = [planes + 5, *(rng.randrange(len(data)) for _ in range(150))]
    for place in places:
        altered = bytearray(data)
        altered[place] ^= 1 << rng.randrange(8)
        path.write_bytes(altered)
        try:
            assert all(
                map(episodes_equal, load_episodes(str(files.parent), VECTOR), some_episodes())
            )
        except DemonstrationError as error:
            found[place] = str(error)
    assert "episode_1/observations is altered" in found[planes + 5]
    assert len(found) > 5


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"{}", b"\xff\xfe", b'{"lookfurther": 3}', b'{"lookfurther": "[]"}'],
)
def test_malformed_metadata_is_an_error(files: Path, text: bytes) -> None:
    (files / "metadata.json").write_bytes(text)
    assert_load_fails(files, "is not a readable set of ours: ")


def change_description(files: Path, change: Callable[[dict], Any]) -> None:
    metadata = json.loads((files / "metadata.json").read_text())
    description = json.loads(metadata["lookfurther"])
    change(description)
    metadata["lookfurther"] = json.dumps(description)
    (files / "metadata.json").write_text(json.dumps(metadata))


@pytest.mark.parametrize(
    "change",
    [
        lambda description: description.pop("spec"),
        lambda description: description.update(spec=[]),
        lambda description: description["spec"].pop("env"),
        lambda description: description.pop("episodes"),
        lambda description: description["episodes"].pop(),
        lambda description: description["episodes"].append(description["episodes"][0]),
        lambda description: description["episodes"][1].pop("seed"),
        lambda description: description["episodes"][1].update(rewards="0"),
        lambda description: description.update(episodes=[1, 2, 3]),
    ],
)
def test_inconsistent_description_is_an_error(files: Path, change: Callable[[dict], Any]) -> None:
    change_description(files, change)
    assert_load_fails(files, "is not a readable set of ours: ")


@pytest.mark.parametrize("missing", ["metadata.json", "main_data.hdf5"])
def test_missing_file_is_an_error(files: Path, missing: str) -> None:
    (files / missing).unlink()
    assert_load_fails(files, missing)


def replace_dataset(files: Path, field: str, **options: Any) -> None:
    with h5py.File(files / "main_data.hdf5", "a") as file:
        del file[f"episode_2/{field}"]
        file.create_dataset(f"episode_2/{field}", **options)


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("observations", {"shape": (10**13, 2), "dtype": "f4", "chunks": (1024, 2)}),
        ("observations", {"shape": (10**9, 2), "dtype": "f4", "compression": "gzip"}),
        ("observations", {"shape": (2,), "dtype": h5py.vlen_dtype(np.uint8)}),
        ("rewards", {"data": ["text"], "dtype": h5py.string_dtype()}),
        ("actions", {"data": [1.5]}),
        ("terminations", {"data": [1.0]}),
    ],
)
def test_unexpected_shape_or_dtype_is_an_error_before_reading(
    files: Path, field: str, options: dict
) -> None:
    replace_dataset(files, field, **options)
    assert_load_fails(files, f"/episode_2/{field} cannot be ")


IMAGES = Spec("images", (1, 84, 84), 4, "uint8", 3, 255.0)


def image_episode(planes: np.ndarray) -> Episode:
    steps = len(planes) - 1
    return Episode(planes, np.zeros(steps, np.int64), np.ones(steps, np.float32), True)


def test_large_planes_are_deflated_and_load_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images that compress, noise that does not, and blank images, which look like a bomb."""
    rng = np.random.default_rng(0)
    blocks = np.kron(rng.integers(0, 256, (7, 7)), np.ones((12, 12), int))
    still = np.repeat(blocks[None, None], 300, 0).astype(np.uint8)
    still[:, 0, 0, :2] = np.arange(300)[:, None] % 256
    noise = rng.integers(0, 256, (200, 1, 84, 84)).astype(np.uint8)
    blank = np.zeros((300, 1, 84, 84), np.uint8)
    episodes = [image_episode(planes) for planes in (still, noise, blank)]
    monkeypatch.setattr("lookfurther.demos.episode_hdf5.MAX_EXPANSION", 120)
    path = save_episodes("mine-v0", episodes, IMAGES, "me", tmp_path)
    with h5py.File(path / "data" / "main_data.hdf5") as file:
        kept: list[Any] = [file[f"episode_{i}/observations"] for i in range(3)]
        sizes = [k.nbytes / k.id.get_storage_size() for k in kept]
    assert sizes[0] > 10
    assert 0.8 < sizes[1] < 1.2
    assert sizes[2] == 1
    assert all(map(episodes_equal, load_episodes("mine-v0", IMAGES, tmp_path), episodes))


def test_bomb_with_matching_description_is_not_read(tmp_path: Path) -> None:
    """A hundred megabytes of zeros in a small file."""
    path = save_episodes(
        "mine-v0", [image_episode(np.zeros((2, 1, 84, 84), np.uint8))], IMAGES, "me", tmp_path
    )
    steps = 15_000
    with h5py.File(path / "data" / "main_data.hdf5", "w") as file:
        for field, shape in (("observations", (steps + 1, 1, 84, 84)), ("actions", (steps,))):
            chunk = (min(shape[0], 500), *shape[1:])
            zeros = np.zeros(shape, np.uint8 if field == "observations" else np.int64)
            options: dict[str, Any] = {"compression": "gzip", "chunks": chunk}
            file.create_dataset(f"episode_0/{field}", data=zeros, **options)
    change_description(
        path / "data", lambda description: description["episodes"][0].update(steps=steps)
    )
    tracemalloc.start()
    with pytest.raises(DemonstrationError, match=r"cannot hold the .* bytes it claims"):
        load_episodes(str(path), IMAGES)
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()


def test_oversized_chunk_is_not_inflated(tmp_path: Path) -> None:
    planes = np.random.default_rng(0).integers(0, 9, (100, 1, 84, 84)).astype(np.uint8)
    path = save_episodes("mine-v0", [image_episode(planes)], IMAGES, "me", tmp_path)
    bomb = zlib.compress(bytes(2**28))
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        data: Any = file["episode_0/observations"]
        data.id.write_direct_chunk((0, 0, 0, 0), bomb)
    tracemalloc.start()
    with pytest.raises(DemonstrationError, match="episode_0/observations is altered"):
        load_episodes(str(path), IMAGES)
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()


def test_wider_dtype_than_described_is_an_error(tmp_path: Path) -> None:
    """The file has eight bytes for each byte in the description."""
    path = save_episodes(
        "mine-v0", [image_episode(np.zeros((9, 1, 84, 84), np.uint8))], IMAGES, "me", tmp_path
    )
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        del file["episode_0/observations"]
        file["episode_0/observations"] = np.zeros((9, 1, 84, 84), np.uint64)
    with pytest.raises(DemonstrationError, match="episode_0/observations cannot be uint64"):
        load_episodes(str(path), IMAGES)


def test_episodes_with_shared_arrays_are_an_error(tmp_path: Path) -> None:
    """Each link to one episode has a few bytes, but would take the memory of the episode."""
    planes = np.random.default_rng(0).integers(0, 9, (100, 1, 84, 84)).astype(np.uint8)
    path = save_episodes("mine-v0", [image_episode(planes)], IMAGES, "me", tmp_path)
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        for i in range(1, 20):
            file[f"episode_{i}"] = file["episode_0"]
    change_description(
        path / "data", lambda description: description.update(episodes=description["episodes"] * 20)
    )
    text = (path / "data" / "metadata.json").read_text()
    text = text.replace('"total_episodes": 1', '"total_episodes": 20')
    (path / "data" / "metadata.json").write_text(text)
    with pytest.raises(DemonstrationError, match="has arrays that are one and the same"):
        load_episodes(str(path), IMAGES)


@pytest.mark.parametrize(
    ("part", "field", "value", "reason"),
    [
        ("origin", "repeat", 400_000_000, r"repeat must be 1 \.\.\. 1024, not 400000000"),
        ("spec", "actions", 10**10, "its spec is not valid"),
        ("spec", "stack", 10**9, r"stack must be 1 \.\.\. 1024, not 1000000000"),
        ("spec", "plane", [10**4000] * 8, "its spec is not valid"),
        ("spec", "plane", [1] * 100_000, "its spec is not valid"),
    ],
)
def test_absurd_sizes_in_description_are_an_error(
    tmp_path: Path, part: str, field: str, value: Any, reason: str
) -> None:
    path = save_episodes("mine-v0", some_episodes(), VECTOR, "me", tmp_path)
    change_description(path / "data", lambda description: description[part].update({field: value}))
    with pytest.raises(DemonstrationError, match=reason):
        load_episodes(str(path), VECTOR)


def test_set_too_large_to_read_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lookfurther.demos.bounded_json.MAX_JSON_VALUES", 50)
    with pytest.raises(DemonstrationError, match="mine-v0 is too large: make several sets of it"):
        save_episodes("mine-v0", some_episodes(), VECTOR, "me", tmp_path)
    assert not (tmp_path / "mine-v0").exists()


def test_append_to_damaged_file_changes_nothing(tmp_path: Path) -> None:
    path = (
        save_episodes("mine-v0", some_episodes(), VECTOR, "me", tmp_path)
        / "data"
        / "main_data.hdf5"
    )
    damaged = (Path(__file__).parent / "hostile" / "endless_header.hdf5.gz").read_bytes()
    path.write_bytes(gzip.decompress(damaged))
    before = path.read_bytes()
    with pytest.raises(DemonstrationError, match="mine-v0 could not be added to"):
        append_episodes("mine-v0", some_episodes(), VECTOR, "me", tmp_path)
    assert path.read_bytes() == before


def test_full_disk_leaves_sets_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_episodes("mine-v0", some_episodes(), VECTOR, "me", tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lookfurther.demos.episode_hdf5._write_array", full)
    with pytest.raises(DemonstrationError, match=r"other-v0 could not be written: .*No space left"):
        save_episodes("other-v0", some_episodes(), VECTOR, "me", tmp_path)
    with pytest.raises(DemonstrationError, match=r"mine-v0 could not be added to: .*No space left"):
        append_episodes("mine-v0", some_episodes(), VECTOR, "me", tmp_path)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_env_id_with_module_is_an_error(files: Path) -> None:
    change_description(files, lambda description: description["spec"].update(env="hostile:Env-v0"))
    assert_load_fails(files, "'hostile:Env-v0' is not an id")


def test_claimed_score_must_match_rewards(files: Path) -> None:
    change_description(files, lambda description: description["episodes"][1].update(score=1e6))
    assert_load_fails(files, "a score of 1e\\+06 is claimed, the rewards are ")


def test_group_instead_of_array_is_an_error(files: Path) -> None:
    with h5py.File(files / "main_data.hdf5", "a") as file:
        del file["episode_2/actions"]
        file.create_group("episode_2/actions")
    assert_load_fails(files, "is not a readable set of ours: ")


def test_loading_hostile_set_runs_no_code(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Minari's own reader imports the module in env_spec if the spaces are missing."""
    import minari

    (tmp_path / "hostile.py").write_text(
        f"import pathlib; pathlib.Path({str(tmp_path / 'ran')!r}).touch()"
    )
    monkeypatch.syspath_prepend(tmp_path)
    metadata = json.loads((files / "metadata.json").read_text())
    del metadata["observation_space"], metadata["action_space"]
    metadata["env_spec"] = EnvSpec("Hostile-v0", entry_point="hostile:Env").to_json()
    (files / "metadata.json").write_text(json.dumps(metadata))
    assert len(load_episodes(str(files.parent), VECTOR)) == 3
    assert not (tmp_path / "ran").exists()
    with pytest.raises(AttributeError):
        minari.MinariDataset(files)
    assert (tmp_path / "ran").exists()  # Minari runs the code, so the test is meaningful


# Scripted experts

UNLOCK = "lookfurther.envs.minigrid:lookfurther/UnlockPickup-v0"


def unlock() -> gymnasium.Env:
    pytest.importorskip("minigrid")
    return gymnasium.make(UNLOCK)


def test_bot_episodes_succeed_and_replay_equal() -> None:
    env = unlock()
    episodes, spec = collect_episodes(UNLOCK, EnvConfig(), babyai_bot, range(4))
    assert spec == get_spec(UNLOCK, EnvConfig())
    check_episodes(episodes, spec, "bot")
    assert [e.seed for e in episodes] == [0, 1, 2, 3]
    for demo in episodes:
        assert demo.terminal
        assert (demo.rewards[:-1] == 0).all()
        assert 0 < demo.rewards[-1] <= 1
        x, _ = env.reset(seed=demo.seed)
        planes, rewards, terminal = [x.transpose(2, 0, 1)], [], False
        for action in demo.actions:
            x, reward, terminal, truncated, _ = env.step(int(action))
            planes.append(x.transpose(2, 0, 1))
            rewards.append(reward)
            assert not truncated
        assert terminal
        assert np.array_equal(np.array(planes), demo.planes)
        assert np.array_equal(np.array(rewards, np.float32), demo.rewards)
    env.close()


def test_scripted_expert_receives_env_after_each_reset() -> None:
    """Two episodes of an expert that counts its own calls."""
    first_states = []

    def alternate(env: gymnasium.Env) -> Callable[[], int]:
        state: Any = env.unwrapped
        first_states.append(np.float32(state.state))
        calls = iter(range(1000))
        return lambda: next(calls) % 2

    episodes, spec = collect_episodes("CartPole-v1", EnvConfig(), alternate, [5, 6])
    assert (spec.env, spec.plane, spec.actions) == ("CartPole-v1", (4,), 2)
    for demo, first in zip(episodes, first_states, strict=True):
        assert np.array_equal(demo.planes[0], first)
        assert demo.actions.tolist() == [t % 2 for t in range(len(demo))]
        assert demo.terminal
        assert demo.score == len(demo)


def test_policy_receives_stacked_observations() -> None:
    """Blank planes before the start, and the newest plane last."""
    observations = []

    def lean(observation: np.ndarray) -> int:
        observations.append(observation.copy())
        return int(observation[-2] > 0)

    (demo,), spec = collect_episodes(
        "CartPole-v1", EnvConfig(frame_stack=3), ObservationPolicy(lean), [5]
    )
    assert spec.observation_shape == (12,)
    assert len(observations) == len(demo)
    padded = np.concatenate([np.zeros((2, 4), np.float32), demo.planes])
    for t, observation in enumerate(observations):
        assert observation.tolist() == padded[t : t + 3].reshape(-1).tolist()
        assert demo.actions[t] == int(demo.planes[t, 2] > 0)


def test_one_hot_planes_match_minigrid_encoding() -> None:
    pytest.importorskip("minigrid")
    from minigrid.wrappers import FullyObsWrapper

    from lookfurther.envs.minigrid import NUM_COLOURS, NUM_OBJECTS, NUM_STATES, OneHotGrid

    level = gymnasium.make("BabyAI-UnlockPickup-v0")
    full, ours = FullyObsWrapper(level), OneHotGrid(level)
    rng = np.random.default_rng(0)
    cells = set()
    for seed in range(3):
        raw, _ = level.reset(seed=seed)
        for _ in range(60):
            image = full.observation(raw)["image"]
            planes = ours.observation(raw)
            assert ours.observation_space.contains(planes)
            groups = np.split(
                planes, np.cumsum([NUM_OBJECTS, NUM_COLOURS, NUM_STATES])[:-1], axis=-1
            )
            assert all((group.sum(-1) == 1).all() for group in groups)
            assert np.array_equal(np.stack([g.argmax(-1) for g in groups], -1), image)
            cells |= set(map(tuple, image.reshape(-1, 3)))
            raw, _, terminal, truncated, _ = level.step(int(rng.integers(6)))
            if terminal or truncated:
                break
    assert len({kind for kind, _, _ in cells}) >= 5  # empty, wall, door, key, box, agent
    assert (
        len({state for kind, _, state in cells if kind == 10}) == 4
    )  # the agent turned in all directions
    level.close()


@pytest.mark.parametrize("layouts", [(3,), (0, 5, 9), tuple(range(8))])
def test_few_layouts_generates_only_given_layouts(layouts: tuple[int, ...]) -> None:
    pytest.importorskip("minigrid")
    from lookfurther.envs.minigrid import LayoutSubset, OneHotGrid

    level = gymnasium.make("BabyAI-UnlockPickup-v0")
    few, every = OneHotGrid(LayoutSubset(level, layouts)), OneHotGrid(level)
    wanted = [every.reset(seed=seed)[0].tobytes() for seed in layouts]
    assert len(set(wanted)) == len(layouts)
    seeds = range(5 * len(layouts))
    assert [few.reset(seed=seed)[0].tobytes() for seed in seeds] == 5 * wanted
    level.close()


def test_bot_set_saves_and_loads_for_training(tmp_path: Path) -> None:
    """Collect, save, and load as training does."""
    pytest.importorskip("minigrid")
    episodes, spec = collect_episodes(UNLOCK, EnvConfig(), babyai_bot, range(2))
    path = save_episodes("bot-v0", episodes, spec, "BabyAIBot", tmp_path)
    found = load_episodes(str(path), get_spec(UNLOCK, EnvConfig()))
    assert all(map(episodes_equal, found, episodes))
    shutil.move(path, tmp_path / "elsewhere")
    assert all(map(episodes_equal, load_episodes(str(tmp_path / "elsewhere"), spec), episodes))
    with pytest.raises(DemonstrationError, match="CartPole-v1 with 2"):
        load_episodes(str(tmp_path / "elsewhere"), get_spec("CartPole-v1", EnvConfig()))
