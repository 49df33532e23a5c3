"""Demonstrations of openai/atari-demo are imported, repaired and replayed."""

from __future__ import annotations

import os
import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lookfurther.demos.importers import atari_demo, import_demos
from lookfurther.errors import DemonstrationError
from tests.imported_demos import assert_verified, only_episode
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
