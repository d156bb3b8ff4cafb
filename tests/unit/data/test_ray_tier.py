"""Readers as processes of Ray: the batches of the local engine, whatever becomes of the readers."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from forked import run_forked
from megalith.comm.ranks import Ranks
from megalith.core.errors import DataError
from megalith.data.batch import Batch
from megalith.data.ingest import RawDataset, RawFilesConfig
from megalith.data.ingest.tier import IngestConfig, open_tier
from megalith.data.loader import Loader
from megalith.data.loader.readers import WindowReaders

pytest.importorskip("ray", reason="needs Ray: pip install 'megalith[ray]'")

ROWS, BATCH = 40_000, 1_000
SETTINGS = {"batch_size": BATCH, "seed": 4, "shuffle_window_rows": 4_000, "epochs": 1}


def write_logs(folder: Path) -> Path:
    """Raw files with numbers, ids and lists of ids."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    ends = np.concatenate([[0], np.cumsum(draw.integers(0, 4, ROWS))]).astype(np.int32)
    table = pa.table(
        {
            "label": draw.integers(0, 2, ROWS),
            "price": draw.random(ROWS),
            "user": draw.integers(0, 5000, ROWS),
            "tags": pa.ListArray.from_arrays(pa.array(ends), pa.array(draw.integers(0, 50, ends[-1]))),
            "weight": draw.random(ROWS),
        }
    )
    for number in range(3):
        part = table.slice(number * ROWS // 3, ROWS // 3 + (number == 2))
        pq.write_table(part, folder / f"day-{number}.parquet")
    return folder


def raw_loader(logs: Path, readers: WindowReaders | None, rank: int = 0) -> Loader:
    config = RawFilesConfig(source="parquet", hash_buckets=500, weight="weight")
    raw = RawDataset(logs, config, group_rows=2_000)
    options = {**SETTINGS, "rank": rank, "world_size": 2, "share": "slices"}
    return Loader(raw, ["train"], **options, rows=raw.rows(["train"]), readers=readers)


def same(one: Batch, other: Batch) -> bool:
    names = ("dense", "values", "offsets", "labels", "weights", "event_times")
    pairs = [(getattr(one, name), getattr(other, name)) for name in names]
    return all(a is b is None or torch.equal(a, b) for a, b in pairs)


def read_through_a_death(folder: Path) -> None:
    """All batches from two readers, one of which is killed on the way, against those of threads."""
    logs = write_logs(folder / "logs")
    tier = open_tier(IngestConfig(engine="ray", readers=2), Ranks())
    tier.start()
    queues = []

    class Watched:
        def open(self, work):
            assert tier.readers is not None
            queues.append(tier.readers.open(work))
            return queues[-1]

    expected = list(raw_loader(logs, None, rank=1).stream())
    assert len(expected) == ROWS // BATCH
    loader, read, killed = raw_loader(logs, Watched(), rank=1), [], set()
    for batch in loader.stream():
        read.append(batch)
        # Nothing is asked for beyond the bound, and memory of a batch is that which the reader filled.
        assert len(queues[0]) <= 4
        if len(read) in (3, 29):
            pids = queues[0].pids()
            os.kill(pids[-1], signal.SIGKILL)
            killed |= set(pids)
    assert len(read) == len(expected)
    assert all(same(one, other) for one, other in zip(read, expected, strict=True))
    assert len(killed) > 2

    # From the exact batch, over a resume with the other engine.
    loader = raw_loader(logs, None, rank=1)
    stream = loader.stream()
    for _ in range(13):
        next(stream)
    resumed = raw_loader(logs, tier.readers, rank=1)
    resumed.load_state_dict(loader.state_dict())
    rest = list(resumed.stream())
    assert len(rest) == len(expected) - 13
    assert all(same(one, other) for one, other in zip(rest, expected[13:], strict=True))

    # What is wrong with a file is one sentence here too.
    broken = raw_loader(logs, tier.readers)
    (logs / "day-2.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"day-2\.parquet is not a whole Parquet file"):
        list(broken.stream())
    tier.close()


def test_readers_give_the_batches_of_threads_also_when_they_are_killed(tmp_path: Path) -> None:
    run_forked(read_through_a_death, tmp_path)
