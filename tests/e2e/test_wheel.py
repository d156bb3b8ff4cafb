"""`make wheel`: an sdist, and one wheel that needs no compiler where it is installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _checked(command: list[str], cwd: Path, environment: dict[str, str] | None = None) -> str:
    ended = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
    return ended.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make wheel` leaves, in a copy of the files that git knows."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in _checked(["git", "ls-files"], ROOT).splitlines():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    _checked(["make", "wheel", f"PYTHON={sys.executable}"], copy)
    return copy / "dist"


@pytest.mark.slow
def test_one_wheel_serves_every_python(dist: Path) -> None:
    names = sorted(path.name for path in dist.iterdir())
    assert len(names) == 2
    assert names[0].endswith(".tar.gz") or names[1].endswith(".tar.gz")
    wheel = next(name for name in names if name.endswith(".whl"))
    assert "-py3-none-manylinux_" in wheel
    with zipfile.ZipFile(dist / wheel) as content:
        files = content.namelist()
    # One library, found where the package looks for it, and what a run reads beside the code.
    assert [name for name in files if name.endswith(".so")] == ["megalith/ops/megalith_core.so"]
    assert "megalith/train/recipes/demo.yaml" in files
    assert not [name for name in files if name.endswith((".cpp", ".h"))]


@pytest.mark.slow
def test_the_wheel_runs_the_demo_without_a_compiler(dist: Path, tmp_path: Path) -> None:
    fresh = tmp_path / "venv"
    venv.create(fresh, with_pip=True)
    # Nothing but the environment's own programs is found: no compiler, no cmake, no git.
    environment = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {"PATH": str(fresh / "bin"), "HOME": str(tmp_path), "CC": "none", "CXX": "none"}
    wheel = str(next(dist.glob("*.whl")))
    install = ["-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt"), wheel]
    _checked([str(fresh / "bin" / "python"), *install], tmp_path, environment)
    shown = _checked(
        [str(fresh / "bin" / "megalith"), "demo", "--rows", "20000", "--json"], tmp_path, environment
    )
    result = json.loads(shown)
    assert result["steps"]["eval"]["split"] == "test"
    assert (tmp_path / result["report"]).stat().st_size > 1_000_000
