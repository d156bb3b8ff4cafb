"""For every test: the same surroundings whatever the machine, its user and its terminal are.

One thread a process, since tests run side by side on all cores already: idle OpenMP threads spin, and with
several processes on each core a step of microseconds takes milliseconds. Hypothesis draws the same examples
each time, so that a change is judged by what it changed; `HYPOTHESIS_PROFILE=explore` draws new ones. How
long it takes to draw one says nothing about the code: no deadline, no complaint.
"""

import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Modules that tests of all folders share, also for the processes that tests start.
sys.path.insert(0, str(Path(__file__).parent))

_SURROUNDINGS = {
    "LC_ALL": "C.UTF-8",
    "NO_COLOR": "1",
    "PYTHONUTF8": "1",
    "TERM": "dumb",
    "TZ": "UTC",
}
_FORGOTTEN = (
    "CI",
    "CLICOLOR_FORCE",
    "FORCE_COLOR",
    "LINES",
    "MEGALITH_DEBUG",
    "MEGALITH_SHARED_MEMORY",
    "TTY_COMPATIBLE",
)
for name in _FORGOTTEN:
    os.environ.pop(name, None)
os.environ.update(_SURROUNDINGS)
# The sanitizers' tests have two.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell that runs the tests in the background has them ignore Ctrl-C, and what they start inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "same", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


@pytest.fixture(scope="session", autouse=True)
def _home(tmp_path_factory):
    """Nothing is read from the user's own folders, and nothing is left in them."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
            patch.delenv(name, raising=False)
        yield


def pytest_collection_modifyitems(items):
    """Files whose tests take longest come first, so that all workers end at about the same time."""
    items.sort(key=lambda item: _SLOW_FOLDERS.get(Path(item.path).parent.name, len(_SLOW_FOLDERS)))


_SLOW_FOLDERS = {"guides": 0, "e2e": 1, "distributed": 2, "train": 3, "search": 4}
