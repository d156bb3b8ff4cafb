"""For every test: one thread a process, since tests run side by side on all cores already; and in CI the same
examples each time, so that a change is judged by what it changed. Anywhere else hypothesis goes on exploring.

Idle OpenMP threads spin; with several processes on each core a step of microseconds takes milliseconds.
"""

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "explore")

os.environ.setdefault("OMP_NUM_THREADS", "1")
