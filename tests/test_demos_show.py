"""lookfurther demos list and show."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from lookfurther.cli.demos import formatting
from lookfurther.cli.tables import format_table
from lookfurther.demos import shipped
from lookfurther.demos.episode import Audit
from lookfurther.errors import EnvironmentFault, LookFurtherError
from lookfurther.report.contact_sheet import EpisodeRow, write_contact_sheet
from tests.demo_commands import PONG, episode, run_command, save_demo_set

pytestmark = pytest.mark.usefixtures("datasets_home")


def test_list_prints_sets_and_read_errors(
    datasets_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {line.split()[0] for line in run_command(capsys, "list").splitlines()[1:]} == {
        f"shipped/{name}" for name in shipped.list_names()
    }
    made = save_demo_set("my/pong-v0", episode(40), dataclasses.replace(episode(80, 1), audit=None))
    save_demo_set("other-v3", episode(40))
    (datasets_home / "other-v3" / "data" / "metadata.json").write_text("{")
    head, *lines = run_command(capsys, "list").splitlines()
    line, broken = (line for line in lines if not line.startswith("shipped/"))
    assert head.split() == ["set", "environment", "episodes", "steps", "best", "return", "verified"]
    top = formatting.format_number(max(e.score for e in made))
    assert line.split() == ["my/pong-v0", PONG, "2", "30", top, "1", "of", "2"]
    assert broken.startswith("other-v3 is not a readable demonstration set: ")


def test_list_names_the_missing_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without ale-py, the shipped Atari sets cannot be described; the others are listed."""

    def find_no_game(env: str, env_config: object) -> None:
        raise EnvironmentFault(f"{env} needs ale_py: install lookfurther[atari]")

    save_demo_set("my/pong-v0", episode(40))
    monkeypatch.setattr(shipped.envs, "get_spec", find_no_game)
    lines = run_command(capsys, "list").splitlines()
    assert lines[1].startswith("my/pong-v0 ")
    assert "ALE/Freeway-v5 needs ale_py: install lookfurther[atari]" in lines


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
