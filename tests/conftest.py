"""What holds for every test.

One thread: small tensors gain nothing from more, and threads that outnumber the cores wait for one
another. No GPU, even where there is one: `run.device auto` would take it and round differently, and
`benchmarks.gpu` is what tests it. And interrupts arrive: a shell's background jobs ignore them, and
so would all that tests start there.
"""

import os
import signal

# Before torch is imported, here and in subprocesses.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
