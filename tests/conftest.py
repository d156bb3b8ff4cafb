"""For every test: one thread a process, since tests run side by side on all cores already.

Idle OpenMP threads spin; with several processes on each core a step of microseconds takes milliseconds.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
