"""Tables of the documentation match the code."""

from __future__ import annotations

import ast
import re
import runpy
import tomllib
from pathlib import Path

import pytest

from benchmarks import results_page
from lookfurther import errors
from lookfurther.config import Config
from lookfurther.envs import get_spec
from lookfurther.evaluation import evaluate as evaluation
from lookfurther.presets import preset
from lookfurther.replay.prioritized import PrioritizedReplay
from lookfurther.training import hardware, run_dir
from tests.doc_pages import PAGES, QUICKSTART, ROOT, RUNS, prose, rows, setting_names, text
from tests.test_layers import LAYERS


def test_settings_page_is_current() -> None:
    generator = runpy.run_path(str(ROOT / "docs" / "generate_settings.py"))
    assert text("docs/settings.md") == generator["generate_page"](), (
        "docs/settings.md is outdated: run python docs/generate_settings.py"
    )
    assert text("docs/presets.md") == generator["generate_presets_page"](), (
        "docs/presets.md is outdated: run python docs/generate_settings.py"
    )
    assert text("docs/tuned.md") == generator["generate_tuned_page"](), (
        "docs/tuned.md is outdated: run python docs/generate_settings.py"
    )
    listed = {name.strip("`") for name, *_ in rows("docs/settings.md", "setting")}
    assert listed == setting_names()


def test_changeable_settings_are_documented() -> None:
    found = re.search(r"only these may change: (.*?)\.\s", prose(RUNS).replace("\n", " "))
    assert found is not None
    assert set(re.findall(r"`([^`]+)`", found[1])) == run_dir.CHANGEABLE_SETTINGS


def test_exit_codes_are_documented() -> None:
    kinds = errors.LookFurtherError.__subclasses__()
    codes = {0, errors.LookFurtherError.exit_code, *(kind.exit_code for kind in kinds)}
    assert [int(code) for code, _ in rows(RUNS, "exit code")] == sorted(codes)


def test_extras_are_documented() -> None:
    project = tomllib.loads(text("pyproject.toml"))["project"]
    extras = set(project["optional-dependencies"])
    assert {name.strip("`") for name, *_ in rows(QUICKSTART, "extra")} == extras
    for page in PAGES:
        for names in re.findall(r"\.\[([\w,]+)\]", text(page)):
            assert set(names.split(",")) <= extras


def test_documented_memory_matches_replay() -> None:
    envs = {
        "Atari": "ALE/Pong-v5",
        "UnlockPickup": "lookfurther.envs.minigrid:lookfurther/UnlockPickup-v0",
        "CartPole": "CartPole-v1",
    }
    table = rows(RUNS, "environment")
    assert {row[0] for row in table} == set(envs)
    for name, _, step, *totals in table:
        spec = get_spec(envs[name], Config().environment)
        horizons = len(Config().replay.horizons)
        sizes = [preset("no-demos", scale).replay.capacity for scale in ("small", "paper")]
        assert step == f"{PrioritizedReplay.estimate_bytes(spec, 1, horizons):,}"
        assert totals == [
            hardware.format_bytes(PrioritizedReplay.estimate_bytes(spec, n, horizons))
            for n in sizes
        ]


@pytest.mark.parametrize("page", [RUNS, "docs/departures.md"])
def test_evaluation_frame_limit_is_documented(page: str) -> None:
    assert re.search(rf"\b{evaluation.MAX_EPISODE_FRAMES:,}\s+(emulator\s+)?frames", text(page))


def messages() -> list[str]:
    """Return every string of the package, with … for inserted values."""
    found = []
    for path in (ROOT / "lookfurther").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [p.value if isinstance(p, ast.Constant) else "…" for p in node.values]
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def test_troubleshooting_messages_exist() -> None:
    strings = messages()
    table = rows("docs/troubleshooting.md", "message")
    assert table
    for message, _ in table:
        pattern = ".*".join(map(re.escape, message.strip("`").split("…")))
        assert any(re.search(pattern, string) for string in strings), message


def test_architecture_lists_layers() -> None:
    listed = [re.findall(r"`(\w+)`", names) for _, names in rows("docs/architecture.md", "layer")]
    assert listed == [[n for n in names if n not in ("", "__main__")] for names in LAYERS]


def test_faults_page_tests_exist() -> None:
    defined = {
        name
        for path in Path(__file__).parent.glob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    named = set(re.findall(r"`(test_\w+)`", text("docs/faults.md")))
    assert len(named) > 40
    assert named <= defined


def test_results_page_has_tables_of_result_files() -> None:
    """`python -m benchmarks.results_page` renders them."""
    page = text("docs/results.md")
    assert results_page.render(page) == page
    assert set(re.findall(r"<!-- table: (\w+) -->", page)) == set(results_page.TABLES)


@pytest.mark.parametrize(
    ("page", "lines"), [("docs/results.md", 120), ("docs/performance.md", 150)]
)
def test_results_and_performance_pages_are_short(page: str, lines: int) -> None:
    assert len(text(page).splitlines()) <= lines
