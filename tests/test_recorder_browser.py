"""The recorder's page in a real browser: headless Chromium, by real key events."""

from __future__ import annotations

import contextlib
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("selenium", reason="the browser test needs selenium: lookfurther[dev]")
pytest.importorskip("uvicorn", reason="the recorder is an extra: lookfurther[record]")

from benchmarks.recorder import NO_BROWSER, browser
from lookfurther.config import Environment
from lookfurther.demos import storage
from lookfurther.demos.playback import play as play_tape
from lookfurther.demos.verify import verify
from lookfurther.envs.emulator import MEANINGS, Emulator
from tests.test_recorder_session import NAME, Command

GAME = "ALE/Breakout-v5"

# The page connects again within a second: what it showed meanwhile is noted, however late we look.
NOTE_DETAILS = """
window.details = {};
const detail = document.getElementById("detail");
const note = () => details[document.body.dataset.state] = detail.textContent;
new MutationObserver(note).observe(document.body, { attributeFilter: ["data-state"] });
"""


@pytest.fixture
def page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Any]:
    """A browser, or a skip that cannot be overlooked."""
    if shutil.which("chromedriver") is None:
        with capsys.disabled():
            print(f"\nTHE BROWSER TEST IS SKIPPED: {NO_BROWSER}")
        pytest.skip(NO_BROWSER)
    page = browser(tmp_path / "profile", "1440,900")
    try:
        yield page
    finally:
        page.quit()


@contextlib.contextmanager
def served(page: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    """A recorder whose page leaves the browser's console empty."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder))
    server = Command(GAME, "--name", NAME)
    try:
        yield server
        assert page.get_log("browser") == []
    finally:
        assert server.stop(signal.SIGINT) == 0


def text(page: Any, name: str) -> str:
    return page.execute_script("return document.getElementById(arguments[0]).textContent", name)


def steps(page: Any) -> int:
    return int(text(page, "steps").replace(",", ""))


def until(page: Any, state: str) -> None:
    """Wait for the page to say in what state the game is."""
    wait(lambda: page.execute_script("return document.body.dataset.state") == state)


def wait(holds: Callable[[], bool]) -> None:
    """The time limit of the test catches what never comes."""
    while not holds():
        time.sleep(0.02)


def play(page: Any, more: int) -> None:
    """Wait until `more` steps have been played with the keys that are down."""
    begun = steps(page)
    wait(lambda: steps(page) >= begun + more)


def key(page: Any, code: str, kind: str) -> None:
    """A key event as the keyboard makes it: keyDown or keyUp."""
    page.execute_cdp_cmd("Input.dispatchKeyEvent", {"type": kind, "code": code, "key": code})


def press(page: Any, code: str) -> None:
    key(page, code, "keyDown")
    key(page, code, "keyUp")


def canvas(page: Any) -> np.ndarray:
    """What the page shows, [height, width, 3]."""
    script = (
        "const sheet = new OffscreenCanvas(size.width, size.height), pen = sheet.getContext('2d');"
        "pen.drawImage(document.getElementById('screen'), 0, 0);"
        "return [size.height, size.width,"
        " ...pen.getImageData(0, 0, size.width, size.height).data]"
    )
    height, width, *values = page.execute_script(script)
    return np.array(values, np.uint8).reshape(height, width, 4)[..., :3]


@pytest.mark.slow
def test_an_episode_played_in_the_browser_verifies(
    page: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty steps and more, rewound, gone on with and saved: replayed, it is the same.

    The five balls last for 120 steps: the game goes on even if this waits for seconds too long.
    """
    with served(page, tmp_path / "sets", monkeypatch) as server:
        page.get(f"http://{server.address}")
        until(page, "ready")
        key(page, "Space", "keyDown")
        until(page, "playing")
        assert (
            page.execute_script("return document.querySelector('.key.down').dataset.name") == "fire"
        )
        play(page, 10)
        key(page, "KeyD", "keyDown")
        play(page, 10)
        key(page, "Space", "keyUp")
        play(page, 20)
        begun = steps(page)
        key(page, "KeyR", "keyDown")
        until(page, "rewinding")
        key(page, "KeyD", "keyUp")
        wait(lambda: steps(page) <= begun - 10)
        key(page, "KeyR", "keyUp")
        until(page, "ready")
        rewound, shown = steps(page), canvas(page)
        press(page, "Equal")  # twice as fast
        key(page, "ArrowLeft", "keyDown")
        play(page, 10)
        key(page, "ArrowLeft", "keyUp")
        press(page, "KeyP")
        until(page, "paused")
        played = steps(page)
        press(page, "Enter")
        wait(lambda: "verified" in text(page, "episodes"))
        until(page, "ready")
        assert steps(page) == 0
        assert f"{played} steps" in text(page, "episodes")
    description = storage.describe(NAME)
    (episode,) = storage.load(NAME, description.spec)
    assert len(episode) == played
    assert verify(episode, description.spec, Environment()).verified
    names = [MEANINGS[action] for action in episode.actions]
    kept = [name for name, _ in groupby(names[:rewound])]  # how many of them depends on the rewind
    assert kept == ["FIRE", "RIGHTFIRE", "RIGHT"][: len(kept)]
    assert set(names[rewound:]) <= {"LEFT", "NOOP"}
    assert (replayed(episode, rewound) == shown).all()


def replayed(episode: Any, steps: int) -> np.ndarray:
    """The screen after so many steps of an episode's tape."""
    emulator = Emulator(GAME)
    frames = play_tape(episode.tape, emulator)
    for _ in range(4 * steps):
        next(frames)
    return emulator.screen()


@pytest.mark.slow
def test_a_second_page_is_told_and_a_lost_server_is_found_again(
    page: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(page, tmp_path / "sets", monkeypatch) as server:
        page.get(f"http://{server.address}")
        until(page, "ready")
        first = page.current_window_handle
        page.switch_to.new_window("tab")
        page.get(f"http://{server.address}")
        until(page, "refused")
        assert "Someone is playing here already" in text(page, "detail")
        page.switch_to.window(first)
        until(page, "ready")
        page.execute_script(NOTE_DETAILS)
        page.execute_script("projector.postMessage({ text: 'x'.repeat(1e6) })")  # too much: cut off
        wait(lambda: page.execute_script("return details.offline") is not None)
        assert "kept" in page.execute_script("return details.offline")
        until(page, "ready")
