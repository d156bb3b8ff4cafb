"""What adaptive tables say of their memory, against the memory of a process that has them."""

import json
import os
import subprocess
import sys

import pytest

SCRIPT = """
import ctypes, gc, json, resource, sys
from pathlib import Path
import torch
import megalith as mg

def resident():
    # What arrays of a step leave in the allocator is not the tables'.
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

def train(rows, ratio, begin, steps, batch, first_chunks):
    policy = mg.AdaptivePolicy(
        ratio=ratio, begin_ratio=begin, warm_up=2, end_step=steps // 2, interval=2, first_chunks=first_chunks
    )
    table = mg.TableSpec(name="t", rows=rows, dim=32, features=("t",), store={"kind": "adaptive", "chunk": 8})
    embeddings = mg.EmbeddingCollection([table], mg.RowWiseAdaGrad(), adaptive=policy)
    offsets = torch.arange(batch + 1)
    for step in range(steps):
        spread = torch.rand(batch, generator=torch.Generator().manual_seed(step)) ** 2
        out = embeddings((spread * rows).long(), offsets)
        out.backward(torch.ones_like(out))
        del out
    return embeddings

rows, ratio, begin, steps, batch, first_chunks = map(int, sys.argv[1:])
# What kernels keep for batches of this size is not the tables'.
other = train(rows, 2 * ratio, begin, 6, batch, first_chunks)
del other
before = resident()
embeddings = train(rows, ratio, begin, steps, batch, first_chunks)
figures = embeddings.adaptive()
print(json.dumps([figures.bytes.memory, resident() - before, figures.budget_bytes, figures.counts.pruned]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
@pytest.mark.parametrize(
    ("rows", "ratio", "begin", "steps", "first_chunks"),
    [
        (1_000_000, 1, 1, 24, 4),
        (8_000_000, 4, 2, 60, 4),
        (12_000_000, 16, 4, 60, 1),
        (40_000_000, 64, 64, 40, 1),
    ],
)
def test_bytes_are_within_five_percent_of_resident_memory(rows, ratio, begin, steps, first_chunks):
    settings = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    arguments = map(str, (rows, ratio, begin, steps, 1 << 17, first_chunks))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, env=os.environ | settings
    )
    assert done.returncode == 0, done.stderr
    told, resident, budget, pruned = json.loads(done.stdout)
    assert abs(told - resident) < 0.05 * resident, (told, resident)
    if ratio > 1:
        assert pruned > 0
        assert told < 1.02 * budget
