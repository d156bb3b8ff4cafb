"""Signals end waits for a disk (Ctrl-Z and `fg`, a debugger, a profiler): nothing hangs or is lost."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from megalith.ops.stores.disk_probe import measure_disk

STEPS = """
import ctypes, sys
import torch
import megalith as mg

engine, folder = sys.argv[1:]
tables = [mg.TableSpec(name="t", rows=20_000, dim=16, features=("f",), store="tiered")]
memory = mg.TieredMemory(dram=1 << 18, path=folder, window=0, engine=engine)
collection = mg.EmbeddingCollection(tables, optimizer=mg.RowWiseAdaGrad(lr=0.1), seed=1, memory=memory)
generator, total = torch.Generator().manual_seed(5), 0.0
for _ in range(150):
    values = torch.randint(0, 20_000, (400,), generator=generator)
    vectors = collection(values, torch.arange(401))
    total += float(vectors.detach().double().abs().sum())
    vectors.backward(torch.ones_like(vectors))
waits = 0
if engine == "io_uring":
    waits = ctypes.CDLL(None).interrupted_waits()
print(total, waits)
"""


def trained(engine, folder, **surroundings):
    """The sum of all outputs, and how many waits a signal ended."""
    command = [sys.executable, "-c", STEPS, engine, str(folder)]
    run = subprocess.run(
        command, env={**os.environ, **surroundings}, capture_output=True, text=True, timeout=300, check=True
    )
    total, waits = run.stdout.split()
    return float(total), int(waits)


def test_waits_that_signals_end_lose_nothing(tmp_path):
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    if measure_disk(tmp_path, seconds=0.01, file_bytes=4 << 20).engine != "io_uring":
        pytest.skip("the system has no io_uring")
    shim = tmp_path / "interrupt_waits.so"
    source = Path(__file__).parents[1] / "interrupt_waits.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", shim, source, "-ldl"], check=True)
    total, waits = trained("io_uring", tmp_path / "ring", LD_PRELOAD=str(shim))
    assert waits > 10
    assert total == trained("threads", tmp_path / "threads")[0]
