"""lookfurther demos: output, files and errors of each command."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import subprocess
import sys
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageSequence

from lookfurther.cli import demos
from lookfurther.cli.demos import formatting, generate, playback
from lookfurther.cli.main import main
from lookfurther.cli.tables import format_table
from lookfurther.config import EnvConfig
from lookfurther.demos import catalog, shipped, storage
from lookfurther.demos.episode import Audit, Episode, InputLog, best_episode_index
from lookfurther.demos.metadata import DemoSetDescription, Origin
from lookfurther.demos.playback import episode_from_log, play_log
from lookfurther.demos.verify import verify_episode
from lookfurther.envs import get_spec
from lookfurther.envs.emulator import Emulator
from lookfurther.errors import ConfigError, DemonstrationError, LookFurtherError
from lookfurther.report.contact_sheet import EpisodeRow, write_contact_sheet
from lookfurther.system import processes
from lookfurther.types import Spec
from lookfurther.video import encode
from lookfurther.video.encode import write_mp4

PONG, BREAKOUT = "ALE/Pong-v5", "ALE/Breakout-v5"
DEMOS_PAGE = Path(__file__).parents[1] / "docs" / "demonstrations.md"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty folder of datasets and a single process."""
    folder = tmp_path / "datasets"
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder))
    monkeypatch.setattr(processes, "count_cores", lambda: 1)
    return folder


def random_input_log(frames: int, seed: int) -> InputLog:
    """Random actions, each demo_set for five frames, with one RAM write."""
    rng = np.random.default_rng(seed)
    buttons = rng.integers(0, 6, frames).astype(np.uint8).repeat(5)[:frames]
    return InputLog(buttons, np.array([[frames // 2, 5, 7]], np.int32))


@lru_cache
def episode(frames: int = 202, seed: int = 0, env: str = PONG) -> Episode:
    played = episode_from_log(random_input_log(frames, seed), env)
    audit = verify_episode(played, get_spec(env, EnvConfig()), EnvConfig())
    return dataclasses.replace(played, audit=audit)


def save_demo_set(name: str, *episodes: Episode, env: str = PONG) -> list[Episode]:
    storage.save_episodes(name, episodes, get_spec(env, EnvConfig()), "a test")
    return list(episodes)


def run_command(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> str:
    """Run a command, check its exit code and return the output of both streams."""
    capsys.readouterr()
    assert main(["demos", *args]) == code
    output = capsys.readouterr()
    if code:
        assert output.err.count("\n") <= 1
    return output.out + output.err


def write_sequence(path: Path, frames: np.ndarray, **members: Any) -> Path:
    """Write an action sequence with NumPy, as documented."""
    path.parent.mkdir(exist_ok=True)
    arrays: dict[str, Any] = {"ale_actions": frames, "rom": "pong"} | members
    np.savez(path, **arrays)
    return path


# Dispatch


def test_usage_lists_commands_and_unknown_is_rejected(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_command(capsys, code=2) == run_command(capsys, "--help")
    for name in demos.COMMANDS.commands:
        assert re.search(rf"^  {name} .*[a-z]", demos.COMMANDS.format_usage(), re.M)
    assert "unknown command 'lost': choose one of list, show" in run_command(capsys, "lost", code=2)


@pytest.mark.parametrize("name", demos.COMMANDS.commands)
def test_command_help_and_unknown_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["demos", name, "--help"])
    assert end.value.code == 0
    assert f"usage: lookfurther demos {name} " in capsys.readouterr().out
    output = run_command(capsys, name, "--nonsense", code=2)
    assert re.match(
        r"lookfurther: (Unrecognized options: --nonsense|Missing value for arg)", output
    )


def test_list_and_show_do_not_import_torch(home: Path) -> None:
    """In a fresh process, because importing torch takes seconds."""
    save_demo_set("pong-v0", episode(40))
    script = (
        "import sys; from lookfurther.cli.main import main\n"
        "assert main(['demos', 'list']) == 0 and main(['demos', 'show', 'pong']) == 0\n"
        "sys.exit('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=DEMOS_PAGE.parents[1], check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "pong-v0" in done.stdout


# list and show


def test_list_prints_sets_and_read_errors(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert {line.split()[0] for line in run_command(capsys, "list").splitlines()[1:]} == {
        f"shipped/{name}" for name in shipped.list_names()
    }
    made = save_demo_set("my/pong-v0", episode(40), dataclasses.replace(episode(80, 1), audit=None))
    save_demo_set("other-v3", episode(40))
    (home / "other-v3" / "data" / "metadata.json").write_text("{")
    head, *lines = run_command(capsys, "list").splitlines()
    line, broken = (line for line in lines if not line.startswith("shipped/"))
    assert head.split() == ["set", "environment", "episodes", "steps", "best", "return", "verified"]
    top = formatting.format_number(max(e.score for e in made))
    assert line.split() == ["my/pong-v0", PONG, "2", "30", top, "1", "of", "2"]
    assert broken.startswith("other-v3 is not a readable demonstration set: ")


def test_show_describes_every_episode(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = episode(200), episode(302, 1)
    doubtful = Audit(False, 3.0, second.score, 4, 5, "the score is wrong")
    second = dataclasses.replace(second, audit=doubtful, rewards=second.rewards + 1)
    save_demo_set("pong-v0", first, second)
    summary = json.loads(run_command(capsys, "show", "pong", "--json"))
    assert [e["return"] for e in summary["episodes"]] == [first.score, second.score]
    assert [e["steps"] for e in summary["episodes"]] == [50, 76]
    assert [e["verified"] for e in summary["episodes"]] == [True, False]
    assert [e["frames"] for e in summary["episodes"]] == [200, 302]
    assert [e["ram_writes"] for e in summary["episodes"]] == [1, 1]
    assert summary["episodes"][1]["audit"] == dataclasses.asdict(doubtful)
    assert summary["best"] == 1
    assert (summary["environment"], summary["source"]) == (PONG, "a test")
    assert (summary["origin"]["game"], summary["origin"]["repeat"]) == ("pong", 4)
    text = run_command(capsys, "show", "pong")
    assert re.search(rf"^ +0 .* 50 .* yes .* {first.audit.ambiguous} ambiguous", text, re.M)  # type: ignore[union-attr]
    assert re.search(r"^ +1 .* 76 .* no +best  the score is wrong, 1 RAM write$", text, re.M)


def test_show_counts_all_actions(
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = save_demo_set("pong-v0", episode(200), episode(302, 1))
    summary = json.loads(run_command(capsys, "show", "pong", "--json"))
    taken = Counter(int(action) for e in made for action in e.actions)
    assert len(summary["actions"]) == 18
    assert list(summary["actions"])[:3] == ["NOOP", "FIRE", "UP"]
    assert list(summary["actions"].values()) == [taken[i] for i in range(18)]
    text = run_command(capsys, "show", "pong")
    for name, count in summary["actions"].items():
        assert bool(re.search(rf"^{name} +{count} ", text, re.M)) == (count > 0)


@given(st.dictionaries(st.text("abc", min_size=1), st.integers(0, 10**6), min_size=1))
def test_histogram_bars_are_proportional_to_counts(counts: dict[str, int]) -> None:
    counts["most"] = most = max(1, *counts.values())
    lines = formatting.format_histogram(counts).splitlines()[1:]
    assert [line.split()[0] for line in lines] == [name for name, n in counts.items() if n]
    bars = {line.split()[0]: line.count("█") for line in lines}
    assert bars["most"] == formatting.MAX_BAR_CHARS == max(bars.values())
    for name, bar in bars.items():
        assert abs(bar - formatting.MAX_BAR_CHARS * counts[name] / most) <= 1


def test_table_is_plain_and_never_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a narrow terminal with colours, and with cells that look like rich markup."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "20")
    rows = [("[red]a[/red]", "1", "x " * 35 + "x"), (":smile:", "1,000", "")]
    lines = format_table(("name", "count", "note"), rows, "<><").splitlines()
    assert lines == [
        "name          count  note",
        f"[red]a[/red]      1  {'x ' * 35}x",
        ":smile:       1,000",
    ]
    assert format_table((), rows[1:], "<><") == ":smile:  1,000"


def test_contact_sheet_places_every_frame(tmp_path: Path) -> None:
    """Frames of one colour each are found by their colour and area."""
    colours = [[(200, 10 * i, 30 * j) for j in range(4)] for i in range(2)]
    rows = [
        EpisodeRow(
            "a row", [np.full((30, 20, 3), c, np.uint8) for c in line], range(4), np.arange(4.0)
        )
        for line in colours
    ]
    write_contact_sheet("title", "subtitle", rows, {"NOOP": 3, "FIRE": 0}, tmp_path / "a.png")
    page = np.asarray(Image.open(tmp_path / "a.png").convert("RGB"))
    places = {c: np.argwhere((page == c).all(-1)) for line in colours for c in line}
    areas = [len(place) for place in places.values()]
    assert min(areas) > 0.98 * max(areas) > 10_000
    centres = [[places[c].mean(0) for c in line] for line in colours]
    assert all(np.diff([x for _, x in line]).min() > 100 for line in centres)
    assert all(np.ptp([y for y, _ in line]) < 2 for line in centres)
    assert centres[1][0][0] > centres[0][0][0] + 100
    with pytest.raises(LookFurtherError, match="the set is empty"):
        write_contact_sheet("title", "", [], {}, tmp_path / "b.png")


def test_show_sheet_is_in_colour(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_demo_set("pong-v0", episode(120))
    assert run_command(capsys, "show", "pong", "--sheet", str(tmp_path / "a.png")).endswith(
        "a.png\n"
    )
    page = np.asarray(Image.open(tmp_path / "a.png").convert("RGB")).reshape(-1, 3)
    court = np.array([144, 72, 17])  # Pong's brown, which the grey planes lack
    assert (np.abs(page - court.astype(int)).max(-1) < 3).mean() > 0.1
    out = run_command(capsys, "show", "pong", "--json", "--sheet", str(tmp_path / "b.png"))
    assert json.loads(out)["name"] == "pong-v0"


# Names of sets


@given(st.lists(st.tuples(st.sampled_from(["a", "a/b", "ab"]), st.integers(0, 12)), unique=True))
@settings(deadline=None)
def test_name_without_version_finds_newest(ids: list[tuple[str, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog, "_list_ids", lambda: (f"{name}-v{version}" for name, version in ids))
        for word in ("a", "a/b", "ab"):
            versions = [version for name, version in ids if name == word]
            if versions:
                assert catalog.find_set(word) == f"{word}-v{max(versions)}"
                assert catalog.find_set(f"{word}-v{min(versions)}") == f"{word}-v{min(versions)}"
            else:
                with pytest.raises(DemonstrationError, match=f"no demonstrations named {word}: "):
                    catalog.find_set(word)


def test_new_set_id_must_be_valid_and_unused(home: Path) -> None:
    assert catalog.new_set_id("montezuma") == "montezuma-v0"
    assert catalog.new_set_id("montezuma/human-v2") == "montezuma/human-v2"
    save_demo_set("pong-v0", episode(40))
    with pytest.raises(DemonstrationError, match="a set named pong-v0 exists"):
        catalog.new_set_id("pong")
    for wrong in ("", "a b", "../a", "/a", "a//b", "shipped/mine"):
        with pytest.raises(ConfigError):
            catalog.new_set_id(wrong)


def test_namespace_of_one_character_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    """Minari would not list such a set."""
    output = run_command(capsys, "search", "pong", "--name", "u/mz", code=2)
    assert "--name u/mz cannot name a set: take two characters or more before the first /" in output
    assert "take letters, digits, - and _" in run_command(
        capsys, "search", "pong", "--name", "a b", code=2
    )


def test_growing_set_is_newest_or_new(home: Path) -> None:
    assert catalog.growing_set_id("pong") == "pong-v0"
    save_demo_set("pong-v0", episode(40))
    save_demo_set("pong-v2", episode(40))
    assert catalog.growing_set_id("pong") == "pong-v2"
    assert catalog.growing_set_id("pong-v0") == "pong-v0"
    assert catalog.growing_set_id("pong-v1") == "pong-v1"


def test_name_without_version_is_saved_as_v0(home: Path) -> None:
    spec = get_spec(PONG, EnvConfig())
    place = storage.save_episodes("pong", [episode(40)], spec, "me")
    assert place == home / "pong-v0"
    storage.append_episodes("pong", [episode(80, 1)], spec, "me")
    assert len(storage.load_episodes("pong", spec)) == 2
    with pytest.raises(DemonstrationError, match="a set named pong-v0 exists"):
        storage.save_episodes("pong", [episode(40)], spec, "me")


def test_set_of_older_version_loads(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_demo_set("old-v0", episode(40))
    path = home / "old-v0" / "data" / "metadata.json"
    metadata = json.loads(path.read_text())
    summary = json.loads(metadata["lookfurther"])
    del summary["episodes"][0]["audit"]["checks"]
    for added in ("phase", "variant"):
        del summary["episodes"][0]["reel"][added]
    metadata["lookfurther"] = json.dumps(summary)
    del metadata["env_spec"]
    path.write_text(json.dumps(metadata))
    text = run_command(capsys, "show", "old")
    assert "equal: compared values unknown, the set is of an older version" in text
    log = catalog.open_set("old").episodes[0].input_log
    assert log is not None
    assert (log.phase, log.variant) == (0, (None, None))
    assert "old-v0: 1 episode, all equal" in run_command(capsys, "verify", "old")


def test_export_rejects_sticky_actions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sticky = EnvConfig(sticky_prob=0.25)
    storage.save_episodes("pong-v0", [episode(40)], get_spec(PONG, sticky), "me", env_config=sticky)
    output = run_command(capsys, "export", "pong", str(tmp_path / "a.npz"), code=4)
    assert "pong-v0 has sticky actions, which an action sequence cannot store" in output


def test_show_suggests_name_and_accepts_path(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_demo_set("pong-v0", episode(40))
    assert "no demonstrations named pomg: did you mean pong?" in run_command(
        capsys, "show", "pomg", code=4
    )
    assert json.loads(run_command(capsys, "show", str(home / "pong-v0"), "--json"))["steps"] == 10


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
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = write_sequence(tmp_path / "in" / "a.npz", np.zeros(40, np.uint8), score=0)
    write_sequence(tmp_path / "in" / "b.npz", np.zeros(40, np.uint8), score=3)
    output = run_command(capsys, "import", str(good.parent), "--name", "pong", code=4)
    assert "b.npz does not replay as recorded: the score is 0, recorded 3" in output
    assert not home.exists()
    run_command(capsys, "import", str(good.parent), "--name", "pong", "--force")
    summary = json.loads(run_command(capsys, "show", "pong", "--json"))
    assert [e["verified"] for e in summary["episodes"]] == [True, False]
    checked = run_command(capsys, "verify", "pong")
    assert (
        "episode 1: equal: 10 rewards, end, 11 observations, but imported by force: the sc"
        in checked
    )


def test_import_rejects_different_environments(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_sequence(tmp_path / "in" / "a.npz", np.zeros(8, np.uint8), score=0)
    write_sequence(tmp_path / "in" / "b.npz", np.zeros(8, np.uint8), score=0, rom="breakout")
    output = run_command(capsys, "import", str(tmp_path / "in"), "--name", "both", code=4)
    assert f"b.npz is of {BREAKOUT}, " in output
    assert f"a.npz of {PONG}" in output
    assert not home.exists()
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


# play


@given(st.integers(1, 5000), st.data(), st.floats(0.01, 1000), st.sampled_from([10.0, 15.0, 60.0]))
def test_select_steps_keeps_the_speed(
    length: int, data: st.DataObject, speed: float, rate: float
) -> None:
    begin = data.draw(st.integers(0, length - 1))
    end = data.draw(st.integers(begin + 1, length))
    options = playback.PlayOptions("a", Path("a.gif"), begin=begin, end=end, speed=speed)
    steps, fps = playback.select_steps(options, length, rate)
    assert steps[0] == begin
    assert set(np.diff(steps)) <= {math.ceil(rate * speed / playback.MAX_VIDEO_FPS)}
    assert steps[-1] <= end < steps[-1] + math.ceil(rate * speed / playback.MAX_VIDEO_FPS)
    assert 0 < fps <= playback.MAX_VIDEO_FPS
    if len(steps) > 1:
        seconds = (steps[1] - steps[0]) / rate  # of the game between two frames
        assert math.isclose(seconds * fps, speed)


def step_screens(log: InputLog, env: str) -> list[np.ndarray]:
    """The maximum of the last two frames of every step, computed directly."""
    emulator = Emulator(env)
    screens = [emulator.rgb_screen()]
    for _ in play_log(log, emulator):
        screens.append(emulator.rgb_screen())
    ends = [*range(4, len(screens), 4)] + ([len(screens) - 1] if (len(screens) - 1) % 4 else [])
    return [screens[0], *(np.maximum(screens[i - 1], screens[i]) for i in ends)]


def test_gif_shows_emulator_colours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = save_demo_set("pong-v0", episode(40, 3), episode(201))
    out = tmp_path / "a.gif"
    args = ("play", "pong", str(out), "--episode", "1", "--scale", "1")
    assert "a.gif: pong-v0, episode 1, return 0, steps 0 to 51" in run_command(capsys, *args)
    expected = step_screens(made[1].input_log, PONG)  # type: ignore[arg-type]
    assert len(expected) == 52
    time, moments = 0.0, {}
    with Image.open(out) as video:
        for frame in ImageSequence.Iterator(video):  # equal frames in a row are one
            moments[round(time * 15)] = np.asarray(frame.convert("RGB"))[:210]
            time += frame.info["duration"] / 1000
    assert abs(time - 52 / 15) < 0.02
    assert all((picture == expected[step]).all() for step, picture in moments.items())
    assert len(moments) > 20


def test_mp4_has_every_selected_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    av = pytest.importorskip("av")
    made = save_demo_set("pong-v0", episode(202))
    out = tmp_path / "a.mp4"
    run_command(capsys, "play", "pong", str(out), "--begin", "10", "--end", "40", "--speed", "2")
    expected = step_screens(made[0].input_log, PONG)[10:41]  # type: ignore[arg-type]
    with av.open(out) as video:
        stream = video.streams.video[0]
        assert (stream.average_rate, stream.width) == (30, 320)
        shown = [frame.to_ndarray(format="rgb24")[:420:2, ::2] for frame in video.decode(video=0)]
    assert len(shown) == 31
    for picture, wanted in zip(shown, expected, strict=True):
        assert np.abs(picture.astype(int) - wanted).mean() < 6  # H.264 loses a little


def test_failed_mp4_leaves_no_file(tmp_path: Path) -> None:
    pytest.importorskip("av")

    def frames() -> Any:
        yield np.zeros((31, 21, 3), np.uint8)
        yield np.zeros((30, 21, 3), np.uint8)

    with pytest.raises(LookFurtherError, match="all must be uint8"):
        write_mp4(frames(), tmp_path / "a.mp4", 10)
    with pytest.raises(LookFurtherError, match="no frames"):
        write_mp4([], tmp_path / "a.mp4", 10)
    with pytest.raises(LookFurtherError, match="fps must be"):
        write_mp4(frames(), tmp_path / "a.mp4", 0)
    assert list(tmp_path.iterdir()) == []


def test_unverified_episode_is_drawn_from_planes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A colour replay of a forced import could differ from its planes."""
    shown = dataclasses.replace(episode(20), audit=None)
    save_demo_set("pong-v0", shown)
    run_command(capsys, "play", "pong", str(tmp_path / "a.gif"), "--scale", "1")
    with Image.open(tmp_path / "a.gif") as video:
        picture = np.asarray(video.convert("RGB"))[:84]
    assert (picture == shown.planes[0, 0][..., None]).all()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["a.avi"], "a.avi must end in .gif or .mp4"),
        (["a.gif", "--episode", "1"], "pong-v0 has episodes 0 ... 0, not 1"),
        (["a.gif", "--begin", "10"], "--begin and --end must be in 0 ... 10"),
        (["a.gif", "--speed", "0"], "--speed must be above 0"),
    ],
)
def test_play_rejects_invalid_options(
    args: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save_demo_set("pong-v0", episode(40))
    assert message in run_command(capsys, "play", "pong", *args, code=2)


def test_play_checks_output_before_reading_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    nowhere = str(tmp_path / "file" / "a.gif")
    assert "a.gif cannot be written" in run_command(capsys, "play", "none", nowhere, code=2)
    monkeypatch.setitem(sys.modules, "av", None)
    assert "MP4 needs PyAV" in run_command(capsys, "play", "none", str(tmp_path / "a.mp4"), code=2)


def test_play_rejects_too_long_gif(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(encode, "MAX_GIF_FRAMES", 10)
    save_demo_set("pong-v0", episode(40))
    assert "11 pictures are too many for a GIF" in run_command(
        capsys, "play", "pong", "a.gif", code=2
    )


# search, bot, agent


@pytest.mark.parametrize(
    ("word", "env"),
    [
        ("MontezumaRevenge", "ALE/MontezumaRevenge-v5"),
        ("montezuma_revenge", "ALE/MontezumaRevenge-v5"),
        ("ALE/MontezumaRevenge-v5", "ALE/MontezumaRevenge-v5"),
        ("pong", PONG),
        ("Pong", PONG),
        ("ms_pacman", "ALE/MsPacman-v5"),
    ],
)
def test_to_env_id_accepts_several_spellings(word: str, env: str) -> None:
    assert generate.to_env_id(word) == env


def test_search_saves_found_episodes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from lookfurther.demos import go_explore

    def found(options: go_explore.SearchConfig, report: Any) -> list[Episode]:
        assert options == go_explore.SearchConfig(PONG, 500, 1.5, 1, 7, 2)
        report(go_explore.SearchProgress(250, 1.0, 3, 21.0, 4))
        report(go_explore.SearchProgress(300, 1.1, 3, 21.0, 4))
        return [episode(40), episode(80, 1)]

    monkeypatch.setattr(go_explore, "run_search", found)
    search_args = [
        "--frames",
        "500",
        "--minutes",
        "1.5",
        "--processes",
        "1",
        "--seed",
        "7",
        "--episodes",
        "2",
    ]
    out = run_command(capsys, "search", "pong", "--name", "pong", *search_args)
    assert out.count("best return 21 after 4 steps") == 1
    demo_set = catalog.open_set("pong")
    assert (len(demo_set.episodes), demo_set.description.author) == (2, "search of 500 frames")
    assert "frames must be at least 1" in run_command(
        capsys, "search", "pong", "--name", "x", "--frames", "0", code=2
    )


def test_bot_records_verified_episodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("minigrid")
    level = "BabyAI-GoToLocal-v0"
    out = run_command(capsys, "bot", level, "--name", "local", "--episodes", "2", "--seed", "5")
    assert "train with --environment.wrappers lookfurther.envs.minigrid:OneHotGrid" in out
    summary = json.loads(run_command(capsys, "show", "local", "--json"))
    assert [(e["seed"], e["verified"], e["terminal"]) for e in summary["episodes"]] == [
        (5, True, True),
        (6, True, True),
    ]
    assert min(e["return"] for e in summary["episodes"]) > 0
    run_command(capsys, "verify", "local")
    run_command(capsys, "play", "local", str(tmp_path / "a.gif"))
    chosen = summary["episodes"][summary["best"]]
    with Image.open(tmp_path / "a.gif") as video:
        assert len(list(ImageSequence.Iterator(video))) == chosen["steps"] + 1
    assert "EmptyEnv is not a BabyAI level" in run_command(
        capsys, "bot", "MiniGrid-Empty-5x5-v0", "--name", "x", code=4
    )
    assert "at least 1" in run_command(
        capsys, "bot", level, "--name", "x", "--episodes", "0", code=2
    )
    for env, name in ((PONG, "pong"), ("CartPole-v1", "CartPoleEnv")):
        output = run_command(capsys, "bot", env, "--name", "x", code=4)
        assert f"{name} is not a BabyAI level, and the bot plays only those" in output


@pytest.mark.slow
def test_agent_records_verified_episodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from lookfurther import preset, train

    config = preset(
        "no-demos",
        "small",
        env="CartPole-v1",
        run__steps=200,
        run__folder=str(tmp_path / "run"),
        actor__lanes=2,
        replay__learning_starts=50,
        replay__capacity=1000,
        run__device="cpu",
    )
    train(config)
    run = str(tmp_path / "run")
    run_command(capsys, "agent", run, "--name", "cart", "--episodes", "2", "--epsilon", "1")
    demo_set = catalog.open_set("cart")
    assert [e.is_verified for e in demo_set.description.episodes] == [True, True]
    assert demo_set.description.author == f"the agent of {run}"
    assert best_episode_index(demo_set.episodes) in (0, 1)
    spec = get_spec("CartPole-v1", EnvConfig())
    assert len(catalog.load_set("cart", spec, EnvConfig())) == 2
    assert "holds no checkpoint" in run_command(
        capsys, "agent", str(tmp_path), "--name", "x", code=5
    )
    assert "epsilon must be 0 ... 1" in run_command(
        capsys, "agent", run, "--name", "x", "--epsilon", "2", code=2
    )


# Shipped sets


def test_shipped_set_is_listed_and_verified(capsys: pytest.CaptureFixture[str]) -> None:
    from lookfurther.demos import shipped

    if not shipped.list_names():
        pytest.skip("nothing is shipped")
    name = f"shipped/{shipped.list_names()[0]}"
    assert f"{name} " in run_command(capsys, "list")
    assert f"{name}: 1 episode, all equal" in run_command(capsys, "verify", name)
    demo_set = catalog.open_set(name)
    assert (
        catalog.load_set(name, demo_set.description.spec, EnvConfig())[0].score
        == demo_set.episodes[0].score
    )
    other = demo_set.description.spec._replace(env="ALE/Tennis-v5")
    with pytest.raises(DemonstrationError, match="the training environment is ALE/Tennis-v5"):
        catalog.load_set(name, other, EnvConfig())
