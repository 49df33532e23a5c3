"""Importers: recordings are repaired, replayed and audited; hostile files run nothing."""

from __future__ import annotations

import io
import json
import os
import pickle
import tracemalloc
import zipfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils import RecordConstructorArgs

from lookfurther.config import EnvConfig
from lookfurther.demos.align import imitation_score
from lookfurther.demos.collect import collect_episodes
from lookfurther.demos.episode import Episode, InputLog
from lookfurther.demos.importers import ImportedDemos, action_sequence, atari_demo, import_demos
from lookfurther.demos.playback import episode_from_log
from lookfurther.demos.storage import load_episodes, save_episodes
from lookfurther.demos.storage import read_description as describe_set
from lookfurther.demos.verify import verify_episode
from lookfurther.envs.emulator import DEFAULT_VARIANT, resize_by_area
from lookfurther.errors import DemonstrationError, LookFurtherError
from tests.sample_recordings import (
    FIRST_WRITE,
    GAME,
    NUM_FRAMES,
    OWN_ACTIONS,
    REPEATED_WRITE,
    SECOND_WRITE,
    asterix_recording,
    write_demo,
)

pytest.importorskip("ale_py")

SHARED_DEMOS = Path(__file__).parents[2] / "shared" / "demos"


def only_episode(imported: ImportedDemos) -> Episode:
    (episode,) = imported.episodes
    assert episode.audit is not None
    return episode


def assert_verified(imported: ImportedDemos, score: float) -> Episode:
    """Return the only episode after checking its audit and replaying it."""
    episode = only_episode(imported)
    assert episode.audit is not None
    assert (episode.audit.verified, episode.audit.mismatch) == (True, "")
    assert episode.score == episode.audit.replayed == score
    assert verify_episode(episode, imported.spec, imported.env_config).verified
    return episode


# openai/atari-demo


@pytest.fixture(scope="module")
def recording_data() -> dict[str, Any]:
    data = asterix_recording()
    assert sum(data["rewards"]) > 0
    return data


@pytest.mark.parametrize(
    ("writes", "frames"),
    [
        ([], set()),
        ([FIRST_WRITE], {100}),
        ([FIRST_WRITE, SECOND_WRITE, REPEATED_WRITE], {100, 200, 300}),
    ],
    ids=["none", "first", "every"],
)
def test_ram_repair_uses_fewest_checkpoints(tmp_path: Path, writes: list, frames: set) -> None:
    """RAM bytes that differ at power-on are written at as few checkpoints as possible."""
    data = asterix_recording(*writes)
    path = write_demo(tmp_path / "Asterix3.demo", data)
    episode = assert_verified(import_demos(path), sum(data["rewards"]))
    assert episode.input_log is not None
    assert set(episode.input_log.ram_writes[:, 0].tolist()) == frames
    assert episode.input_log.frame_actions.tolist() == [OWN_ACTIONS[a] for a in data["actions"]]
    assert episode.audit is not None
    assert episode.audit.recorded == episode.score
    assert episode.audit.compared == NUM_FRAMES
    counts = {"ram": 3 - len(frames), "ram_repaired": len(frames)}
    checks = {"score": 1, "rewards": NUM_FRAMES} | {name: n for name, n in counts.items() if n}
    assert episode.audit.checks == checks


def test_rewards_one_frame_late_are_accepted(tmp_path: Path, recording_data: dict) -> None:
    late = recording_data | {"rewards": [0.0, *recording_data["rewards"]]}
    assert_verified(
        import_demos(write_demo(tmp_path / "Asterix.demo", late)), sum(recording_data["rewards"])
    )
    later = recording_data | {"rewards": [0.0, 0.0, *recording_data["rewards"][:-1]]}
    with pytest.raises(DemonstrationError, match="does not replay as recorded: the reward of fr"):
        import_demos(write_demo(tmp_path / "Asterix.demo", later))


def test_demo_without_rewards_compares_checkpoints(tmp_path: Path) -> None:
    data = asterix_recording(FIRST_WRITE)
    score = sum(data.pop("rewards"))
    episode = assert_verified(import_demos(write_demo(tmp_path / "Asterix.demo", data)), score)
    assert episode.audit is not None
    assert episode.audit.recorded is None
    data = asterix_recording(FIRST_WRITE, SECOND_WRITE)
    del data["rewards"]
    with pytest.raises(DemonstrationError, match=r"RAM byte \d+ differs after 200 frames"):
        import_demos(write_demo(tmp_path / "Asterix.demo", data))


def test_altered_action_is_not_hidden_by_repair(tmp_path: Path) -> None:
    """The rewards still match, and RAM writes at the next checkpoint would hide the change."""
    data = asterix_recording(FIRST_WRITE)
    data["actions"][110] = (data["actions"][110] + 3) % len(OWN_ACTIONS)
    path = write_demo(tmp_path / "Asterix.demo", data)
    with pytest.raises(DemonstrationError, match="RAM byte 41 differs after 200 frames; --force"):
        import_demos(path)
    audit = only_episode(import_demos(path, force=True)).audit
    assert audit is not None
    assert (audit.verified, audit.replayed, audit.checks) == (False, sum(data["rewards"]), {})


def test_demo_mismatch_rejected_or_marked_when_forced(tmp_path: Path, recording_data: dict) -> None:
    other = recording_data | {"rewards": [*recording_data["rewards"][:-1], 7.0]}
    path = write_demo(tmp_path / "Asterix.demo", other)
    with pytest.raises(DemonstrationError, match="reward of frame 319 is 0, recorded 7; --force"):
        import_demos(path)
    episode = only_episode(import_demos(path, force=True))
    assert episode.audit is not None
    assert not episode.audit.verified
    assert episode.audit.mismatch == "the reward of frame 319 is 0, recorded 7"
    assert episode.audit.recorded == episode.score + 7


def test_demo_game_from_filename_or_env(tmp_path: Path, recording_data: dict) -> None:
    path = write_demo(tmp_path / "mine.demo", recording_data)
    with pytest.raises(DemonstrationError, match=r"mine\.demo does not name its game: give --env"):
        import_demos(path)
    assert_verified(import_demos(path, GAME), sum(recording_data["rewards"]))
    with pytest.raises(
        DemonstrationError, match=r"action set of ALE/Freeway-v5 has only 3 actions"
    ):
        import_demos(path, "ALE/Freeway-v5")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"actions": []}, "no actions"),
        ({"actions": [-1]}, "below 0"),
        ({"actions": ["up"]}, "'up' is not an integer"),
        ({"actions": [2**40]}, "its pickle holds LONG1"),
        ({"rewards": [0.0]}, "1 rewards for 320 actions"),
        ({"rewards": [float("nan")] * NUM_FRAMES}, "nan is not a finite number"),
        ({"checkpoint_action_nr": [1]}, "not at ascending frames"),
        ({"checkpoint_action_nr": [300, 200, 100]}, "not at ascending frames"),
        ({"checkpoint_action_nr": [100, 200, 4000]}, "not at ascending frames"),
        ({"checkpoints": [np.zeros(9, np.uint8)] * 3}, "not found"),
        ({"checkpoints": [1, 2, 3]}, "no attribute"),
    ],
)
def test_inconsistent_demo_is_rejected(tmp_path, recording_data, change, message) -> None:
    with pytest.raises(DemonstrationError, match=f"is not a readable recording: .*{message}"):
        import_demos(write_demo(tmp_path / "Asterix.demo", recording_data | change))


class RunsOnUnpickle:
    """Calls a function when it is unpickled."""

    def __init__(self, call: Callable, *arguments: Any) -> None:
        self.call = call, arguments

    def __reduce__(self) -> tuple:
        return self.call


MEMO_BOMB = b"\x80\x03}r\xff\xff\xff\xff."
LONG_BOMB = b"\x80\x03\x8b\xff\xff\xff\x7f" + b"\xff" * 100 + b"."


@pytest.mark.parametrize(
    "hostile",
    [
        lambda marker: pickle.dumps(RunsOnUnpickle(Path.touch, Path(marker))),
        lambda marker: pickle.dumps(
            {"actions": RunsOnUnpickle(os.system, f"touch {marker}")}, protocol=2
        ),
        lambda marker: pickle.dumps(
            {"actions": RunsOnUnpickle(eval, f"open({marker!r}, 'w')")}, protocol=3
        ),
        lambda marker: b"cnumpy\nfromfile\n(X\x04\x00\x00\x00/etctR.",
        lambda marker: (
            b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nJ\xff\xff\xff\x7ftR."
        ),
        lambda marker: MEMO_BOMB,
        lambda marker: LONG_BOMB,
        lambda marker: b"\x80\x03X\xff\xff\xff\x7fa.",
        lambda marker: b"(" * 100_000,
        lambda marker: pickle.dumps(
            {"actions": np.array([RunsOnUnpickle(os.system, f"touch {marker}")])}
        ),
        lambda marker: b"",
        lambda marker: b"not a pickle",
    ],
)
def test_hostile_pickle_runs_nothing_and_allocates_little(tmp_path: Path, hostile: Any) -> None:
    marker, path = tmp_path / "marker", tmp_path / "Pong.demo"
    path.write_bytes(hostile(str(marker)))
    tracemalloc.start()
    with pytest.raises(DemonstrationError, match="is not a readable recording") as caught:
        atari_demo.load_recording(path)
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()
    assert not marker.exists()
    assert "\n" not in str(caught.value)


def test_pickle_cannot_modify_the_reader(tmp_path: Path, recording_data: dict) -> None:
    """A pickle may set attributes only on stand-ins of the classes it names."""
    tamper = b"\x80\x02cnumpy\nndarray\nN}X\x0c\x00\x00\x00__setstate__K\x01s\x86b."
    (tmp_path / "bad.demo").write_bytes(tamper)
    with pytest.raises(DemonstrationError):
        atari_demo.load_recording(tmp_path / "bad.demo")
    assert (
        len(
            atari_demo.load_recording(
                write_demo(tmp_path / "good.demo", recording_data)
            ).ram_by_frame
        )
        == 3
    )


# Action sequences


@pytest.fixture(scope="module")
def episode(recording_data: dict, tmp_path_factory: pytest.TempPathFactory) -> Episode:
    path = tmp_path_factory.mktemp("demo") / "Asterix.demo"
    return only_episode(import_demos(write_demo(path, asterix_recording(FIRST_WRITE))))


def sequence_arrays(episode: Episode, **changes: Any) -> dict[str, Any]:
    """The arrays of an action sequence as written by hand."""
    assert episode.input_log is not None
    arrays = {
        "rom": "asterix",
        "ale_actions": episode.input_log.frame_actions,
        "score": int(episode.score),
        "ram_patch": episode.input_log.ram_writes[:, 1:].astype(np.uint8),
        "patch_frame": int(episode.input_log.ram_writes[0, 0]),
    }
    arrays |= changes
    return {name: array for name, array in arrays.items() if array is not None}


def write_npz(path: Path, arrays: dict[str, Any]) -> Path:
    np.savez_compressed(path, **arrays)
    return path


def test_action_sequence_is_replayed(tmp_path: Path, episode: Episode) -> None:
    found = assert_verified(
        import_demos(write_npz(tmp_path / "one.npz", sequence_arrays(episode))), episode.score
    )
    assert found.planes.tobytes() == episode.planes.tobytes()
    assert (found.actions.tolist(), found.terminal) == (episode.actions.tolist(), episode.terminal)
    assert found.audit is not None
    assert found.audit.checks == {"score": 1}


def test_sequence_actions_accept_any_integer_dtype(tmp_path: Path, episode: Episode) -> None:
    assert episode.input_log is not None
    for kind in (np.int64, np.int8, np.uint16):
        wide = sequence_arrays(episode, ale_actions=episode.input_log.frame_actions.astype(kind))
        assert_verified(import_demos(write_npz(tmp_path / "one.npz", wide)), episode.score)
    below = sequence_arrays(episode, ale_actions=np.full(9, -1), ram_patch=None)
    with pytest.raises(DemonstrationError, match=r"its actions must be 0 \.\.\. 17"):
        import_demos(write_npz(tmp_path / "one.npz", below))


def test_written_sequence_reads_back_equal(tmp_path: Path, episode: Episode) -> None:
    action_sequence.write_action_sequence(tmp_path / "one.npz", episode, GAME)
    found = assert_verified(import_demos(tmp_path / "one.npz"), episode.score)
    assert found.planes.tobytes() == episode.planes.tobytes()
    assert found.audit is not None
    assert found.audit.checks == {"score": 1, "rewards": NUM_FRAMES}
    assert [p.name for p in tmp_path.iterdir()] == ["one.npz"]


def test_sequence_rewards_and_score_must_match(tmp_path: Path, episode: Episode) -> None:
    assert episode.input_log is not None
    rewards = np.zeros(NUM_FRAMES, np.int32)
    episode_from_log(
        episode.input_log,
        GAME,
        on_frame=lambda e, r: rewards.__setitem__(e.frame_number - 1, int(r)),
    )
    assert_verified(
        import_demos(write_npz(tmp_path / "one.npz", sequence_arrays(episode, rewards=rewards))),
        episode.score,
    )
    path = write_npz(tmp_path / "one.npz", sequence_arrays(episode, rewards=rewards[::-1]))
    with pytest.raises(DemonstrationError, match="does not replay as recorded: the reward of fr"):
        import_demos(path)
    path = write_npz(tmp_path / "one.npz", sequence_arrays(episode, score=99))
    with pytest.raises(DemonstrationError, match=f"the score is {episode.score:g}, recorded 99; "):
        import_demos(path)
    audit = only_episode(import_demos(path, force=True)).audit
    assert audit is not None
    assert (audit.verified, audit.recorded, audit.replayed) == (False, 99, episode.score)


def test_sequence_longer_than_game_is_rejected(tmp_path: Path, episode: Episode) -> None:
    long = np.full(9000, 1, np.uint8)
    path = write_npz(tmp_path / "one.npz", sequence_arrays(episode, ale_actions=long, score=0))
    with pytest.raises(DemonstrationError, match=r"the game is over at frame \d+ of 9000; --force"):
        import_demos(path)
    forced = only_episode(import_demos(path, force=True))
    assert forced.terminal
    assert len(forced) < 2250


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rom": "ponk"}, "ale-py has no game 'ponk'"),
        ({"rom": None}, "it holds no rom"),
        ({"score": None}, "it holds no score"),
        ({"ale_actions": np.zeros(0, np.uint8)}, "no actions"),
        ({"ale_actions": np.full(9, 18, np.uint8)}, r"actions must be 0 \.\.\. 17"),
        ({"ale_actions": np.zeros(9)}, "not integers"),
        ({"ram_patch": np.array([[200, 1]])}, "outside its frames or the RAM"),
        ({"patch_frame": 10**6}, "outside its frames or the RAM"),
        ({"patch_frame": np.zeros(2)}, "patch_frame must be one value"),
        ({"ram_writes": np.zeros((2, 2), int)}, "rows of frame, address, value"),
        ({"rewards": np.zeros(3)}, r"rewards of shape \(3,\) for 320 actions"),
        ({"rewards": np.full(NUM_FRAMES, np.nan)}, "rewards of shape"),
        ({"extra": 1}, "unknown array 'extra.npy'"),
        ({"score": np.array([object()])}, "an array of object"),
    ],
)
def test_invalid_sequence_is_rejected(tmp_path, episode, changes, message) -> None:
    path = write_npz(tmp_path / "one.npz", sequence_arrays(episode, **changes))
    with pytest.raises(DemonstrationError, match=message) as caught:
        import_demos(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sequence_of_other_game_is_rejected(tmp_path: Path, episode: Episode) -> None:
    with pytest.raises(DemonstrationError, match="is of asterix, not of ALE/Pong-v5"):
        import_demos(write_npz(tmp_path / "one.npz", sequence_arrays(episode)), "ALE/Pong-v5")


def npy_bytes(shape: tuple[int, ...], data: bytes, descr: str = "|u1") -> bytes:
    file = io.BytesIO()
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + data


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("ale_actions.npy", npy_bytes((10**12,), b"\0"), "1 values for the shape"),
        ("ale_actions.npy", npy_bytes((1,), pickle.dumps(1), "|O"), "an array of object"),
        ("ale_actions.npy", npy_bytes((2**25,), bytes(2**25)), "more than 33554432 bytes"),
        ("../ale_actions.npy", npy_bytes((1,), b"\0"), r"unknown array '\.\./ale_actions\.npy'"),
        ("ale_actions.npy", b"", "EOF|magic"),
        ("ale_actions.npy", b"\x93NUMPY\x01\x00\x04\x00(((((", "EOF|header"),
    ],
)
def test_hostile_npz_is_rejected_with_little_memory(tmp_path, episode, name, data, message) -> None:
    path = write_npz(tmp_path / "one.npz", sequence_arrays(episode, ale_actions=None))
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr(name, data)
    tracemalloc.start()
    with pytest.raises(DemonstrationError, match=message):
        import_demos(path)
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()


def test_unknown_file_type_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("up, up, down")
    with pytest.raises(
        DemonstrationError, match=r"must be a \.demo, \.npz, \.hdf5 file or the folder"
    ):
        import_demos(tmp_path / "notes.txt")
    with pytest.raises(DemonstrationError, match="there is no file"):
        import_demos(tmp_path / "nothing.npz")
    with pytest.raises(DemonstrationError, match="holds no Minari dataset"):
        import_demos(tmp_path)


# Minari datasets from other tools

SEED, STEPS = 7, 60


def make_minari_dataset(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    env: gymnasium.Env,
    transform: Callable[[Any], Any] = lambda x: x,
    seed: int | None = SEED,
    noops: int = 0,
    **options: Any,
) -> Path:
    """Let Minari write a dataset of random steps after `noops` no-ops."""
    import minari
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(root))
    rng = np.random.default_rng(0)
    first, _ = env.reset(seed=SEED)
    for _ in range(noops):
        first, *_ = env.step(0)
    observations, actions, rewards, ends = [transform(first)], [], [], []
    while len(actions) < STEPS and not any(ends):
        actions.append(1 if len(actions) % 9 == 0 else int(rng.integers(env.action_space.n)))  # type: ignore[attr-defined]
        observation, reward, terminal, _, _ = env.step(actions[-1])
        observations.append(transform(observation))
        rewards.append(float(reward))
        ends.append(bool(terminal))
    make_buffer: Any = EpisodeBuffer  # its annotations allow no arrays
    buffer = make_buffer(
        id=0,
        seed=seed,
        observations=np.array(observations),
        actions=np.array(actions),
        rewards=np.array(rewards),
        terminations=np.array(ends),
        truncations=np.zeros(len(ends), bool),
        infos={},
    )
    space = options.pop("observation_space", env.observation_space)
    minari.create_dataset_from_buffers(
        "theirs-v0", [buffer], env=env, observation_space=space, **options
    )
    env.close()
    return root / "theirs-v0"


def make_atari_env(**options: Any) -> gymnasium.Env:
    settings = {"repeat_action_probability": 0.0, "frameskip": 4} | options
    return gymnasium.make(GAME, **settings)


ignore_user_warnings = pytest.mark.filterwarnings("ignore::UserWarning")


@ignore_user_warnings
@pytest.mark.parametrize(
    ("data_format", "jpeg", "options"),
    [
        ("hdf5", False, {}),
        ("hdf5", True, {"full_action_space": True}),
        ("hdf5", False, {"repeat_action_probability": 0.5}),
        ("arrow", True, {}),
        ("parquet", False, {}),
    ],
)
def test_minari_screens_are_restored_by_replay(
    tmp_path, monkeypatch, data_format, jpeg, options
) -> None:
    """JPEG loss does not matter if the actions lead to the same rewards and last screen."""
    if data_format != "hdf5":
        pytest.importorskip("pyarrow")
    path = make_minari_dataset(
        tmp_path,
        monkeypatch,
        make_atari_env(**options),
        data_format=data_format,
        jpeg_encoding=jpeg,
    )
    imported = import_demos(path)
    episode = only_episode(imported)
    assert len(episode) == STEPS
    assert_verified(imported, episode.score)
    assert imported.env_config.sticky_prob == options.get("repeat_action_probability", 0.0)
    save_episodes("ours-v0", imported.episodes, imported.spec, "me", tmp_path, imported.env_config)


@ignore_user_warnings
def test_minari_planes_after_noops_are_replayed(tmp_path, monkeypatch) -> None:
    """The dataset stacks planes of its own preprocessing and starts after some no-ops."""

    def stack(screen: np.ndarray) -> np.ndarray:
        plane = resize_by_area(screen.mean(-1).astype(np.uint8))
        return np.stack([plane * 0, plane * 0, plane * 0, plane], -1)

    box = gymnasium.spaces.Box(0, 255, (84, 84, 4), np.uint8)
    env = make_atari_env(frameskip=4)
    path = make_minari_dataset(
        tmp_path, monkeypatch, env, stack, noops=5, jpeg_encoding=False, observation_space=box
    )
    imported = import_demos(path)
    episode = assert_verified(imported, only_episode(imported).score)
    assert episode.input_log is not None
    assert len(episode.input_log.frame_actions) == 4 * (5 + STEPS)
    assert (episode.input_log.frame_actions[:20] == 0).all()


class AtariPreprocessing(gymnasium.Wrapper, RecordConstructorArgs):
    """The action handling of Gymnasium's wrapper of this name, which needs OpenCV."""

    def __init__(self, env: gymnasium.Env, noop_max: int = 30, frame_skip: int = 4) -> None:
        RecordConstructorArgs.__init__(self, noop_max=noop_max, frame_skip=frame_skip)
        super().__init__(env)
        self.noop_max, self.frame_skip = noop_max, frame_skip
        self.observation_space = gymnasium.spaces.Box(0, 255, (84, 84), np.uint8)

    def reset(self, **options: Any) -> Any:
        screen, info = self.env.reset(**options)
        for _ in range(self.unwrapped.np_random.integers(1, self.noop_max + 1)):
            screen, *_ = self.env.step(0)
        return resize_by_area(screen.mean(-1).astype(np.uint8)), info

    def step(self, action: Any) -> Any:
        total, screen, ends = 0.0, np.zeros(0), (False, False)
        for _ in range(self.frame_skip):
            screen, reward, *ends, _ = self.env.step(action)
            total += float(reward)
            if any(ends):
                break
        return resize_by_area(screen.mean(-1).astype(np.uint8)), total, *ends, {}


@ignore_user_warnings
def test_minari_phase_follows_atari_preprocessing_noops(tmp_path, monkeypatch) -> None:
    """Each step then holds one action, and playing the steps gives the score."""
    env = AtariPreprocessing(make_atari_env(frameskip=1), noop_max=30)
    path = make_minari_dataset(tmp_path, monkeypatch, env, jpeg_encoding=False)
    imported = import_demos(path)
    episode = assert_verified(imported, only_episode(imported).score)
    assert episode.input_log is not None
    noops = len(episode.input_log.frame_actions) - 4 * STEPS
    assert noops % 4
    assert episode.input_log.phase == noops % 4
    assert episode.audit is not None
    assert episode.audit.ambiguous == 0
    assert episode.audit.checks == {"rewards": STEPS, "end": 1, "last_picture": 1}
    assert imitation_score(episode, GAME, 4) == episode.score > 0


@ignore_user_warnings
def test_minari_mismatch_rejected_or_marked_when_forced(tmp_path, monkeypatch) -> None:
    def stranger(screen: np.ndarray) -> np.ndarray:
        return 255 - screen

    path = make_minari_dataset(
        tmp_path, monkeypatch, make_atari_env(), stranger, jpeg_encoding=False
    )
    monkeypatch.setattr("lookfurther.demos.importers.minari.MAX_NOOPS", 1)
    with pytest.raises(DemonstrationError, match="episode 0: its actions do not lead to its rew"):
        import_demos(path)
    imported = import_demos(path, force=True)
    episode = only_episode(imported)
    assert episode.audit is not None
    assert not episode.audit.verified
    assert episode.input_log is None
    assert (len(episode), episode.planes.shape) == (STEPS, (STEPS + 1, 1, 84, 84))
    chosen = np.random.default_rng(0)  # as in `stored`, of the game's own actions
    picks = [1 if i % 9 == 0 else int(chosen.integers(len(OWN_ACTIONS))) for i in range(STEPS)]
    assert episode.actions.tolist() == [OWN_ACTIONS[i] for i in picks]
    save_episodes("ours-v0", imported.episodes, imported.spec, "me", tmp_path, imported.env_config)


def black_plane(screen: np.ndarray) -> np.ndarray:
    return np.zeros((84, 84), np.uint8)


def rgb_plane(screen: np.ndarray) -> np.ndarray:
    return np.repeat((255 - resize_by_area(screen[..., 0]))[..., None], 3, -1)


def float_plane(screen: np.ndarray) -> np.ndarray:
    return (1 - resize_by_area(screen[..., 0]) / np.float32(255)).astype(np.float32)


@ignore_user_warnings
@pytest.mark.parametrize(
    ("look", "message"),
    [
        (black_plane, "its pictures are black"),
        (rgb_plane, r"\(84, 84, 3\) are neither screens nor gr"),
    ],
)
def test_force_rejects_black_or_rgb_planes(tmp_path, monkeypatch, look, message) -> None:
    shape = look(np.zeros((210, 160, 3), np.uint8)).shape
    box = gymnasium.spaces.Box(0, 255, shape, np.uint8)
    monkeypatch.setattr("lookfurther.demos.importers.minari.MAX_NOOPS", 0)
    path = make_minari_dataset(
        tmp_path, monkeypatch, make_atari_env(), look, jpeg_encoding=False, observation_space=box
    )
    with pytest.raises(DemonstrationError, match=message):
        import_demos(path, force=True)


@ignore_user_warnings
def test_forced_float_planes_are_scaled_to_uint8(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("lookfurther.demos.importers.minari.MAX_NOOPS", 0)
    box = gymnasium.spaces.Box(0, 1, (84, 84), np.float32)
    path = make_minari_dataset(
        tmp_path, monkeypatch, make_atari_env(), float_plane, observation_space=box
    )
    first, _ = make_atari_env().reset(seed=SEED)
    planes = only_episode(import_demos(path, force=True)).planes
    assert np.array_equal(planes[0, 0], np.rint(255 * float_plane(first)).astype(np.uint8))


class Camera(gymnasium.Env):
    """RGB observations of 6 x 8 pixels."""

    spec = EnvSpec("Camera-v0", entry_point="tests.test_importers:Camera")
    observation_space = gymnasium.spaces.Box(0, 255, (6, 8, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: int) -> Any:
        return self.observation_space.sample(), 0.0, False, False, {}


@ignore_user_warnings
@pytest.mark.parametrize(
    ("look", "message"),
    [
        (lambda x: x.transpose(2, 0, 1), r"observations are \(3, 6, 8\), those of Camera-v0"),
        (lambda x: (x / 255).astype(np.float32), "are float32, those of Camera-v0 integers"),
    ],
)
def test_force_rejects_other_layout_or_dtype(tmp_path, monkeypatch, look, message) -> None:
    monkeypatch.setitem(gymnasium.registry, "Camera-v0", Camera.spec)
    sample = look(np.zeros((6, 8, 3), np.uint8))
    box = gymnasium.spaces.Box(0, 255, sample.shape, sample.dtype.type)
    path = make_minari_dataset(
        tmp_path, monkeypatch, Camera(), look, None, jpeg_encoding=False, observation_space=box
    )
    with pytest.raises(DemonstrationError, match=message):
        import_demos(path, force=True)


@ignore_user_warnings
def test_minari_mode_and_difficulty_are_kept_and_compared(tmp_path, monkeypatch) -> None:
    """Such a set replays, and training in the default variant rejects it."""
    chosen = gymnasium.make(
        "ALE/Freeway-v5", repeat_action_probability=0.0, frameskip=4, mode=1, difficulty=1
    )
    imported = import_demos(make_minari_dataset(tmp_path, monkeypatch, chosen, jpeg_encoding=False))
    episode = assert_verified(imported, only_episode(imported).score)
    assert episode.input_log is not None
    assert episode.input_log.variant == (1, 1)
    save_episodes("hard-v0", [episode], imported.spec, "me", tmp_path)
    with pytest.raises(
        DemonstrationError, match=r"^hard-v0 was made with mode 1 of the game, the training env"
    ):
        load_episodes("hard-v0", imported.spec, tmp_path)
    (facts,) = describe_set("hard-v0", tmp_path).episodes
    assert facts.reel is not None
    assert facts.reel.variant == (1, 1)
    assert episode_from_log(
        InputLog(episode.input_log.frame_actions), "ALE/Freeway-v5"
    ).planes.tobytes() != (episode.planes.tobytes())


@ignore_user_warnings
def test_explicit_default_mode_is_default_variant(tmp_path, monkeypatch) -> None:
    same = gymnasium.make(GAME, repeat_action_probability=0.0, frameskip=4, mode=0, difficulty=0)
    path = make_minari_dataset(tmp_path, monkeypatch, same, jpeg_encoding=False)
    episode = only_episode(import_demos(path))
    assert episode.input_log is not None
    assert episode.input_log.variant == DEFAULT_VARIANT
    data = path / "data" / "metadata.json"
    for mode, message in (
        (77, "asterix has no mode 77: it has 0"),
        ("1", "its mode cannot be '1'"),
    ):
        metadata = json.loads(data.read_text())
        named = json.loads(metadata["env_spec"])
        named["kwargs"]["mode"] = mode
        metadata["env_spec"] = json.dumps(named)
        data.write_text(json.dumps(metadata))
        with pytest.raises(LookFurtherError, match=message):
            import_demos(path)


@ignore_user_warnings
@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_minari_gymnasium_dataset_is_verified(tmp_path, monkeypatch, data_format) -> None:
    if data_format != "hdf5":
        pytest.importorskip("pyarrow")
    path = make_minari_dataset(
        tmp_path, monkeypatch, gymnasium.make("CartPole-v1"), data_format=data_format
    )
    imported = import_demos(path)
    episode = assert_verified(imported, len(only_episode(imported)))
    assert episode.seed == SEED
    assert episode.terminal
    assert imported.spec.env == "CartPole-v1"


@ignore_user_warnings
def test_episode_without_seed_is_unverified(tmp_path, monkeypatch) -> None:
    path = make_minari_dataset(tmp_path, monkeypatch, gymnasium.make("CartPole-v1"), seed=None)
    audit = only_episode(import_demos(path)).audit
    assert audit is not None
    assert not audit.verified
    assert "neither a seed nor an input log" in audit.mismatch


@ignore_user_warnings
def test_observations_of_other_seed_are_rejected(tmp_path, monkeypatch) -> None:
    path = make_minari_dataset(tmp_path, monkeypatch, gymnasium.make("CartPole-v1"), seed=SEED + 1)
    with pytest.raises(DemonstrationError, match="episode 0: step 0: 4 of 4 values of the plane"):
        import_demos(path)
    audit = only_episode(import_demos(path, force=True)).audit
    assert audit is not None
    assert not audit.verified


@ignore_user_warnings
def test_dataset_never_runs_code_it_names(tmp_path, monkeypatch) -> None:
    path = make_minari_dataset(tmp_path / "sets", monkeypatch, gymnasium.make("CartPole-v1"))
    (tmp_path / "hostile.py").write_text(
        f"import pathlib; pathlib.Path({str(tmp_path / 'marker')!r}).touch()"
    )
    monkeypatch.syspath_prepend(tmp_path)
    metadata = json.loads((path / "data" / "metadata.json").read_text())
    for name in ("CartPole-v1", "hostile:CartPole-v1"):
        metadata["env_spec"] = EnvSpec(name, entry_point="hostile:Env").to_json()
        (path / "data" / "metadata.json").write_text(json.dumps(metadata))
        if ":" in name:
            with pytest.raises(DemonstrationError, match="give --env"):
                import_demos(path)
        else:
            assert only_episode(import_demos(path)).audit
    assert only_episode(import_demos(path, "CartPole-v1")).audit
    assert not (tmp_path / "marker").exists()


@ignore_user_warnings
@pytest.mark.parametrize(
    ("field", "what", "message"),
    [
        ("observations", {"shape": (10**12, 4), "dtype": "f4", "chunks": (99, 4)}, "cannot be"),
        ("rewards", {"shape": (10**9,), "dtype": "f8", "compression": "gzip"}, "cannot be"),
        ("actions", {"data": ["up"], "dtype": h5py.string_dtype()}, "cannot be object"),
        ("actions", {"data": [0, 1]}, "actions|observations"),
        ("actions", {"data": [9] * 5}, "actions|space"),
    ],
)
def test_hostile_hdf5_dataset_is_rejected(tmp_path, monkeypatch, field, what, message) -> None:
    path = make_minari_dataset(tmp_path, monkeypatch, gymnasium.make("CartPole-v1"))
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        del file[f"episode_0/{field}"]
        file.create_dataset(f"episode_0/{field}", **what)
    with pytest.raises(DemonstrationError, match=message):
        import_demos(path)


@ignore_user_warnings
def test_hdf5_external_links_are_not_followed(tmp_path, monkeypatch) -> None:
    path = make_minari_dataset(tmp_path, monkeypatch, gymnasium.make("CartPole-v1"))
    data = path / "data" / "main_data.hdf5"
    with h5py.File(tmp_path / "other.hdf5", "w") as file:
        file["rewards"] = np.zeros(3)
    with h5py.File(data, "a") as file:
        del file["episode_0/rewards"]
        file["episode_0/rewards"] = h5py.ExternalLink(str(tmp_path / "other.hdf5"), "rewards")
    with pytest.raises(DemonstrationError, match="has no rewards of its own"):
        import_demos(path)


def test_own_set_is_replayed_on_import(tmp_path: Path) -> None:
    def balance(env: Any) -> Callable[[], int]:
        return lambda: int(env.unwrapped.state[2] > 0)

    episodes, spec = collect_episodes("CartPole-v1", EnvConfig(), balance, range(2))
    path = save_episodes("mine-v0", episodes, spec, "me", tmp_path)
    imported = import_demos(path)
    assert [e.audit.verified for e in imported.episodes if e.audit] == [True, True]
    changed = [e.__class__(**{**e.__dict__, "seed": 9}) for e in episodes]
    path = save_episodes("other-v0", changed, spec, "me", tmp_path)
    with pytest.raises(DemonstrationError, match="episode 0: step 0: 4 of 4 values of the plane"):
        import_demos(path)
    assert len(import_demos(path, force=True).episodes) == 2


# Shared recordings, if present

RECORDED_SCORES = {
    "MontezumaRevenge.demo": 71_500,
    "MontezumaRevenge1.demo": 10_100,
    "PrivateEye.demo": 100_400,
    "Pitfall.demo": 48_990,
    "Gravitar.demo": 16_000,
    "Pong.demo": 5,
}


def import_recording(path: Path) -> tuple[str, float, bool, int]:
    """Import one file and return its name, score, whether it is verified, and steps."""
    episode = import_demos(path).episodes[0]
    assert episode.audit is not None
    return path.name, episode.score, episode.audit.verified, len(episode)


@pytest.mark.slow
def test_shared_recordings_reach_their_scores() -> None:
    """All .demo files, and the shortest action sequence of each game."""
    if not SHARED_DEMOS.is_dir():
        pytest.skip(f"no recordings at {SHARED_DEMOS}")
    claims = dict(RECORDED_SCORES)
    shortest: dict[str, tuple[int, Path]] = {}
    for path in sorted((SHARED_DEMOS / "episodes").glob("*.npz")):
        arrays = action_sequence.load_arrays(path)
        claims[path.name] = int(arrays["score"])
        candidate = (len(arrays["ale_actions"]), path)
        game = str(arrays["rom"])
        shortest[game] = min(shortest.get(game, candidate), candidate)
    assert len(claims) == 100
    files = [SHARED_DEMOS / name for name in RECORDED_SCORES] + [
        path for _, path in shortest.values()
    ]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        for name, score, verified, steps in pool.map(import_recording, files):
            assert (score, verified) == (claims[name], True), name
            assert steps > 100
