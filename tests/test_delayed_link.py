"""The delayed link of the benchmark with hosts."""

from __future__ import annotations

import contextlib
import itertools
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
SECONDS = 0.3


def test_frames_arrive_in_order_after_the_delay() -> None:
    """In both directions; sockets take the place of the two devices."""
    with contextlib.ExitStack() as stack:
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
        for end in itertools.chain(*pairs):
            stack.enter_context(end)
        (left, left_end), (right, right_end) = pairs
        ends = [left_end.fileno(), right_end.fileno()]
        left_end.setblocking(False)
        right_end.setblocking(False)
        code = f"from benchmarks.delayed_link import carry_frames; carry_frames(*{ends}, {SECONDS})"
        command = [sys.executable, "-c", code]
        link = stack.enter_context(subprocess.Popen(command, cwd=ROOT, pass_fds=ends))
        stack.callback(link.kill)
        for source, target in ((left, right), (right, left)):
            start = time.monotonic()
            frames = [bytes([i]) * (i + 1) for i in range(5)]
            for frame in frames:
                source.send(frame)
            assert [target.recv(100) for _ in frames] == frames
            assert time.monotonic() - start >= SECONDS
