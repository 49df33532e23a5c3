"""The recorder's page in headless Chromium, with real key events."""

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

from benchmarks.recorder import NO_BROWSER, start_browser
from lookfurther.config import EnvConfig
from lookfurther.demos import storage
from lookfurther.demos.playback import play_log as play_tape
from lookfurther.demos.verify import verify_episode
from lookfurther.envs.emulator import ACTION_MEANINGS, Emulator
from tests.recorder_pages import NAME, ServerProcess

GAME = "ALE/Breakout-v5"

# The page reconnects within a second, so record what it showed in the meantime.
NOTE_DETAILS = """
window.details = {};
const detail = document.getElementById("detail");
const note = () => details[document.body.dataset.state] = detail.textContent;
new MutationObserver(note).observe(document.body, { attributeFilter: ["data-state"] });
"""


@pytest.fixture
def page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Any]:
    """A browser, or a skip with a visible message."""
    if shutil.which("chromedriver") is None:
        with capsys.disabled():
            print(f"\nTHE BROWSER TEST IS SKIPPED: {NO_BROWSER}")
        pytest.skip(NO_BROWSER)
    page = start_browser(tmp_path / "profile", "1440,900")
    try:
        yield page
    finally:
        page.quit()


@contextlib.contextmanager
def serve_recorder(
    page: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, env: str = GAME
) -> Iterator[ServerProcess]:
    """A recorder whose page writes nothing to the browser's console."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder))
    server = ServerProcess(env, "--name", NAME)
    try:
        yield server
        assert page.get_log("browser") == []
    finally:
        assert server.stop(signal.SIGINT) == 0


def element_text(page: Any, name: str) -> str:
    return page.execute_script("return document.getElementById(arguments[0]).textContent", name)


def step_count(page: Any) -> int:
    return int(element_text(page, "steps").replace(",", ""))


def wait_for_state(page: Any, state: str) -> None:
    """Wait until the page shows this state."""
    wait_until(lambda: page.execute_script("return document.body.dataset.state") == state)


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a condition; the time limit of the test ends an endless wait."""
    while not condition():
        time.sleep(0.02)


def play_steps(page: Any, more: int) -> None:
    """Wait until `more` steps have been played with the held keys."""
    begun = step_count(page)
    wait_until(lambda: step_count(page) >= begun + more)


def send_key(page: Any, code: str, kind: str) -> None:
    """Send a keyboard event: keyDown or keyUp."""
    page.execute_cdp_cmd("Input.dispatchKeyEvent", {"type": kind, "code": code, "key": code})


def press_key(page: Any, code: str) -> None:
    send_key(page, code, "keyDown")
    send_key(page, code, "keyUp")


def canvas_pixels(page: Any) -> np.ndarray:
    """Return the displayed frame, [height, width, 3]."""
    script = (
        "const sheet = new OffscreenCanvas(size.width, size.height), pen = sheet.getContext('2d');"
        "pen.drawImage(document.getElementById('screen'), 0, 0);"
        "return [size.height, size.width,"
        " ...pen.getImageData(0, 0, size.width, size.height).data]"
    )
    height, width, *values = page.execute_script(script)
    return np.array(values, np.uint8).reshape(height, width, 4)[..., :3]


@pytest.mark.slow
def test_episode_played_in_browser_is_verified(
    page: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Play forty steps and more, rewind, continue and save; the replay is equal.

    The five balls last for 120 steps, so a delay of seconds does not end the game.
    """
    with serve_recorder(page, tmp_path / "sets", monkeypatch) as server:
        page.get(f"http://{server.address}")
        wait_for_state(page, "ready")
        send_key(page, "Space", "keyDown")
        wait_for_state(page, "playing")
        assert (
            page.execute_script("return document.querySelector('.key.down').dataset.name") == "fire"
        )
        play_steps(page, 10)
        send_key(page, "KeyD", "keyDown")
        play_steps(page, 10)
        send_key(page, "Space", "keyUp")
        play_steps(page, 20)
        begun = step_count(page)
        send_key(page, "KeyR", "keyDown")
        wait_for_state(page, "rewinding")
        send_key(page, "KeyD", "keyUp")
        wait_until(lambda: step_count(page) <= begun - 10)
        send_key(page, "KeyR", "keyUp")
        wait_for_state(page, "ready")
        rewound, shown = step_count(page), canvas_pixels(page)
        press_key(page, "Equal")  # twice as fast
        send_key(page, "ArrowLeft", "keyDown")
        play_steps(page, 10)
        send_key(page, "ArrowLeft", "keyUp")
        press_key(page, "KeyP")
        wait_for_state(page, "paused")
        played = step_count(page)
        press_key(page, "Enter")
        wait_until(lambda: "verified" in element_text(page, "episodes"))
        wait_for_state(page, "ready")
        assert step_count(page) == 0
        assert f"{played} steps" in element_text(page, "episodes")
    description = storage.read_description(NAME)
    (episode,) = storage.load_episodes(NAME, description.spec)
    assert len(episode) == played
    assert verify_episode(episode, description.spec, EnvConfig()).verified
    names = [ACTION_MEANINGS[action] for action in episode.actions]
    kept = [name for name, _ in groupby(names[:rewound])]  # how many depends on the rewind
    assert kept == ["FIRE", "RIGHTFIRE", "RIGHT"][: len(kept)]
    assert set(names[rewound:]) <= {"LEFT", "NOOP"}
    assert (replayed_screen(episode, rewound) == shown).all()


def replayed_screen(episode: Any, steps: int) -> np.ndarray:
    """Return the screen after `steps` steps of the episode's input log."""
    emulator = Emulator(GAME)
    frames = play_tape(episode.input_log, emulator)
    for _ in range(4 * steps):
        next(frames)
    return emulator.rgb_screen()


@pytest.mark.slow
def test_second_page_is_rejected_and_lost_page_reconnects(
    page: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve_recorder(page, tmp_path / "sets", monkeypatch) as server:
        page.get(f"http://{server.address}")
        wait_for_state(page, "ready")
        first = page.current_window_handle
        page.switch_to.new_window("tab")
        page.get(f"http://{server.address}")
        wait_for_state(page, "refused")
        assert "Another page is already connected" in element_text(page, "detail")
        page.switch_to.window(first)
        wait_for_state(page, "ready")
        page.execute_script(NOTE_DETAILS)
        page.execute_script(
            "renderWorker.postMessage({ text: 'x'.repeat(1e6) })"
        )  # too large: closes the connection
        wait_until(lambda: page.execute_script("return details.offline") is not None)
        assert "kept" in page.execute_script("return details.offline")
        wait_for_state(page, "ready")
