"""lookfurther demos: its commands, and names of sets."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lookfurther.cli import demos
from lookfurther.cli.main import main
from lookfurther.config import EnvConfig
from lookfurther.demos import catalog, shipped, storage
from lookfurther.envs import get_spec
from lookfurther.errors import ConfigError, DemonstrationError
from tests.demo_commands import PONG, episode, run_command, save_demo_set

pytestmark = pytest.mark.usefixtures("datasets_home")


DEMOS_PAGE = Path(__file__).parents[1] / "docs" / "demonstrations.md"

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


def test_list_and_show_do_not_import_torch(datasets_home: Path) -> None:
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


def test_new_set_id_must_be_valid_and_unused(datasets_home: Path) -> None:
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


def test_growing_set_is_newest_or_new(datasets_home: Path) -> None:
    assert catalog.growing_set_id("pong") == "pong-v0"
    save_demo_set("pong-v0", episode(40))
    save_demo_set("pong-v2", episode(40))
    assert catalog.growing_set_id("pong") == "pong-v2"
    assert catalog.growing_set_id("pong-v0") == "pong-v0"
    assert catalog.growing_set_id("pong-v1") == "pong-v1"


def test_name_without_version_is_saved_as_v0(datasets_home: Path) -> None:
    spec = get_spec(PONG, EnvConfig())
    place = storage.save_episodes("pong", [episode(40)], spec, "me")
    assert place == datasets_home / "pong-v0"
    storage.append_episodes("pong", [episode(80, 1)], spec, "me")
    assert len(storage.load_episodes("pong", spec)) == 2
    with pytest.raises(DemonstrationError, match="a set named pong-v0 exists"):
        storage.save_episodes("pong", [episode(40)], spec, "me")


def test_set_of_older_version_loads(
    datasets_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_demo_set("old-v0", episode(40))
    path = datasets_home / "old-v0" / "data" / "metadata.json"
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
    datasets_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_demo_set("pong-v0", episode(40))
    assert "no demonstrations named pomg: did you mean pong?" in run_command(
        capsys, "show", "pomg", code=4
    )
    assert (
        json.loads(run_command(capsys, "show", str(datasets_home / "pong-v0"), "--json"))["steps"]
        == 10
    )


# Shipped sets


def test_shipped_set_is_listed_and_verified(capsys: pytest.CaptureFixture[str]) -> None:

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
