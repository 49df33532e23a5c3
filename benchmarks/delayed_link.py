"""A virtual Ethernet cable with a delay, for kernels without `tc netem`.

    python -m benchmarks.delayed_link DEVICE DEVICE SECONDS

It creates two TAP devices and carries each frame from one to the other after a delay, until it is
ended. It needs root.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import sys
import time
from collections import deque

TUNSETIFF = 0x400454CA  # of linux/if_tun.h, as the next two
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
FRAME_BYTES = 65_536  # more than any frame has


def open_tap(name: str) -> int:
    """Create a TAP device; reads and writes of the file are its frames."""
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return tap


def carry_frames(first: int, second: int, seconds: float) -> None:
    """Carry frames in both directions, in their order."""
    other = {first: second, second: first}
    waiting: deque[tuple[float, int, bytes]] = deque()  # when to write, where, what
    while True:
        timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        readable, _, _ = select.select([first, second], [], [], timeout)
        for tap in readable:
            for frame in read_frames(tap):
                waiting.append((time.monotonic() + seconds, other[tap], frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, tap, frame = waiting.popleft()
            write_frame(tap, frame)


def read_frames(tap: int) -> list[bytes]:
    """All frames that are there."""
    frames = []
    while True:
        try:
            frames.append(os.read(tap, FRAME_BYTES))
        except BlockingIOError:
            return frames


def write_frame(tap: int, frame: bytes) -> None:
    """Deliver a frame; a device that is down loses it, as a cable would."""
    try:
        os.write(tap, frame)
    except OSError:
        return


def main() -> int:
    first, second, seconds = sys.argv[1:]
    carry_frames(open_tap(first), open_tap(second), float(seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
