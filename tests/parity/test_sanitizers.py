"""The native core under the address and undefined-behaviour sanitizers: every parity test once more."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_parity_tests_are_clean_under_the_sanitizers(tmp_path):
    runtime = [
        subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True).stdout.strip()
        for name in ("libasan.so", "libubsan.so", "libstdc++.so.6")
    ]
    if not all(Path(path).is_absolute() for path in runtime):
        pytest.skip("the compiler has no sanitizer libraries; install libasan and libubsan")
    build = tmp_path / "build"
    configure = ["cmake", "-S", ROOT / "csrc", "-B", build, "-DMEGALITH_SANITIZE=ON"]
    for command in (configure, ["cmake", "--build", build, "--parallel", "2"]):
        subprocess.run(list(map(str, command)), check=True, capture_output=True)
    environment = os.environ | {
        "LD_PRELOAD": " ".join(runtime),
        "MEGALITH_CORE": str(build / "megalith_core.so"),
        # Python itself keeps memory until the end.
        "ASAN_OPTIONS": "detect_leaks=0",
        "OMP_NUM_THREADS": "2",
    }
    tests = sorted(str(path) for path in Path(__file__).parent.glob("test_*.py") if path != Path(__file__))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        # What a sanitizer says when it ends the process must not be lost with it.
        "--capture=no",
        "-p",
        "no:cacheprovider",
        "-k",
        "not torch_knows",
        *tests,
    ]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, (result.stdout + result.stderr)[-5000:]
