"""lookfurther demos import, export, merge and verify."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest

from lookfurther.demos import catalog, storage
from lookfurther.demos.metadata import DemoSetDescription, Origin
from lookfurther.errors import ConfigError, DemonstrationError
from lookfurther.system import processes
from lookfurther.types import Spec
from tests.demo_commands import BREAKOUT, PONG, episode, run_command, save_demo_set, write_sequence

pytestmark = pytest.mark.usefixtures("datasets_home")


DEMOS_PAGE = Path(__file__).parents[1] / "docs" / "demonstrations.md"


# import, export, merge


def test_import_replays_and_saves_audit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = episode(202)
    file = write_sequence(
        tmp_path / "mine.npz",
        shown.input_log.frame_actions,  # type: ignore[union-attr]
        score=shown.score,
        ram_patch=[[5, 7]],
        patch_frame=101,
    )
    out = run_command(capsys, "import", str(file), "--name", "pong/mine")
    assert "mine.npz: return 0, 51 steps, phase 0; equal: score, 21 ambiguous steps\n" in out
    assert "pong/mine-v0: 1 episode, best return 0, in " in out
    demo_set = catalog.open_set("pong/mine")
    assert demo_set.description.author == "import of mine.npz"
    assert demo_set.episodes[0].planes.tobytes() == shown.planes.tobytes()
    assert demo_set.episodes[0].input_log.ram_writes.tolist() == [[101, 5, 7]]  # type: ignore[union-attr]


def test_import_mismatch_rejected_or_marked_when_forced(
    datasets_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = write_sequence(tmp_path / "in" / "a.npz", np.zeros(40, np.uint8), score=0)
    write_sequence(tmp_path / "in" / "b.npz", np.zeros(40, np.uint8), score=3)
    output = run_command(capsys, "import", str(good.parent), "--name", "pong", code=4)
    assert "b.npz does not replay as recorded: the score is 0, recorded 3" in output
    assert not datasets_home.exists()
    run_command(capsys, "import", str(good.parent), "--name", "pong", "--force")
    summary = json.loads(run_command(capsys, "show", "pong", "--json"))
    assert [e["verified"] for e in summary["episodes"]] == [True, False]
    checked = run_command(capsys, "verify", "pong")
    assert (
        "episode 1: equal: 10 rewards, end, 11 observations, but imported by force: the sc"
        in checked
    )


def test_import_rejects_different_environments(
    datasets_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_sequence(tmp_path / "in" / "a.npz", np.zeros(8, np.uint8), score=0)
    write_sequence(tmp_path / "in" / "b.npz", np.zeros(8, np.uint8), score=0, rom="breakout")
    output = run_command(capsys, "import", str(tmp_path / "in"), "--name", "both", code=4)
    assert f"b.npz is of {BREAKOUT}, " in output
    assert f"a.npz of {PONG}" in output
    assert not datasets_home.exists()
    (tmp_path / "empty").mkdir()
    assert "holds no .demo, .npz, .hdf5 file" in run_command(
        capsys, "import", str(tmp_path / "empty"), "--name", "x", code=4
    )
    assert "needs a file" in run_command(capsys, "import", "--name", "x", code=2)


def test_export_then_import_is_bit_equal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = save_demo_set("pong-v0", episode(202), episode(303, 1))
    out = tmp_path / "out" / "pong.npz"
    assert "in " + str(catalog.set_path("pong-v0")) in run_command(
        capsys, "export", "pong", str(out)
    )
    assert sorted(p.name for p in out.parent.iterdir()) == ["pong-0.npz", "pong-1.npz"]
    run_command(capsys, "import", str(out.parent), "--name", "again")
    for one, two in zip(made, catalog.open_set("again").episodes, strict=True):
        assert one.planes.tobytes() == two.planes.tobytes()
        assert one.rewards.tobytes() == two.rewards.tobytes()
        assert one.input_log.frame_actions.tobytes() == two.input_log.frame_actions.tobytes()  # type: ignore[union-attr]
        assert one.input_log.ram_writes.tolist() == two.input_log.ram_writes.tolist()  # type: ignore[union-attr]
    assert "must end in .npz" in run_command(capsys, "export", "pong", "a.txt", code=2)


def test_merge_keeps_order_and_rejects_other_games(
    capsys: pytest.CaptureFixture[str],
) -> None:
    save_demo_set("one-v0", episode(40), episode(80, 1))
    save_demo_set("two-v0", episode(120, 2))
    save_demo_set("breakout-v0", episode(40, env=BREAKOUT), env=BREAKOUT)
    run_command(capsys, "merge", "two", "one", "--name", "all")
    demo_set = catalog.open_set("all")
    assert list(map(len, demo_set.episodes)) == [30, 10, 20]
    assert all(e.is_verified for e in demo_set.description.episodes)
    output = run_command(capsys, "merge", "one", "breakout", "--name", "mixed", code=4)
    assert "breakout-v0 has game 'breakout', the others 'pong'" in output
    assert "merge needs the names" in run_command(capsys, "merge", "--name", "x", code=2)


def test_documented_action_sequence_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"^```python\n(.*?)^```", DEMOS_PAGE.read_text(), re.M | re.S)
    exec(code, {})
    out = run_command(capsys, "import", "idle.npz", "--name", "idle")
    assert "idle.npz: return 0, 900 steps, phase 0; equal: score\n" in out


# verify


def test_verify_prints_equal_or_first_difference(
    capsys: pytest.CaptureFixture[str],
) -> None:
    good = episode(200)
    planes = good.planes.copy()
    planes[7, 0, 3, 4] ^= 1
    rewards = good.rewards.copy()
    rewards[20] += 1
    save_demo_set("good-v0", good)
    save_demo_set("bad-v0", dataclasses.replace(good, planes=planes, rewards=rewards), good)
    assert "good-v0: 1 episode, all equal" in run_command(capsys, "verify", "good")
    out = run_command(capsys, "verify", "good", "bad", code=4)
    assert "bad-v0, episode 0: step 7: 1 of 7056 values of the plane differ" in out
    assert "bad-v0, episode 1: equal: 50 rewards, end, 51 observations" in out
    assert "bad-v0: 2 episodes, 1 of them not equal" in out
    assert "verify needs the name" in run_command(capsys, "verify", code=2)


@pytest.mark.slow
def test_verify_with_processes_prints_the_same(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    good = episode(200)
    save_demo_set(
        "pong-v0", good, dataclasses.replace(good, rewards=good.rewards + 1), episode(300, 1)
    )
    alone = run_command(capsys, "verify", "pong", code=4)
    monkeypatch.setattr(processes, "count_cores", lambda: 2)
    assert run_command(capsys, "verify", "pong", code=4) == alone


def make_description(wrappers: tuple[str, ...]) -> DemoSetDescription:
    origin = Origin("", (), 1, 0.0, "", "", wrappers, "hwc")
    return DemoSetDescription(Spec("CartPole-v1", (4,), 1, "float32", 2, 1.0), "", origin, ())


@pytest.mark.parametrize(
    "wrapper", ["os:system", "gymnasium:make", "gymnasium.wrappersx:A", "json"]
)
def test_set_cannot_import_untrusted_modules(wrapper: str) -> None:
    module = wrapper.partition(":")[0]
    with pytest.raises(DemonstrationError, match=f"give --modules {re.escape(module)}"):
        storage.trusted_env_config(make_description((wrapper,)))
    with pytest.raises(ConfigError, match=r"--modules no\.such\.module"):
        storage.trusted_env_config(make_description(()), ["no.such.module"])


def test_trusted_wrappers_are_accepted() -> None:
    known = ("gymnasium.wrappers:FlattenObservation", "lookfurther.envs.minigrid:OneHotGrid")
    assert storage.trusted_env_config(make_description(known)).wrappers == known
    assert storage.trusted_env_config(make_description(("json:loads",)), ["json"]).wrappers == (
        "json:loads",
    )
