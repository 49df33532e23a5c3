"""Action sequences are imported and replayed."""

from __future__ import annotations

import io
import pickle
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lookfurther.demos.episode import Episode
from lookfurther.demos.importers import action_sequence, import_demos
from lookfurther.demos.playback import episode_from_log
from lookfurther.errors import DemonstrationError
from tests.imported_demos import assert_verified, only_episode
from tests.sample_recordings import FIRST_WRITE, GAME, NUM_FRAMES, asterix_recording, write_demo

pytest.importorskip("ale_py")


@pytest.fixture(scope="module")
def episode(tmp_path_factory: pytest.TempPathFactory) -> Episode:
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
