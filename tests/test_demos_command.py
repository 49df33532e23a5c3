"""lookfurther demos: what each subcommand prints, writes and refuses."""

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
    """An empty folder of datasets; work stays in this process."""
    folder = tmp_path / "datasets"
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder))
    monkeypatch.setattr(processes, "count_cores", lambda: 1)
    return folder


def random_input_log(frames: int, seed: int) -> InputLog:
    """Random buttons, each held for a few frames, with a RAM write in between."""
    rng = np.random.default_rng(seed)
    buttons = rng.integers(0, 6, frames).astype(np.uint8).repeat(5)[:frames]
    return InputLog(buttons, np.array([[frames // 2, 5, 7]], np.int32))


@lru_cache
def episode(frames: int = 202, seed: int = 0, env: str = PONG) -> Episode:
    shown = episode_from_log(random_input_log(frames, seed), env)
    return dataclasses.replace(
        shown, audit=verify_episode(shown, get_spec(env, EnvConfig()), EnvConfig())
    )


def save_demo_set(name: str, *episodes: Episode, env: str = PONG) -> list[Episode]:
    storage.save_episodes(name, episodes, get_spec(env, EnvConfig()), "a test")
    return list(episodes)


def run_command(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """What a command that ends with `code` prints, on either stream."""
    capsys.readouterr()
    assert main(["demos", *words]) == code
    said = capsys.readouterr()
    if code:
        assert said.err.count("\n") <= 1
    return said.out + said.err


def write_sequence(path: Path, frames: np.ndarray, **members: Any) -> Path:
    """An action sequence as the page says, by its own means."""
    path.parent.mkdir(exist_ok=True)
    np.savez(path, ale_actions=frames, **({"rom": "pong"} | members))
    return path


# The command itself


def test_the_subcommands_are_printed_and_no_others_are_known(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_command(capsys, code=2) == run_command(capsys, "--help")
    for name in demos.SUBCOMMANDS:
        assert re.search(rf"^  {name} .*[a-z]", demos.format_usage(), re.M)
    assert "no command 'lost': choose one of list, show" in run_command(capsys, "lost", code=2)


@pytest.mark.parametrize("name", demos.SUBCOMMANDS)
def test_help_and_unknown_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["demos", name, "--help"])
    assert end.value.code == 0
    assert f"usage: lookfurther demos {name} " in capsys.readouterr().out
    said = run_command(capsys, name, "--nonsense", code=2)
    assert re.match(r"lookfurther: (Unrecognized options: --nonsense|Missing value for arg)", said)


def test_list_and_show_do_not_import_torch(home: Path) -> None:
    """In a fresh process: it takes seconds."""
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


def test_list_has_a_line_for_each_set_and_the_reason_for_each_broken_one(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
    assert broken.startswith("other-v3 is not a readable set of ours: ")


def test_show_says_of_each_episode_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = episode(200), episode(302, 1)
    doubtful = Audit(False, 3.0, second.score, 4, 5, "the score is wrong")
    second = dataclasses.replace(second, audit=doubtful, rewards=second.rewards + 1)
    save_demo_set("pong-v0", first, second)
    facts = json.loads(run_command(capsys, "show", "pong", "--json"))
    assert [e["return"] for e in facts["episodes"]] == [first.score, second.score]
    assert [e["steps"] for e in facts["episodes"]] == [50, 76]
    assert [e["verified"] for e in facts["episodes"]] == [True, False]
    assert [e["frames"] for e in facts["episodes"]] == [200, 302]
    assert [e["ram_writes"] for e in facts["episodes"]] == [1, 1]
    assert facts["episodes"][1]["audit"] == dataclasses.asdict(doubtful)
    assert facts["best"] == 1
    assert (facts["environment"], facts["source"]) == (PONG, "a test")
    assert (facts["origin"]["game"], facts["origin"]["repeat"]) == ("pong", 4)
    text = run_command(capsys, "show", "pong")
    assert re.search(rf"^ +0 .* 50 .* yes .* {first.audit.ambiguous} ambiguous", text, re.M)  # type: ignore[union-attr]
    assert re.search(r"^ +1 .* 76 .* no +best  the score is wrong, 1 RAM write$", text, re.M)


def test_the_histogram_counts_every_action_of_every_episode(
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = save_demo_set("pong-v0", episode(200), episode(302, 1))
    facts = json.loads(run_command(capsys, "show", "pong", "--json"))
    taken = Counter(int(action) for e in made for action in e.actions)
    assert len(facts["actions"]) == 18
    assert list(facts["actions"])[:3] == ["NOOP", "FIRE", "UP"]
    assert list(facts["actions"].values()) == [taken[i] for i in range(18)]
    text = run_command(capsys, "show", "pong")
    for name, count in facts["actions"].items():
        assert bool(re.search(rf"^{name} +{count} ", text, re.M)) == (count > 0)


@given(st.dictionaries(st.text("abc", min_size=1), st.integers(0, 10**6), min_size=1))
def test_a_histogram_has_the_longest_bar_for_the_most_frequent(counts: dict[str, int]) -> None:
    counts["most"] = most = max(1, *counts.values())
    lines = formatting.format_histogram(counts).splitlines()[1:]
    assert [line.split()[0] for line in lines] == [name for name, n in counts.items() if n]
    bars = {line.split()[0]: line.count("█") for line in lines}
    assert bars["most"] == formatting.MAX_BAR_CHARS == max(bars.values())
    for name, bar in bars.items():
        assert abs(bar - formatting.MAX_BAR_CHARS * counts[name] / most) <= 1


def test_a_sheet_holds_every_picture_at_its_place(tmp_path: Path) -> None:
    """Pictures of one colour each: their colours and areas are found again."""
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


def test_show_draws_the_best_episodes_in_colour(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_demo_set("pong-v0", episode(120))
    assert run_command(capsys, "show", "pong", "--sheet", str(tmp_path / "a.png")).endswith(
        "a.png\n"
    )
    page = np.asarray(Image.open(tmp_path / "a.png").convert("RGB")).reshape(-1, 3)
    court = np.array([144, 72, 17])  # Pong's brown, which the grey planes lack
    assert (np.abs(page - court.astype(int)).max(-1) < 3).mean() > 0.1
    out = run_command(capsys, "show", "pong", "--json", "--sheet", str(tmp_path / "b.png"))
    assert json.loads(out)["name"] == "pong-v0"


# Names


@given(st.lists(st.tuples(st.sampled_from(["a", "a/b", "ab"]), st.integers(0, 12)), unique=True))
@settings(deadline=None)
def test_a_name_without_version_is_the_newest(ids: list[tuple[str, int]]) -> None:
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


def test_a_new_set_needs_a_name_that_minari_takes_and_nobody_has(home: Path) -> None:
    assert catalog.new_set_id("montezuma") == "montezuma-v0"
    assert catalog.new_set_id("montezuma/human-v2") == "montezuma/human-v2"
    save_demo_set("pong-v0", episode(40))
    with pytest.raises(DemonstrationError, match="a set named pong-v0 exists"):
        catalog.new_set_id("pong")
    for wrong in ("", "a b", "../a", "/a", "a//b", "shipped/mine"):
        with pytest.raises(ConfigError):
            catalog.new_set_id(wrong)


def test_a_namespace_of_one_character_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Minari would not list such a set."""
    said = run_command(capsys, "search", "pong", "--name", "u/mz", code=2)
    assert "--name u/mz cannot name a set: take two characters or more before the first /" in said
    assert "take letters, digits, - and _" in run_command(
        capsys, "search", "pong", "--name", "a b", code=2
    )


def test_a_set_that_grows_is_the_newest_of_its_name_or_a_new_one(home: Path) -> None:
    assert catalog.growing_set_id("pong") == "pong-v0"
    save_demo_set("pong-v0", episode(40))
    save_demo_set("pong-v2", episode(40))
    assert catalog.growing_set_id("pong") == "pong-v2"
    assert catalog.growing_set_id("pong-v0") == "pong-v0"
    assert catalog.growing_set_id("pong-v1") == "pong-v1"


def test_a_name_without_version_is_stored_as_version_0(home: Path) -> None:
    spec = get_spec(PONG, EnvConfig())
    place = storage.save_episodes("pong", [episode(40)], spec, "me")
    assert place == home / "pong-v0"
    storage.append_episodes("pong", [episode(80, 1)], spec, "me")
    assert len(storage.load_episodes("pong", spec)) == 2
    with pytest.raises(DemonstrationError, match="a set named pong-v0 exists"):
        storage.save_episodes("pong", [episode(40)], spec, "me")


def test_a_set_of_an_older_version_loads_and_says_what_it_does_not_know(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_demo_set("old-v0", episode(40))
    path = home / "old-v0" / "data" / "metadata.json"
    metadata = json.loads(path.read_text())
    facts = json.loads(metadata["lookfurther"])
    del facts["episodes"][0]["audit"]["checks"]
    for added in ("phase", "variant"):
        del facts["episodes"][0]["reel"][added]
    metadata["lookfurther"] = json.dumps(facts)
    del metadata["env_spec"]
    path.write_text(json.dumps(metadata))
    text = run_command(capsys, "show", "old")
    assert "equal: unknown in what, the set is of an older version" in text
    tape_of = catalog.open_set("old").episodes[0].input_log
    assert tape_of is not None
    assert (tape_of.phase, tape_of.variant) == (0, (None, None))
    assert "old-v0: 1 episode, all equal" in run_command(capsys, "verify", "old")


def test_an_export_of_sticky_actions_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sticky = EnvConfig(sticky_prob=0.25)
    storage.save_episodes("pong-v0", [episode(40)], get_spec(PONG, sticky), "me", env_config=sticky)
    said = run_command(capsys, "export", "pong", str(tmp_path / "a.npz"), code=4)
    assert "pong-v0 has sticky actions, which no action sequence can say" in said


def test_a_misspelt_name_and_a_path(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_demo_set("pong-v0", episode(40))
    assert "no demonstrations named pomg: did you mean pong?" in run_command(
        capsys, "show", "pomg", code=4
    )
    assert json.loads(run_command(capsys, "show", str(home / "pong-v0"), "--json"))["steps"] == 10


# import, export, merge


def test_an_import_is_replayed_named_and_audited(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = episode(202)
    file = write_sequence(
        tmp_path / "mine.npz",
        shown.input_log.frame_actions,  # type: ignore[union-attr]
        score=shown.score,
        ram_patch=[[5, 7]],
        patch_frame=101,
    )
    out = run_command(capsys, "import", str(file), "--name", "pong/mine")
    assert "mine.npz: return 0, 51 steps, phase 0; equal: score, 21 ambiguous blocks\n" in out
    assert "pong/mine-v0: 1 episode, best return 0, in " in out
    held = catalog.open_set("pong/mine")
    assert held.description.author == "import of mine.npz"
    assert held.episodes[0].planes.tobytes() == shown.planes.tobytes()
    assert held.episodes[0].input_log.ram_writes.tolist() == [[101, 5, 7]]  # type: ignore[union-attr]


def test_a_mismatch_is_refused_unless_forced_and_then_marked(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = write_sequence(tmp_path / "in" / "a.npz", np.zeros(40, np.uint8), score=0)
    write_sequence(tmp_path / "in" / "b.npz", np.zeros(40, np.uint8), score=3)
    said = run_command(capsys, "import", str(good.parent), "--name", "pong", code=4)
    assert "b.npz does not replay as recorded: the score is 0, recorded 3" in said
    assert not home.exists()
    run_command(capsys, "import", str(good.parent), "--name", "pong", "--force")
    facts = json.loads(run_command(capsys, "show", "pong", "--json"))
    assert [e["verified"] for e in facts["episodes"]] == [True, False]
    checked = run_command(capsys, "verify", "pong")
    assert (
        "episode 1: equal: 10 rewards, end, 11 observations, but imported by force: the sc"
        in checked
    )


def test_one_import_is_of_one_environment(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_sequence(tmp_path / "in" / "a.npz", np.zeros(8, np.uint8), score=0)
    write_sequence(tmp_path / "in" / "b.npz", np.zeros(8, np.uint8), score=0, rom="breakout")
    said = run_command(capsys, "import", str(tmp_path / "in"), "--name", "both", code=4)
    assert f"b.npz is of {BREAKOUT}, " in said
    assert f"a.npz of {PONG}" in said
    assert not home.exists()
    (tmp_path / "empty").mkdir()
    assert "holds none of" in run_command(
        capsys, "import", str(tmp_path / "empty"), "--name", "x", code=4
    )
    assert "needs a file" in run_command(capsys, "import", "--name", "x", code=2)


def test_an_export_comes_back_bit_for_bit(
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


def test_sets_merge_in_the_order_given_if_they_are_alike(
    capsys: pytest.CaptureFixture[str],
) -> None:
    save_demo_set("one-v0", episode(40), episode(80, 1))
    save_demo_set("two-v0", episode(120, 2))
    save_demo_set("breakout-v0", episode(40, env=BREAKOUT), env=BREAKOUT)
    run_command(capsys, "merge", "two", "one", "--name", "all")
    held = catalog.open_set("all")
    assert list(map(len, held.episodes)) == [30, 10, 20]
    assert all(e.is_verified for e in held.description.episodes)
    said = run_command(capsys, "merge", "one", "breakout", "--name", "mixed", code=4)
    assert "breakout-v0 has game 'breakout', the others 'pong'" in said
    assert "merge needs the names" in run_command(capsys, "merge", "--name", "x", code=2)


def test_the_example_of_the_page_is_an_action_sequence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"^```python\n(.*?)^```", DEMOS_PAGE.read_text(), re.M | re.S)
    exec(code, {})
    out = run_command(capsys, "import", "idle.npz", "--name", "idle")
    assert "idle.npz: return 0, 900 steps, phase 0; equal: score\n" in out


# verify


def test_verify_says_equal_or_names_the_first_difference(
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
def test_processes_find_what_one_finds(
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
def test_a_set_cannot_choose_what_is_imported(wrapper: str) -> None:
    module = wrapper.partition(":")[0]
    with pytest.raises(DemonstrationError, match=f"give --modules {re.escape(module)}"):
        catalog.trusted_env_config(make_description((wrapper,)))
    with pytest.raises(ConfigError, match=r"--modules no\.such\.module"):
        catalog.trusted_env_config(make_description(()), ["no.such.module"])


def test_known_wrappers_and_those_the_user_names_are_taken() -> None:
    known = ("gymnasium.wrappers:FlattenObservation", "lookfurther.envs.minigrid:OneHotGrid")
    assert catalog.trusted_env_config(make_description(known)).wrappers == known
    assert catalog.trusted_env_config(make_description(("json:loads",)), ["json"]).wrappers == (
        "json:loads",
    )


# play


@given(st.integers(1, 5000), st.data(), st.floats(0.01, 1000), st.sampled_from([10.0, 15.0, 60.0]))
def test_an_animation_keeps_the_speed_asked_for(
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
        shown = (steps[1] - steps[0]) / rate  # seconds of the game between two pictures
        assert math.isclose(shown * fps, speed)


def step_screens(tape: InputLog, env: str) -> list[np.ndarray]:
    """The brighter of each step's last two frames, all of them, by hand."""
    emulator = Emulator(env)
    seen = [emulator.rgb_screen()]
    for _ in play_log(tape, emulator):
        seen.append(emulator.rgb_screen())
    ends = [*range(4, len(seen), 4)] + ([len(seen) - 1] if (len(seen) - 1) % 4 else [])
    return [seen[0], *(np.maximum(seen[i - 1], seen[i]) for i in ends)]


def test_a_gif_shows_the_emulators_colours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = save_demo_set("pong-v0", episode(40, 3), episode(201))
    out = tmp_path / "a.gif"
    words = ("play", "pong", str(out), "--episode", "1", "--scale", "1")
    assert "a.gif: pong-v0, episode 1, return 0, steps 0 to 51" in run_command(capsys, *words)
    expected = step_screens(made[1].input_log, PONG)  # type: ignore[arg-type]
    assert len(expected) == 52
    time, moments = 0.0, {}
    with Image.open(out) as film:
        for frame in ImageSequence.Iterator(film):  # equal frames in a row are one
            moments[round(time * 15)] = np.asarray(frame.convert("RGB"))[:210]
            time += frame.info["duration"] / 1000
    assert abs(time - 52 / 15) < 0.02
    assert all((picture == expected[step]).all() for step, picture in moments.items())
    assert len(moments) > 20


def test_a_film_has_every_step_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    av = pytest.importorskip("av")
    made = save_demo_set("pong-v0", episode(202))
    out = tmp_path / "a.mp4"
    run_command(capsys, "play", "pong", str(out), "--begin", "10", "--end", "40", "--speed", "2")
    expected = step_screens(made[0].input_log, PONG)[10:41]  # type: ignore[arg-type]
    with av.open(out) as film:
        stream = film.streams.video[0]
        assert (stream.average_rate, stream.width) == (30, 320)
        shown = [frame.to_ndarray(format="rgb24")[:420:2, ::2] for frame in film.decode(video=0)]
    assert len(shown) == 31
    for picture, wanted in zip(shown, expected, strict=True):
        assert np.abs(picture.astype(int) - wanted).mean() < 6  # H.264 loses a little


def test_films_are_whole_or_absent(tmp_path: Path) -> None:
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


def test_planes_are_drawn_where_no_replay_can_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a forced import shows in colour would not be what training sees."""
    shown = dataclasses.replace(episode(20), audit=None)
    save_demo_set("pong-v0", shown)
    run_command(capsys, "play", "pong", str(tmp_path / "a.gif"), "--scale", "1")
    with Image.open(tmp_path / "a.gif") as film:
        picture = np.asarray(film.convert("RGB"))[:84]
    assert (picture == shown.planes[0, 0][..., None]).all()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a.avi"], "a.avi must end in .gif or .mp4"),
        (["a.gif", "--episode", "1"], "pong-v0 has episodes 0 ... 0, not 1"),
        (["a.gif", "--begin", "10"], "--begin and --end must lie in 0 ... 10"),
        (["a.gif", "--speed", "0"], "--speed must be above 0"),
    ],
)
def test_what_cannot_be_played(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save_demo_set("pong-v0", episode(40))
    assert message in run_command(capsys, "play", "pong", *words, code=2)


def test_a_film_that_cannot_be_written_is_refused_before_the_set_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    nowhere = str(tmp_path / "file" / "a.gif")
    assert "a.gif cannot be written" in run_command(capsys, "play", "none", nowhere, code=2)
    monkeypatch.setitem(sys.modules, "av", None)
    assert "MP4 needs PyAV" in run_command(capsys, "play", "none", str(tmp_path / "a.mp4"), code=2)


def test_a_gif_has_its_limit(
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
def test_a_game_goes_by_several_names(word: str, env: str) -> None:
    assert generate.to_env_id(word) == env


def test_what_a_search_finds_is_saved(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from lookfurther.demos import go_explore

    def found(options: go_explore.SearchConfig, report: Any) -> list[Episode]:
        assert options == go_explore.SearchConfig(PONG, 500, 1.5, 1, 7, 2)
        report(go_explore.SearchProgress(250, 1.0, 3, 21.0, 4))
        report(go_explore.SearchProgress(300, 1.1, 3, 21.0, 4))
        return [episode(40), episode(80, 1)]

    monkeypatch.setattr(go_explore, "run_search", found)
    asked = [
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
    out = run_command(capsys, "search", "pong", "--name", "pong", *asked)
    assert out.count("best return 21 after 4 steps") == 1
    held = catalog.open_set("pong")
    assert (len(held.episodes), held.description.author) == (2, "search of 500 frames")
    assert "frames must be at least 1" in run_command(
        capsys, "search", "pong", "--name", "x", "--frames", "0", code=2
    )


def test_the_bot_shows_verified_episodes_that_can_be_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("minigrid")
    level = "BabyAI-GoToLocal-v0"
    out = run_command(capsys, "bot", level, "--name", "local", "--episodes", "2", "--seed", "5")
    assert "train with --environment.wrappers lookfurther.envs.minigrid:OneHotGrid" in out
    facts = json.loads(run_command(capsys, "show", "local", "--json"))
    assert [(e["seed"], e["verified"], e["terminal"]) for e in facts["episodes"]] == [
        (5, True, True),
        (6, True, True),
    ]
    assert min(e["return"] for e in facts["episodes"]) > 0
    run_command(capsys, "verify", "local")
    run_command(capsys, "play", "local", str(tmp_path / "a.gif"))
    chosen = facts["episodes"][facts["best"]]
    with Image.open(tmp_path / "a.gif") as film:
        assert len(list(ImageSequence.Iterator(film))) == chosen["steps"] + 1
    assert "EmptyEnv is no BabyAI level" in run_command(
        capsys, "bot", "MiniGrid-Empty-5x5-v0", "--name", "x", code=4
    )
    assert "at least 1" in run_command(
        capsys, "bot", level, "--name", "x", "--episodes", "0", code=2
    )
    for env, name in ((PONG, "pong"), ("CartPole-v1", "CartPoleEnv")):
        said = run_command(capsys, "bot", env, "--name", "x", code=4)
        assert f"{name} is no BabyAI level, and the bot plays only those" in said


@pytest.mark.slow
def test_an_agent_shows_what_it_can(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    held = catalog.open_set("cart")
    assert [e.is_verified for e in held.description.episodes] == [True, True]
    assert held.description.author == f"the agent of {run}"
    assert best_episode_index(held.episodes) in (0, 1)
    spec = get_spec("CartPole-v1", EnvConfig())
    assert len(catalog.load_set("cart", spec, EnvConfig())) == 2
    assert "holds no checkpoint" in run_command(
        capsys, "agent", str(tmp_path), "--name", "x", code=5
    )
    assert "epsilon must be 0 ... 1" in run_command(
        capsys, "agent", run, "--name", "x", "--epsilon", "2", code=2
    )


# What ships with the package


def test_what_is_shipped_is_listed_and_replays(capsys: pytest.CaptureFixture[str]) -> None:
    from lookfurther.demos import shipped

    if not shipped.list_names():
        pytest.skip("nothing is shipped")
    name = f"shipped/{shipped.list_names()[0]}"
    assert f"{name} " in run_command(capsys, "list")
    assert f"{name}: 1 episode, all equal" in run_command(capsys, "verify", name)
    held = catalog.open_set(name)
    assert (
        catalog.load_set(name, held.description.spec, EnvConfig())[0].score
        == held.episodes[0].score
    )
    other = held.description.spec._replace(env="ALE/Tennis-v5")
    with pytest.raises(DemonstrationError, match="the training environment is ALE/Tennis-v5"):
        catalog.load_set(name, other, EnvConfig())
