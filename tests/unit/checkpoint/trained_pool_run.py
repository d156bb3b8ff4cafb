"""A run that trains tables in a row pool and saves checkpoints, to be killed anywhere: see killed_runs.py."""

import hashlib

import torch

from megalith.checkpoint.store import CheckpointStore
from megalith.embeddings.stores.row_files import clear_rows
from row_pools import Table, make_pool

STEPS, EVERY, BATCH = 60, 11, 90
TABLES = [Table("a", 3000, 16), Table("b", 1500, 16)]


def ids_of(step):
    """The rows of a step: few of them often, the rest anywhere."""
    generator = torch.Generator().manual_seed(step)
    spread = torch.rand(2, BATCH, generator=generator, dtype=torch.float64) ** 3
    return [(spread[number] * table.rows).long().unique() for number, table in enumerate(TABLES)]


def run(folder, engine, background):
    """Trains from the last checkpoint, or the start, to the end; a digest of all rows."""
    # What a killed process has left is of no use: rows come from the checkpoint.
    clear_rows(folder / "rows")
    windows = [(table, table.whole()) for table in TABLES]
    pool = make_pool(folder / "rows", windows, capacity=450, engine=engine)
    state = {
        "step": 0,
        "tables": {table.name: table.state([pool.shard(n)]) for n, table in enumerate(TABLES)},
    }
    store = CheckpointStore(folder / "checkpoints")
    latest = store.latest()
    if latest is not None:
        store.load(latest, state)
    first = state["step"] + 1
    resolved = {}
    for step in range(first, STEPS + 1):
        # Rows of the next step are resolved before this one is computed, as training does.
        for ahead in range(step, min(step + 2, STEPS + 1)):
            if ahead not in resolved:
                ids = ids_of(ahead)
                ends = torch.tensor([0, *map(len, ids)]).cumsum(0)
                lookups = torch.stack([torch.arange(len(ids)), ends[:-1], ends[1:]], dim=1)
                resolved[ahead] = pool.rows.resolve(lookups, torch.cat(ids), ahead - first + 1, trains=True)
        slots = resolved.pop(step).long()
        pool.rows.arrive(step - first + 1)
        for number, part in enumerate(pool.rows.parts):
            part[slots] = part[slots] * 0.75 + step + number
        pool.rows.release(step - first + 1)
        state["step"] = step
        if step % EVERY == 0:
            store.save(step, state, {}, background=background)
    store.close()
    digest = hashlib.sha256()
    for number, table in enumerate(TABLES):
        for part in pool.rows.read(number, torch.arange(table.rows)):
            digest.update(part.numpy().tobytes())
    left = [path.name for path in (folder / "checkpoints").glob(".*")] + [
        path.name for path in (folder / "rows").glob("held-*")
    ]
    return {"rows": digest.hexdigest(), "from": first - 1, "left": left}
