"""Every allocation of the native core fails once: an error and nothing changed, or the exact result."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from allocation_failures import OPERATIONS
from child_process import outcomes_of

HERE = Path(__file__).parent
ALLOCATE_NOTHING = {"lookup_fault"}


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    if sys.platform != "linux" or shutil.which("g++") is None:
        pytest.skip("making an allocation fail takes g++ and a loader that preloads")
    built = tmp_path_factory.mktemp("shim") / "failing_allocations.so"
    flags = ["-shared", "-fPIC", "-O1", "-std=c++17"]
    command = ["g++", *flags, HERE / "failing_allocations.cpp", "-o", built, "-ldl"]
    subprocess.run(list(map(str, command)), check=True, capture_output=True)
    return built


def outcomes(shim, pool, threads):
    script = HERE / "allocation_failures.py"
    environment = {"LD_PRELOAD": str(shim), "OMP_NUM_THREADS": "2"}
    return outcomes_of(script, OPERATIONS, shim, pool, threads, **environment)


@pytest.mark.parametrize(
    ("pool", "threads"), [("torch", 1), ("torch", 2), pytest.param("own", 2, marks=pytest.mark.slow)]
)
def test_no_failed_allocation_is_swallowed(shim, pool, threads):
    for operation, told in outcomes(shim, pool, threads).items():
        assert "died" not in told[-1], (operation, told[-1])
        assert not told[-1]["failed"], operation
        for one in told:
            if one["error"] is None:
                # All went well, or there was no memory for threads and the work was done without.
                assert one["exact"], (operation, one)
                continue
            assert one["error"].startswith("There is not enough memory to "), (operation, one)
            assert one["unchanged"], (operation, one)
            assert one["recovers"], (operation, one)
        errors = [one["error"] for one in told if one["error"]]
        assert bool(errors) == (operation not in ALLOCATE_NOTHING), operation


def test_work_is_done_once_where_no_thread_can_be_started(shim):
    for operation, told in outcomes(shim, "refused", 3).items():
        assert told == [{"exact": True}], operation
