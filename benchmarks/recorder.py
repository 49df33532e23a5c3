"""The recorder in a real browser: frames per second, and latency from a key to its frame.

    python -m benchmarks.recorder [--seconds S] [--rounds N] [--json FILE]

Plays Freeway in headless Chromium with real key events at random times. A frame counts as shown
when the browser composes a picture with it. The latency of a key is the time from its event in the
browser to the picture with the first frame that it influences. It includes 33 ms on average until
the next step, because the paper's agents act every 4 frames.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.measure import (
    REPOSITORY_ROOT,
    format_table,
    limit_cores,
    machine_info,
    make_parser,
    median_of_rounds,
    write_report,
)
from lookfurther.system.processes import python_command, subprocess_environment

GAME = "ALE/Freeway-v5"  # an episode always lasts two minutes
KEYS = ("ArrowUp", "ArrowDown", "Space")
# Runs before the script of the page, in the page and in its drawing worker. Records when keys are
# pressed and what each picture shows.
PAGE_INSTRUMENTATION = """{
const notes = window.notes = { pressed: [] };
const inside = `{
const Plain = WebSocket, notes = { shown: [], drawn: [] }, channel = new BroadcastChannel("notes");
const now = () => performance.timeOrigin + performance.now();
let frame = 0, keys = 0, last = 0;
WebSocket = class extends Plain {
  constructor(...all) {
    super(...all);
    this.addEventListener("message", ({ data }) => {
      if (typeof data === "string") return;
      const head = new DataView(data);
      frame = head.getUint32(0, true); keys = head.getUint32(4, true);
      queueMicrotask(() => notes.drawn.push([now(), keys]));
    });
  }
};
const each = () => {
  if (frame !== last) notes.shown.push([now(), keys]);
  last = frame;
  requestAnimationFrame(each);
};
requestAnimationFrame(each);
channel.onmessage = () => { channel.postMessage(notes); notes.shown = []; notes.drawn = []; };
}`;
const Plain = window.Blob, post = Worker.prototype.postMessage;
window.Blob = class extends Plain {
  constructor(parts, options) { super([inside, ...parts], options); }
};
let pressed = 0;
addEventListener("keydown", (key) => { pressed = performance.timeOrigin + key.timeStamp; }, true);
Worker.prototype.postMessage = function (data, ...more) {
  const { kind, held, number } = data.text ? JSON.parse(data.text) : {};
  if (kind === "keys" && held.length) notes.pressed.push([pressed, number]);
  return post.call(this, data, ...more);
};
}"""
COLLECT_SCRIPT = """
const done = arguments[0], channel = new BroadcastChannel("notes");
channel.onmessage = ({ data }) => {
  done({ pressed: notes.pressed.splice(0), ...data }); channel.close();
};
channel.postMessage("");
"""


NO_BROWSER = "chromedriver not found: run make browser, or install Chromium and its driver"


def start_browser(profile: Path, size: str = "1280,800") -> Any:
    """Headless Chromium with its own profile."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    driver = shutil.which("chromedriver")
    if driver is None:
        sys.exit(NO_BROWSER)
    options = webdriver.ChromeOptions()
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in ("headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run"):
        options.add_argument(f"--{flag}")
    for flag in ("disable-background-networking", "disable-component-update", "disable-sync"):
        options.add_argument(f"--{flag}")
    options.add_argument(f"--user-data-dir={profile}")
    options.add_argument(f"--window-size={size}")
    return webdriver.Chrome(options, Service(driver))


def start_recorder(folder: Path) -> tuple[subprocess.Popen[str], str]:
    """A recorder in its own process, and its address."""
    command = python_command("-m", "lookfurther", "record", GAME)
    environment = subprocess_environment() | {"MINARI_DATASETS_PATH": str(folder)}
    server = subprocess.Popen(
        command, cwd=REPOSITORY_ROOT, env=environment, stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    address = re.search(r"http://\S+", server.stdout.readline())
    if address is None:
        sys.exit("the recorder did not start")
    return server, address[0]


class BrowserKeyboard:
    """Real key events by Chromium's DevTools protocol; selenium would need much of the cores."""

    def __init__(self, page: Any) -> None:
        from websockets.sync.client import connect

        address = page.capabilities["goog:chromeOptions"]["debuggerAddress"]
        with urllib.request.urlopen(f"http://{address}/json") as answer:
            pages = [tab for tab in json.load(answer) if tab["type"] == "page"]
        self._socket = connect(pages[0]["webSocketDebuggerUrl"], max_size=None)
        self._sent = 0

    def send_key(self, code: str, kind: str) -> None:
        """keyDown or keyUp."""
        self._sent += 1
        event = {"type": kind, "code": code, "key": code}
        call = {"id": self._sent, "method": "Input.dispatchKeyEvent", "params": event}
        self._socket.send(json.dumps(call))
        self._socket.recv()

    def close(self) -> None:
        self._socket.close()


def play_random_keys(page: Any, keyboard: BrowserKeyboard, seconds: float) -> dict[str, float]:
    """Figures of `seconds` of keys at random times."""
    page.execute_async_script(COLLECT_SCRIPT)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        code = random.choice(KEYS)
        keyboard.send_key(code, "keyDown")
        time.sleep(random.uniform(0.03, 0.1))
        keyboard.send_key(code, "keyUp")
        time.sleep(random.uniform(0.03, 0.1))
    return summarize_timings(page.execute_async_script(COLLECT_SCRIPT))


def summarize_timings(notes: dict[str, list[list[float]]]) -> dict[str, float]:
    """Frame rates and latencies from the browser's records."""
    shown, drawn = notes["shown"], notes["drawn"]
    latencies = _key_latencies(notes["pressed"], shown)
    return {
        "frames_per_second": (len(shown) - 1) / (shown[-1][0] - shown[0][0]) * 1000,
        "drawn_per_second": (len(drawn) - 1) / (drawn[-1][0] - drawn[0][0]) * 1000,
        "key_to_frame_ms": statistics.median(latencies),
        "key_to_frame_ms_p95": sorted(latencies)[int(0.95 * len(latencies))],
        "key_to_drawn_ms": statistics.median(_key_latencies(notes["pressed"], drawn)),
        "keys": len(latencies),
    }


def _key_latencies(pressed: list[list[float]], frames: list[list[float]]) -> list[float]:
    """For each key, the time to the first frame that includes it or a later key."""
    latencies = []
    for pressed_at, number in pressed:
        frame_times = [time for time, keys in frames if keys >= number and time >= pressed_at]
        latencies += [frame_times[0] - pressed_at] if frame_times else []
    return latencies


def measure(options: argparse.Namespace) -> list[dict[str, float]]:
    """All rounds, one after another in one page."""
    with tempfile.TemporaryDirectory() as folder:
        server, address = start_recorder(Path(folder))
        page = start_browser(Path(folder) / ".profile")
        try:
            page.execute_cdp_cmd(
                "Page.addScriptToEvaluateOnNewDocument", {"source": PAGE_INSTRUMENTATION}
            )
            page.get(address)
            time.sleep(2)
            with closing(BrowserKeyboard(page)) as keyboard:
                play_random_keys(page, keyboard, 2)
                return [
                    play_random_keys(page, keyboard, options.seconds) for _ in range(options.rounds)
                ]
        finally:
            page.quit()
            server.terminate()
            server.wait()


def main() -> None:
    options = make_parser(__doc__, seconds=20.0).parse_args()
    limit_cores(options.cores)
    machine = machine_info(["uvicorn", "starlette", "websockets", "ale-py", "selenium"])
    rounds = measure(options)
    result = median_of_rounds(rounds) | {"rounds": rounds, "surroundings": machine}
    result["load_at_end"] = os.getloadavg()[0]
    rows = [[name.replace("_", " "), value] for name, value in median_of_rounds(rounds).items()]
    write_report(f"{GAME} in headless Chromium", result, format_table(["", ""], rows), options.json)


if __name__ == "__main__":
    main()
