"""What a map of ids says of its memory, against the memory of a process that has one."""

import json
import os
import subprocess
import sys

import pytest

SCRIPT = """
import gc, json, resource
from pathlib import Path
import numpy as np, torch
from megalith.ops.ids.id_map import IdMap
from megalith.ops.ids.policies import IdAdmission, IdEviction, IdExpiry, IdTableSpec

def resident():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

ROWS, BATCH = 8_000_000, 100_000
generator = np.random.default_rng(1)
counted = IdAdmission("count", count=1, counter_bytes=8 << 20)
spec = IdTableSpec(ROWS, counted, IdEviction("lfu"), IdExpiry(seconds=9))
lookups, times = torch.tensor([[0, 0, BATCH]]), torch.ones(BATCH, dtype=torch.int64)
def run(ids, batches, first):
    for batch in range(first, first + batches):
        values = torch.from_numpy(generator.integers(-(2**63), 2**63, BATCH))
        ids.resolve(lookups, values, batch, True, times)
# What the first map of a process loads is not the map's.
IdMap([IdTableSpec(64)]).resolve(torch.tensor([[0, 0, 1]]), torch.tensor([1]), 1, True)
told, before = [], resident()
ids = IdMap([spec])
def tell(name):
    parts = ids.bytes()
    planned = ids.tables[0].map_bytes if name != "a third full" else None
    told.append((name, sum(parts.values()), resident() - before, parts["scratch"], planned))
run(ids, 27, 1)
tell("a third full")
run(ids, 80, 28)
tell("full")
ids.change_bound(0, ROWS * 3 // 4)
run(ids, 1, 108)
tell("three quarters")
ids.change_bound(0, ROWS)
run(ids, 30, 109)
tell("grown again")
print(json.dumps(told))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_bytes_are_within_five_percent_of_resident_memory():
    # What the caller's arrays leave in an allocator is not the map's: with these settings they leave nothing.
    settings = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=os.environ | settings
    )
    assert done.returncode == 0, done.stderr
    for name, told, resident, scratch, planned in json.loads(done.stdout):
        assert abs(told - resident) < 0.05 * resident, (name, told, resident)
        # What a full table takes is known before.
        assert planned is None or abs(planned - (told - scratch)) < 0.05 * told, (
            name,
            told,
            scratch,
            planned,
        )
