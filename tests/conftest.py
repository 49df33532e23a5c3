"""One thread for every test: small tensors gain nothing from more, and threads that outnumber the
cores wait for one another."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported, here and in subprocesses

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
