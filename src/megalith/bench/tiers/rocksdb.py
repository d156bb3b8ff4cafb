"""Rows in RocksDB, tuned as FBGEMM tunes its SSD tables: no log, compression or checks, large buffers."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from megalith.bench.tiers.candidates import GatheredTrainer
from megalith.bench.tiers.stream import TierStream

_BACKGROUND = (
    "num-running-compactions",
    "compaction-pending",
    "num-running-flushes",
    "mem-table-flush-pending",
)


class RocksTrainer(GatheredTrainer):
    """One database; keys of 8 bytes, values of a row with its state."""

    def __init__(self, stream: TierStream, folder: Path, memory_bytes: int) -> None:
        import rocksdict

        super().__init__(stream)
        self.folder = folder
        self._width = stream.dim + 1
        buffers = max(memory_bytes // 8, 4 << 20)
        self.settings = {
            "write_ahead_log": False,
            "compression": "none",
            "compaction": "universal, 400% of space",
            "verify_checksums": False,
            "bloom_bits": 10,
            "direct_reads": True,
            "block_bytes": 4096,
            "block_cache_bytes": memory_bytes - 2 * buffers,
            "write_buffer_bytes": buffers,
            "write_buffers": 2,
            "background_jobs": 2,
        }
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_compression_type(rocksdict.DBCompressionType.none())
        options.set_write_buffer_size(buffers)
        options.set_max_write_buffer_number(2)
        options.set_max_background_jobs(2)
        options.set_use_direct_reads(True)
        options.set_use_direct_io_for_flush_and_compaction(True)
        options.set_compaction_style(rocksdict.DBCompactionStyle.universal())
        universal = rocksdict.UniversalCompactOptions()
        universal.max_size_amplification_percent = 400
        options.set_universal_compaction_options(universal)
        table = rocksdict.BlockBasedOptions()
        table.set_block_size(4096)
        table.set_bloom_filter(10, False)
        table.set_block_cache(rocksdict.Cache(memory_bytes - 2 * buffers))
        table.set_cache_index_and_filter_blocks(True)
        options.set_block_based_table_factory(table)
        self._db: Any = rocksdict.Rdict(str(folder), options)
        written: Any = rocksdict.WriteOptions()
        written.disable_wal = True
        self._db.set_write_options(written)
        read = rocksdict.ReadOptions()
        read.set_verify_checksums(False)
        self._db.set_read_options(read)
        self._batch = rocksdict.WriteBatch

    def read(self, keys: Tensor) -> Tensor:
        """Many keys in one call; a row that is not there is zeros."""
        absent = bytes(self._width * 4)
        named = keys.numpy().astype(">i8")
        found = self._db.get([key.tobytes() for key in named])
        joined = bytearray(b"".join(row if row is not None else absent for row in found))
        return torch.from_numpy(np.frombuffer(joined, dtype=np.float32).reshape(len(keys), self._width))

    def write(self, keys: Tensor, rows: Tensor) -> None:
        """All rows of a batch in one write."""
        batch = self._batch(raw_mode=True)
        held = rows.numpy()
        for key, row in zip(keys.numpy().astype(">i8"), held, strict=True):
            batch.put(key.tobytes(), row.tobytes())
        self._db.write(batch)

    def report(self) -> dict[str, Any]:
        """Its options, as published with the result; waits until it has compacted what was written.

        That is not timed: whoever is measured next would share the disk with it otherwise.
        """
        while any(self._db.property_int_value(f"rocksdb.{name}") for name in _BACKGROUND):
            time.sleep(0.1)
        return {"settings": self.settings}

    def close(self) -> None:
        """Removes the database."""
        self._db.close()
        shutil.rmtree(self.folder, ignore_errors=True)
