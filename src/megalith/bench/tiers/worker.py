"""A process that trains one candidate, a round at a time as its parent asks: memory is limited for it alone.

python -m megalith.bench.tiers.worker SETTINGS     # reads lines `first last dense`, answers each with JSON
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch

from megalith.bench.tiers.candidates import CollectionTrainer, DensePart, MappedTrainer, StreamTrainer
from megalith.bench.tiers.stream import TierStream
from megalith.embeddings.stores.settings import TieredMemory

MEMORY, TIERED, MAPPED, ROCKSDB = "memory", "tiered", "mapped", "rocksdb"


def make_trainer(settings: dict[str, Any]) -> StreamTrainer:
    """The candidate that settings describe."""
    stream, folder = TierStream(**settings["stream"]), Path(settings["folder"])
    kind, cache = settings["kind"], settings["cache_bytes"]
    if kind == MEMORY:
        return CollectionTrainer(stream, None)
    if kind == MAPPED:
        return MappedTrainer(stream, folder)
    if kind == ROCKSDB:
        from megalith.bench.tiers.rocksdb import RocksTrainer

        return RocksTrainer(stream, folder, cache)
    chosen = {name: settings[name] for name in ("policy", "window", "engine")}
    return CollectionTrainer(stream, TieredMemory(dram=cache, path=folder, **chosen))


def touch_all(trainer: StreamTrainer, stream: TierStream) -> None:
    """Trains every row of the stream once."""
    number = 0
    while (values := stream.fill(number)) is not None:
        trainer.train([values])
        number += 1


def resident_bytes() -> dict[str, int]:
    """Memory of this process now and at its most, without files that are mapped."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    kilobytes = {
        key: int(rest.split()[0])
        for key, _, rest in (line.partition(":") for line in lines)
        if key in ("VmRSS", "VmHWM", "RssAnon")
    }
    return {name: size * 1024 for name, size in kilobytes.items()}


def serve(settings: dict[str, Any]) -> None:
    """Touches every row, then trains the batches it is asked for."""
    torch.set_num_threads(settings["threads"])
    stream = TierStream(**settings["stream"])
    before = resident_bytes()
    start = perf_counter()
    trainer = make_trainer(settings)
    if settings["fill"]:
        touch_all(trainer, stream)
    print(json.dumps({"fill_seconds": perf_counter() - start}), flush=True)
    for line in sys.stdin:
        first, last, dense_part = map(int, line.split())
        if dense_part and isinstance(trainer, CollectionTrainer) and trainer.dense_part is None:
            trainer.dense_part = DensePart(stream)
        batches = [stream.values(number) for number in range(first, last)]
        start, cpu_start = perf_counter(), process_time()
        trainer.train(batches)
        taken = {"seconds": perf_counter() - start, "cpu_seconds": process_time() - cpu_start}
        memory = {"resident": resident_bytes(), "resident_before": before}
        print(json.dumps({**taken, **memory, "report": trainer.report()}), flush=True)
    trainer.close()


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
