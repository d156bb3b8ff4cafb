"""A run with a row pool on a file system that is too small, then on a roomy one: see killed_runs.py."""

import shutil
import subprocess

import trained_pool_run

from megalith.core.errors import MegalithError

ROOMY = 1 << 30


def run(folder, disk, size, engine):
    """The first time on a file system of `size` bytes, the second with room; what came of it."""
    goes_on = (folder / "again").exists()
    (folder / "again").touch()
    resize(disk, ROOMY if goes_on else size)
    try:
        result = trained_pool_run.run(folder, engine, background=False)
    except MegalithError as error:
        return {"error": str(error), "kind": type(error).__name__}
    if goes_on:
        shutil.rmtree(folder)
    return result


def resize(disk, size):
    subprocess.run(["mount", "-o", f"remount,size={size}", disk], check=True)
