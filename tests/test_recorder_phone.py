"""The recorder's page on a phone and in both themes: layout, key remapping, replay and delete."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("selenium", reason="the browser test needs selenium: lookfurther[dev]")
pytest.importorskip("uvicorn", reason="the recorder is an extra: lookfurther[record]")

from tests.test_recorder_browser import (
    element_text,
    page,
    press_key,
    serve_recorder,
    step_count,
    wait_for_state,
    wait_until,
)

assert page  # a fixture
SCREENS = ((390, 844), (844, 390), (1280, 800))
VISIBLE_PARTS = ("screen", "keys", "save", "discard", "rewind", "helpbutton", "theme", "score")
# The rectangle of an element; that of #keys is of the keys in it, which may be elsewhere.
PART_BOX = """
const parts = arguments[0] === "keys" ? [...document.querySelectorAll(".key")]
  : [document.getElementById(arguments[0])];
const boxes = parts.map((part) => part.getBoundingClientRect());
return [Math.min(...boxes.map((box) => box.left)), Math.min(...boxes.map((box) => box.top)),
  Math.max(...boxes.map((box) => box.right)), Math.max(...boxes.map((box) => box.bottom))];
"""
# The page fits the game to its place when the browser draws a frame, which a busy machine delays.
TWO_FRAMES = "requestAnimationFrame(() => requestAnimationFrame(arguments[0]))"


def resize(browser: Any, width: int, height: int) -> None:
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 1000}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    wait_until(lambda: browser.execute_script("return innerWidth") == width)
    browser.execute_async_script(TWO_FRAMES)


def check_layout(browser: Any, width: int, height: int) -> None:
    """Game, keys and commands are on the first screen, and the game is not under a key."""
    resize(browser, width, height)
    boxes = {part: browser.execute_script(PART_BOX, part) for part in VISIBLE_PARTS}
    for part, (left, top, right, bottom) in boxes.items():
        assert 0 <= left < right <= width, (part, width)
        assert 0 <= top < bottom <= height, (part, width)
    left, top, right, bottom = boxes["screen"]
    assert (right - left) * (bottom - top) > 0.15 * width * height
    keys = boxes["keys"]
    assert keys[0] >= right or keys[2] <= left or keys[1] >= bottom
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


def set_scheme(browser: Any, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def panel_lightness(browser: Any) -> int:
    script = "return getComputedStyle(document.querySelector('aside')).backgroundColor"
    return int(browser.execute_script(script).partition("(")[2].partition(",")[0])


def click(browser: Any, selector: str) -> None:
    browser.execute_script("document.querySelector(arguments[0]).click()", selector)


def record_episode(browser: Any, left: str, count: int, enter: str) -> None:
    """Play CartPole for a few steps and save the episode, number `count` of the set."""
    for i in range(6):
        press_key(browser, left if i % 2 else "ArrowRight")
        wait_until(lambda i=i: step_count(browser) == i + 1)
    press_key(browser, enter)
    wait_until(lambda: element_text(browser, "episodes").count("verified") == count)
    wait_for_state(browser, "ready")


@pytest.mark.slow
def test_cartpole_is_recorded_on_every_screen(
    page: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve_recorder(page, tmp_path / "sets", monkeypatch, "CartPole-v1") as server:
        page.get(f"http://{server.address}")
        wait_for_state(page, "ready")
        for screen in SCREENS:
            check_layout(page, *screen)
        check_themes(page)
        record_episode(page, "ArrowLeft", 1, "Enter")
        check_remapping(page)
        record_episode(page, "KeyJ", 2, "NumpadEnter")
        click(page, "#episodes .icon")
        wait_for_state(page, "replaying")
        wait_until(lambda: step_count(page) == 6)
        press_key(page, "Escape")
        wait_for_state(page, "ready")
        click(page, "#episodes li:last-child .icon:last-child")
        assert "6 steps" in element_text(page, "suretext")
        assert element_text(page, "episodes").count("verified") == 2
        click(page, "#sureyes")
        wait_until(lambda: element_text(page, "episodes").count("verified") == 1)
        page.get(f"http://{server.address}")
        wait_for_state(page, "ready")
        assert element_text(page, "episodes").count("verified") == 1
        assert element_text(page, "keys").startswith("J")  # after loading the page again
        assert panel_lightness(page) < 100


def check_themes(browser: Any) -> None:
    """The system's theme by default; the switch overrides it, first light, then dark."""
    for scheme in ("light", "dark"):
        set_scheme(browser, scheme)
        assert (panel_lightness(browser) > 200) == (scheme == "light")
    click(browser, "#theme")
    assert panel_lightness(browser) > 200
    click(browser, "#theme")
    set_scheme(browser, "light")
    assert panel_lightness(browser) < 100


def check_remapping(browser: Any) -> None:
    """J moves left instead of the arrow; a key with another use is refused."""
    press_key(browser, "Slash")
    assert browser.execute_script("return document.getElementById('help').open")
    for code in ("KeyP", "KeyJ"):
        click(browser, "#remap button")
        press_key(browser, code)
    assert "P has another use" in element_text(browser, "notices")
    assert element_text(browser, "remap").startswith("leftJ")
    click(browser, "#help .go")
    press_key(browser, "ArrowLeft")
    assert step_count(browser) == 0
