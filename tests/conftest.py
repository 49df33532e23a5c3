"""What holds for every test.

One thread: small tensors gain nothing from more, and threads that outnumber the cores wait for one
another. And interrupts arrive: a shell's background jobs ignore them, and so would all that tests
start there.
"""

import os
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported, here and in subprocesses

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
