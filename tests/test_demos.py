"""Demonstrations: their film, what is refused, the files (F10, F11), scripted experts."""

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
    """Random numbers, but for the first value of each plane: it tells episode and time."""
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


def same(a: Episode, b: Episode) -> bool:
    arrays = ((a.planes, b.planes), (a.actions, b.actions), (a.rewards, b.rewards))
    return (a.terminal, a.seed) == (b.terminal, b.seed) and all(
        x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes() for x, y in arrays
    )


# The film


def test_a_film_by_hand() -> None:
    """Two episodes and, at the end, `lag` blank slots for the priorities to come due in."""
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
    released = [0, 0, 0, 1, 1, 0, 1, 0]  # for the slots three before: those with an action
    assert chunk.priority[:, 0].tolist() == [[p, p] for p in released]
    assert chunk.invalidate_newest.tolist() == [0]
    everyone = episodes_to_chunk(
        [first, second], max_horizon=3, num_horizons=2, imitated_episodes="all"
    )
    assert (everyone.mark[:5, 0] & BEST == BEST).all()
    assert (everyone.mark[5:, 0] & BEST == 0).all()


@given(st.lists(st.lists(st.integers(-5, 5), min_size=1, max_size=4), min_size=1, max_size=5))
def test_the_best_episode_has_the_highest_undiscounted_return(rewards: list[list[int]]) -> None:
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


def transition(spec: Spec, shown: Episode, t: int, n: int, gamma: float) -> tuple:
    """The n-step transition at time t of an episode, one step after another."""
    blank = np.zeros((spec.stack - 1, *spec.plane), spec.dtype)
    planes = np.concatenate([blank, shown.planes])
    observe = lambda i: np.concatenate(planes[i : i + spec.stack])  # noqa: E731
    r, steps = 0.0, 0
    while steps < n and t + steps < len(shown):
        r += gamma**steps * float(shown.rewards[t + steps])
        steps += 1
    over = shown.terminal and t + steps == len(shown)
    discount = 0.0 if over else gamma**steps
    after = observe(t + steps)
    action = int(shown.actions[t])
    return observe(t).tobytes(), action, np.float32(r), np.float32(discount), after.tobytes()


@st.composite
def sets(draw: st.DrawFn) -> tuple[Spec, list[Episode]]:
    plane, dtype = draw(st.sampled_from([((2,), "float32"), ((1, 3, 2), "uint8")]))
    spec = Spec("toy", plane, draw(st.integers(1, 4)), dtype, 3, 255.0 if dtype == "uint8" else 1.0)
    shapes = draw(st.lists(st.tuples(st.integers(1, 15), st.booleans()), min_size=1, max_size=4))
    return spec, [episode(spec, steps, end, i) for i, (steps, end) in enumerate(shapes)]


def row(b: Batch, i: int) -> tuple:
    """Item i of a batch, in the order of `transition`, and its e."""
    x, x_next = b.x_both[:, i].numpy()
    a, r, discount, e, *_ = (column[i].numpy() for column in b[1:])
    return x.tobytes(), int(a), r[()], discount[()], x_next.tobytes(), float(e)


def replayed(spec: Spec, episodes: list[Episode], **overrides: Any) -> list[Batch]:
    """Every samplable item of the expert replay, as batches."""
    settings = config.replace(config.Config(), **overrides)
    replay = build_expert_replay(settings, spec, episodes, torch.device("cpu"), 0)
    return list(replay.iter_items(7))


@settings(deadline=None, max_examples=30)
@given(
    sets(),
    st.lists(st.integers(1, 12), min_size=1, max_size=3, unique=True),
    st.sampled_from(["best", "all"]),
)
def test_the_expert_replay_holds_every_transition_of_every_episode_and_no_other(
    shown: tuple[Spec, list[Episode]], horizons: list[int], imitated: str
) -> None:
    """So no item crosses from one episode into another, and none is lost at an end."""
    (spec, episodes), gamma = shown, 0.75
    chosen = range(len(episodes)) if imitated == "all" else [best_episode_index(episodes)]
    wanted = Counter(
        (*transition(spec, e, t, n, gamma), float(i in chosen))
        for i, e in enumerate(episodes)
        for t in range(len(e))
        for n in horizons
    )
    found = Counter(
        row(b, i)
        for b in replayed(
            spec,
            episodes,
            replay__horizons=tuple(horizons),
            learner__gamma=gamma,
            learner__imitated_episodes=imitated,
        )
        for i in range(len(b.a))
    )
    assert found == wanted


def test_the_learner_sees_demonstrated_rewards_as_it_sees_its_own() -> None:
    """Clipped before they are summed; the stored episode stays raw."""
    shown = dataclasses.replace(
        episode(VECTOR, 3, True), rewards=np.array([5, -0.5, -7], np.float32)
    )
    settings = {"replay__horizons": (3,), "learner__gamma": 1.0}
    (batch,) = replayed(VECTOR, [shown], environment__reward_transform="clip", **settings)
    assert batch.r.tolist() == [-0.5, -1.5, -1.0]
    assert shown.rewards.tolist() == [5, -0.5, -7]


# What cannot be demonstrations


def broken(field: str, value: Any) -> list[Episode]:
    """Three episodes, the second of which is not right."""
    one, two, three = some_episodes()
    return [one, dataclasses.replace(two, **{field: value}), three]


def with_value(array: np.ndarray, value: Any) -> np.ndarray:
    array = array.copy()
    array.flat[-1] = value
    return array


GOOD = some_episodes()[1]


@pytest.mark.parametrize(
    ("field", "value", "words"),
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
def test_what_cannot_be_a_demonstration_is_named(
    tmp_path: Path, field: str, value: Any, words: str
) -> None:
    check_episodes(some_episodes(), VECTOR, "good")
    with pytest.raises(DemonstrationError, match=f"^mine-v0, episode 1: {words}$"):
        check_episodes(broken(field, value), VECTOR, "mine-v0")
    with pytest.raises(DemonstrationError, match=f"^mine-v0, episode 1: {words}$"):
        save_episodes("mine-v0", broken(field, value), VECTOR, "me", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_bytes_above_the_environments_largest_value_are_named() -> None:
    spec = Spec("grid", (1, 2, 2), 1, "uint8", 3, 1.0)
    planes = np.ones((2, 1, 2, 2), np.uint8)
    good = Episode(planes, np.zeros(1, np.int64), np.zeros(1, np.float32), True)
    check_episodes([good], spec, "good")
    bad = dataclasses.replace(good, planes=with_value(planes, 2))
    with pytest.raises(DemonstrationError, match="mine, episode 1: a plane value above 1"):
        check_episodes([good, bad], spec, "mine")


def test_no_episodes_are_no_demonstrations() -> None:
    with pytest.raises(DemonstrationError, match="mine holds no episodes"):
        check_episodes([], VECTOR, "mine")


# On disk

FILES = {
    "vectors": VECTOR,
    "photographs": Spec("photos", (16, 16, 3), 4, "uint8", 5, 255.0),  # what Minari takes for JPEG
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


def test_a_set_comes_back_bit_for_bit_by_name_and_by_path(stored: Any) -> None:
    spec, episodes, root, path = stored
    for found in (load_episodes("tests/shown-v0", spec, root), load_episodes(str(path), spec)):
        assert len(found) == len(episodes)
        assert all(map(same, found, episodes))


def test_minari_reads_the_same(stored: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import minari
    from minari.cli import app
    from minari.namespace import list_local_namespaces
    from typer.testing import CliRunner

    _, episodes, root, _ = stored
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(root))
    assert list(minari.list_local_datasets()) == ["tests/shown-v0"]
    assert list_local_namespaces() == ["tests"]
    for words, said in (
        (["list", "local"], r"tests/sho\S* .* 3 .* 9 "),
        (["show", "tests/shown-v0"], "Total Steps"),
    ):
        shown = CliRunner().invoke(app, words)
        assert shown.exit_code == 0
        assert re.search(said, shown.output)
    dataset = minari.load_dataset("tests/shown-v0")
    for ours, theirs in zip(episodes, dataset.iterate_episodes(), strict=True):
        assert np.asarray(theirs.observations).tobytes() == ours.planes.tobytes()
        assert theirs.actions.tolist() == ours.actions.tolist()
        assert theirs.rewards.astype(np.float32).tolist() == ours.rewards.tolist()
        assert theirs.terminations.tolist() == [False] * (len(ours) - 1) + [ours.terminal]
        assert theirs.truncations.tolist() == [False] * (len(ours) - 1) + [not ours.terminal]


def test_minari_builds_the_environment_of_a_set_and_we_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import minari

    pytest.importorskip("ale_py")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    tape = InputLog(np.zeros(12, np.uint8))
    pong, sticky = "ALE/Pong-v5", EnvConfig(sticky_prob=0.25, action_repeat=3)
    spec = get_spec(pong, sticky)
    data = (
        save_episodes(
            "pong-v0", [episode_from_log(tape, pong, 3, 0.25)], spec, "me", env_config=sticky
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


def test_an_unregistered_environment_has_no_spec_for_others(tmp_path: Path) -> None:
    path = save_episodes("mine-v0", some_episodes(), VECTOR, "me", tmp_path)
    assert "env_spec" not in json.loads((path / "data" / "metadata.json").read_text())


def test_a_name_is_taken_once_and_must_be_minaris(tmp_path: Path) -> None:
    save_episodes("mine-v0", some_episodes(), VECTOR, "me", tmp_path)
    with pytest.raises(DemonstrationError, match="a set named mine-v0 exists"):
        save_episodes("mine-v0", some_episodes(), VECTOR, "me", tmp_path)
    save_episodes("mine-v1", some_episodes()[:1], VECTOR, "me", tmp_path)
    assert len(load_episodes("mine-v0", VECTOR, tmp_path)) == 3
    with pytest.raises(DemonstrationError, match=r"Malformed dataset ID: no version\."):
        save_episodes("no version", some_episodes(), VECTOR, "me", tmp_path)


def test_the_datasets_folder_is_set_for_the_time_of_a_call(
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
def test_a_missing_set_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(DemonstrationError, match=f"^no demonstrations named {name}: make or "):
        load_episodes(name, VECTOR, tmp_path)


@pytest.mark.parametrize("change", [{"env": "other"}, {"actions": 4}, {"actions": 2}])
def test_another_environment_or_action_count_is_refused_naming_both(
    tmp_path: Path, change: dict
) -> None:
    path = save_episodes("mine-v0", some_episodes(), VECTOR, "me", tmp_path)
    spec = VECTOR._replace(**change)
    words = f"{path} shows toy with 3 actions, the training environment is {spec.env} with"
    with pytest.raises(DemonstrationError, match=re.escape(f"{words} {spec.actions}")):
        load_episodes(str(path), spec)


def test_planes_of_another_shape_are_refused_naming_both(tmp_path: Path) -> None:
    path = save_episodes("mine-v0", some_episodes(), VECTOR, "me", tmp_path)
    with pytest.raises(DemonstrationError, match=r"episode 0: planes \(2,\), but toy shows \(5,\)"):
        load_episodes(str(path), VECTOR._replace(plane=(5,)))


# Cut, altered and hostile files


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A sound set that a test may harm."""
    return save_episodes("mine-v0", some_episodes(), VECTOR, "me", tmp_path) / "data"


def refused(files: Path, words: str = "") -> None:
    with pytest.raises(DemonstrationError, match=words) as caught:
        load_episodes(str(files.parent), VECTOR)
    assert "\n" not in str(caught.value)
    assert str(files.parent) in str(caught.value)


@pytest.mark.parametrize("share", [0, 0.0001, 0.5, 0.999])
def test_a_cut_file_is_refused(files: Path, share: float) -> None:
    data = (files / "main_data.hdf5").read_bytes()
    (files / "main_data.hdf5").write_bytes(data[: int(len(data) * share)])
    refused(files, "is not a readable set of ours: ")


def test_a_flipped_bit_changes_nothing_or_is_refused(files: Path) -> None:
    """Some bits of an HDF5 file mean nothing to us; no other one may pass for a demonstration."""
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
            assert all(map(same, load_episodes(str(files.parent), VECTOR), some_episodes()))
        except DemonstrationError as error:
            found[place] = str(error)
    assert "episode_1/observations is altered" in found[planes + 5]
    assert len(found) > 5


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"{}", b"\xff\xfe", b'{"lookfurther": 3}', b'{"lookfurther": "[]"}'],
)
def test_garbage_for_metadata_is_refused(files: Path, text: bytes) -> None:
    (files / "metadata.json").write_bytes(text)
    refused(files, "is not a readable set of ours: ")


def change_facts(files: Path, change: Callable[[dict], Any]) -> None:
    metadata = json.loads((files / "metadata.json").read_text())
    facts = json.loads(metadata["lookfurther"])
    change(facts)
    metadata["lookfurther"] = json.dumps(facts)
    (files / "metadata.json").write_text(json.dumps(metadata))


@pytest.mark.parametrize(
    "change",
    [
        lambda facts: facts.pop("spec"),
        lambda facts: facts.update(spec=[]),
        lambda facts: facts["spec"].pop("env"),
        lambda facts: facts.pop("episodes"),
        lambda facts: facts["episodes"].pop(),
        lambda facts: facts["episodes"].append(facts["episodes"][0]),
        lambda facts: facts["episodes"][1].pop("seed"),
        lambda facts: facts["episodes"][1].update(rewards="0"),
        lambda facts: facts.update(episodes=[1, 2, 3]),
    ],
)
def test_facts_that_do_not_fit_are_refused(files: Path, change: Callable[[dict], Any]) -> None:
    change_facts(files, change)
    refused(files, "is not a readable set of ours: ")


@pytest.mark.parametrize("missing", ["metadata.json", "main_data.hdf5"])
def test_a_file_that_is_missing_is_refused(files: Path, missing: str) -> None:
    (files / missing).unlink()
    refused(files, missing)


def put(files: Path, field: str, **what: Any) -> None:
    with h5py.File(files / "main_data.hdf5", "a") as file:
        del file[f"episode_2/{field}"]
        file.create_dataset(f"episode_2/{field}", **what)


@pytest.mark.parametrize(
    ("field", "what"),
    [
        ("observations", {"shape": (10**13, 2), "dtype": "f4", "chunks": (1024, 2)}),
        ("observations", {"shape": (10**9, 2), "dtype": "f4", "compression": "gzip"}),
        ("observations", {"shape": (2,), "dtype": h5py.vlen_dtype(np.uint8)}),
        ("rewards", {"data": ["text"], "dtype": h5py.string_dtype()}),
        ("actions", {"data": [1.5]}),
        ("terminations", {"data": [1.0]}),
    ],
)
def test_bombs_and_strange_types_are_refused_unread(files: Path, field: str, what: dict) -> None:
    put(files, field, **what)
    refused(files, f"/episode_2/{field} cannot be ")


PICTURES = Spec("pictures", (1, 84, 84), 4, "uint8", 3, 255.0)


def pictures(planes: np.ndarray) -> Episode:
    steps = len(planes) - 1
    return Episode(planes, np.zeros(steps, np.int64), np.ones(steps, np.float32), True)


def test_large_planes_are_packed_and_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pictures that pack, noise that does not, and the blankest ones, which look like a bomb."""
    rng = np.random.default_rng(0)
    blocks = np.kron(rng.integers(0, 256, (7, 7)), np.ones((12, 12), int))
    still = np.repeat(blocks[None, None], 300, 0).astype(np.uint8)
    still[:, 0, 0, :2] = np.arange(300)[:, None] % 256
    noise = rng.integers(0, 256, (200, 1, 84, 84)).astype(np.uint8)
    blank = np.zeros((300, 1, 84, 84), np.uint8)
    episodes = [pictures(planes) for planes in (still, noise, blank)]
    monkeypatch.setattr("lookfurther.demos.episode_hdf5.MAX_EXPANSION", 120)
    path = save_episodes("mine-v0", episodes, PICTURES, "me", tmp_path)
    with h5py.File(path / "data" / "main_data.hdf5") as file:
        kept: list[Any] = [file[f"episode_{i}/observations"] for i in range(3)]
        sizes = [k.nbytes / k.id.get_storage_size() for k in kept]
    assert sizes[0] > 10
    assert 0.8 < sizes[1] < 1.2
    assert sizes[2] == 1
    assert all(map(same, load_episodes("mine-v0", PICTURES, tmp_path), episodes))


def test_a_bomb_that_fits_its_facts_is_refused_unread(tmp_path: Path) -> None:
    """A hundred megabytes of nothing in a small file, every digest right."""
    path = save_episodes(
        "mine-v0", [pictures(np.zeros((2, 1, 84, 84), np.uint8))], PICTURES, "me", tmp_path
    )
    steps = 15_000
    with h5py.File(path / "data" / "main_data.hdf5", "w") as file:
        for field, shape in (("observations", (steps + 1, 1, 84, 84)), ("actions", (steps,))):
            chunk = (min(shape[0], 500), *shape[1:])
            nothing = np.zeros(shape, np.uint8 if field == "observations" else np.int64)
            how: dict[str, Any] = {"compression": "gzip", "chunks": chunk}
            file.create_dataset(f"episode_0/{field}", data=nothing, **how)
    change_facts(path / "data", lambda facts: facts["episodes"][0].update(steps=steps))
    tracemalloc.start()
    with pytest.raises(DemonstrationError, match=r"cannot hold the .* bytes it claims"):
        load_episodes(str(path), PICTURES)
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()


def test_a_piece_that_unpacks_to_more_than_its_rows_is_cut_off(tmp_path: Path) -> None:
    planes = np.random.default_rng(0).integers(0, 9, (100, 1, 84, 84)).astype(np.uint8)
    path = save_episodes("mine-v0", [pictures(planes)], PICTURES, "me", tmp_path)
    bomb = zlib.compress(bytes(2**28))
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        data: Any = file["episode_0/observations"]
        data.id.write_direct_chunk((0, 0, 0, 0), bomb)
    tracemalloc.start()
    with pytest.raises(DemonstrationError, match="episode_0/observations is altered"):
        load_episodes(str(path), PICTURES)
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()


def test_numbers_wider_than_their_planes_are_refused(tmp_path: Path) -> None:
    """Eight bytes for each that the set claims."""
    path = save_episodes(
        "mine-v0", [pictures(np.zeros((9, 1, 84, 84), np.uint8))], PICTURES, "me", tmp_path
    )
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        del file["episode_0/observations"]
        file["episode_0/observations"] = np.zeros((9, 1, 84, 84), np.uint64)
    with pytest.raises(DemonstrationError, match="episode_0/observations cannot be uint64"):
        load_episodes(str(path), PICTURES)


def test_episodes_that_share_their_arrays_are_refused(tmp_path: Path) -> None:
    """Links of a few bytes to one episode, each of which would take as much memory again."""
    planes = np.random.default_rng(0).integers(0, 9, (100, 1, 84, 84)).astype(np.uint8)
    path = save_episodes("mine-v0", [pictures(planes)], PICTURES, "me", tmp_path)
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        for i in range(1, 20):
            file[f"episode_{i}"] = file["episode_0"]
    change_facts(path / "data", lambda facts: facts.update(episodes=facts["episodes"] * 20))
    text = (path / "data" / "metadata.json").read_text()
    text = text.replace('"total_episodes": 1', '"total_episodes": 20')
    (path / "data" / "metadata.json").write_text(text)
    with pytest.raises(DemonstrationError, match="has arrays that are one and the same"):
        load_episodes(str(path), PICTURES)


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("origin", "repeat", 400_000_000),
        ("spec", "actions", 10**10),
        ("spec", "stack", 10**9),
        ("spec", "plane", [10**4000] * 8),
        ("spec", "plane", [1] * 100_000),
    ],
)
def test_absurd_numbers_of_a_set_are_refused(tmp_path: Path, part, field, value) -> None:
    path = save_episodes("mine-v0", some_episodes(), VECTOR, "me", tmp_path)
    change_facts(path / "data", lambda facts: facts[part].update({field: value}))
    with pytest.raises(DemonstrationError, match=r"must be 1 \.\.\. \d+, not"):
        load_episodes(str(path), VECTOR)


def test_set_too_large_to_be_read_again_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lookfurther.demos.bounded_json.MAX_JSON_VALUES", 50)
    with pytest.raises(DemonstrationError, match="mine-v0 is too large: make several sets of it"):
        save_episodes("mine-v0", some_episodes(), VECTOR, "me", tmp_path)
    assert not (tmp_path / "mine-v0").exists()


def test_damaged_file_is_not_added_to(tmp_path: Path) -> None:
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


def test_a_full_disk_harms_no_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_an_id_that_would_import_a_module_is_refused(files: Path) -> None:
    change_facts(files, lambda facts: facts["spec"].update(env="hostile:Env-v0"))
    refused(files, "'hostile:Env-v0' is not an id")


def test_a_claimed_score_must_be_that_of_the_rewards(files: Path) -> None:
    change_facts(files, lambda facts: facts["episodes"][1].update(score=1e6))
    refused(files, "a score of 1e\\+06 is claimed, the rewards are ")


def test_a_group_in_place_of_an_array_is_refused(files: Path) -> None:
    with h5py.File(files / "main_data.hdf5", "a") as file:
        del file["episode_2/actions"]
        file.create_group("episode_2/actions")
    refused(files, "is not a readable set of ours: ")


def test_no_code_of_a_hostile_set_runs(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Minari's own reader imports what env_spec names where the spaces are left out."""
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
    assert (tmp_path / "ran").exists()  # so the trap was a good one


# Scripted experts

UNLOCK = "lookfurther.envs.minigrid:lookfurther/UnlockPickup-v0"


def unlock() -> gymnasium.Env:
    pytest.importorskip("minigrid")
    return gymnasium.make(UNLOCK)


def test_the_bots_episodes_succeed_and_can_be_replayed() -> None:
    env = unlock()
    episodes, spec = collect_episodes(UNLOCK, EnvConfig(), babyai_bot, range(4))
    assert spec == get_spec(UNLOCK, EnvConfig())
    check_episodes(episodes, spec, "bot")
    assert [e.seed for e in episodes] == [0, 1, 2, 3]
    for shown in episodes:
        assert shown.terminal
        assert (shown.rewards[:-1] == 0).all()
        assert 0 < shown.rewards[-1] <= 1
        x, _ = env.reset(seed=shown.seed)
        planes, rewards, terminal = [x.transpose(2, 0, 1)], [], False
        for action in shown.actions:
            x, reward, terminal, truncated, _ = env.step(int(action))
            planes.append(x.transpose(2, 0, 1))
            rewards.append(reward)
            assert not truncated
        assert terminal
        assert np.array_equal(np.array(planes), shown.planes)
        assert np.array_equal(np.array(rewards, np.float32), shown.rewards)
    env.close()


def test_a_policy_sees_the_environment_after_each_reset() -> None:
    """Two episodes of a policy that counts its own calls, cut off by the time limit."""
    seen = []

    def alternate(env: gymnasium.Env) -> Callable[[], int]:
        state: Any = env.unwrapped
        seen.append(np.float32(state.state))
        calls = iter(range(1000))
        return lambda: next(calls) % 2

    episodes, spec = collect_episodes("CartPole-v1", EnvConfig(), alternate, [5, 6])
    assert (spec.env, spec.plane, spec.actions) == ("CartPole-v1", (4,), 2)
    for shown, first in zip(episodes, seen, strict=True):
        assert np.array_equal(shown.planes[0], first)
        assert shown.actions.tolist() == [t % 2 for t in range(len(shown))]
        assert shown.terminal
        assert shown.score == len(shown)


def test_a_policy_sees_the_stacks_that_training_will_see() -> None:
    """Blank planes before the start, then the newest last; a set keeps each plane once."""
    seen = []

    def lean(observation: np.ndarray) -> int:
        seen.append(observation.copy())
        return int(observation[-2] > 0)

    (shown,), spec = collect_episodes(
        "CartPole-v1", EnvConfig(frame_stack=3), ObservationPolicy(lean), [5]
    )
    assert spec.observation_shape == (12,)
    assert len(seen) == len(shown)
    padded = np.concatenate([np.zeros((2, 4), np.float32), shown.planes])
    for t, observation in enumerate(seen):
        assert observation.tolist() == padded[t : t + 3].reshape(-1).tolist()
        assert shown.actions[t] == int(shown.planes[t, 2] > 0)


def test_one_hot_planes_say_what_minigrids_own_encoding_says() -> None:
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
    assert len({state for kind, _, state in cells if kind == 10}) == 4  # the agent looked round
    level.close()


@pytest.mark.parametrize("layouts", [(3,), (0, 5, 9), tuple(range(8))])
def test_few_layouts_are_those_and_no_others(layouts: tuple[int, ...]) -> None:
    pytest.importorskip("minigrid")
    from lookfurther.envs.minigrid import LayoutSubset, OneHotGrid

    level = gymnasium.make("BabyAI-UnlockPickup-v0")
    few, every = OneHotGrid(LayoutSubset(level, layouts)), OneHotGrid(level)
    wanted = [every.reset(seed=seed)[0].tobytes() for seed in layouts]
    assert len(set(wanted)) == len(layouts)
    seeds = range(5 * len(layouts))
    assert [few.reset(seed=seed)[0].tobytes() for seed in seeds] == 5 * wanted
    level.close()


def test_a_set_of_the_bot_trains(tmp_path: Path) -> None:
    """The whole way: collect, save, load as training does."""
    pytest.importorskip("minigrid")
    episodes, spec = collect_episodes(UNLOCK, EnvConfig(), babyai_bot, range(2))
    path = save_episodes("bot-v0", episodes, spec, "BabyAIBot", tmp_path)
    found = load_episodes(str(path), get_spec(UNLOCK, EnvConfig()))
    assert all(map(same, found, episodes))
    shutil.move(path, tmp_path / "elsewhere")
    assert all(map(same, load_episodes(str(tmp_path / "elsewhere"), spec), episodes))
    with pytest.raises(DemonstrationError, match="CartPole-v1 with 2"):
        load_episodes(str(tmp_path / "elsewhere"), get_spec("CartPole-v1", EnvConfig()))
