"""Tables of every store, frozen: each row reads as the trained table has it, start values and zeros too."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from megalith.core.errors import DataError
from megalith.core.schema import TableSpec
from megalith.embeddings.collection import EmbeddingCollection
from megalith.embeddings.stores.adaptive.settings import AdaptivePolicy
from megalith.embeddings.stores.settings import TieredMemory
from megalith.export import tables as export_tables
from megalith.export.folder import table_file
from megalith.export.tables import TableSource, freeze_table
from megalith.export.tensor_file import read_tensors
from megalith.ops.frozen.formats import RowFormat
from megalith.ops.frozen.lookup import FrozenLookup
from megalith.ops.frozen.table import FrozenTable

ROWS, DIM = 700, 8
DYNAMIC = {"kind": "dynamic", "bound": 100}
STORES = {
    "dense": "dense",
    "tiered": "tiered",
    "adaptive": {"kind": "adaptive", "chunk": 2},
    "dynamic": DYNAMIC,
    "zeros": {**DYNAMIC, "unknown": "zeros"},
    "dynamic over tiered": {**DYNAMIC, "over": {"kind": "tiered"}},
    "dynamic over adaptive": {**DYNAMIC, "over": {"kind": "adaptive", "chunk": 2}},
}


def trained(store, tmp_path, ids, dtype="float32"):
    """A table of which only some ids took a step."""
    spec = TableSpec(
        name="t",
        rows=100 if "dynamic" in str(store) else ROWS,
        dim=DIM,
        features=("f",),
        store=store,
        dtype=dtype,
    )
    chunked = "adaptive" in str(store)
    tables = EmbeddingCollection(
        [spec],
        seed=3,
        memory=TieredMemory(dram=1 << 20, path=tmp_path / "rows"),
        adaptive=AdaptivePolicy(ratio=2.0, interval=2, warm_up=2, end_step=8) if chunked else None,
    )
    for step in range(6 if chunked else 1):
        values = ids[step % 2 :]
        out = tables(values, torch.arange(len(values) + 1))
        out.backward(torch.randn(out.shape, generator=torch.Generator().manual_seed(step)))
    return spec, tables


def frozen(spec, tables, path, precision="float32"):
    states = tables.table_states()
    source = TableSource(tables.tables[0], states["t"], states.get("t.unknown"))
    record = freeze_table(source, precision, path / table_file(0))
    held = {key.removeprefix("t/"): value for key, value in read_tensors(path / record.file).items()}
    table = FrozenTable(
        held["rows"],
        RowFormat(record.precision, record.scale),
        record.dim,
        (0,),
        chunk=record.chunk,
        starts=held.get("starts"),
        ids=held.get("ids"),
        unknown=record.unknown,
        name="t",
    )
    return record, FrozenLookup([table], ["f"])


def all_ids(store):
    if "dynamic" in str(store):
        return torch.tensor([-(2**63), -7, 0, 5, 5_000, 2**63 - 1, 2**63 - 2, *range(100, 160)])
    return torch.arange(ROWS)


@pytest.mark.parametrize("name", STORES)
def test_every_row_reads_as_it_was_trained(name, tmp_path):
    store = STORES[name]
    ids = all_ids(store)[3::7] if "dynamic" not in name else all_ids(store)[1:40]
    spec, tables = trained(store, tmp_path, ids)
    record, lookup = frozen(spec, tables, tmp_path)
    everything = all_ids(store)
    with torch.no_grad():
        wanted = tables(everything, torch.arange(len(everything) + 1))
    assert torch.equal(lookup(everything, torch.arange(len(everything) + 1)), wanted)
    assert (record.unknown is not None) == ("dynamic" in name and name != "zeros")
    assert (record.chunk is not None) == ("adaptive" in name)
    if name in ("tiered", "dense"):
        # Rows that no step touched have their start values, and these are not zeros.
        assert bool((wanted != 0).any(dim=1).all())


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("precision", ["float16", "int8", "int4"])
def test_few_bits_are_near(name, precision, tmp_path):
    store = STORES[name]
    spec, tables = trained(store, tmp_path, all_ids(store)[1:40])
    _, lookup = frozen(spec, tables, tmp_path, precision)
    everything = all_ids(store)
    offsets = torch.arange(len(everything) + 1)
    with torch.no_grad():
        wanted = tables(everything, offsets)
    spread = wanted.amax(dim=1) - wanted.amin(dim=1)
    error = (lookup(everything, offsets) - wanted).abs().amax(dim=1)
    share = {"float16": 0.002, "int8": 0.01, "int4": 0.5}[precision]
    assert bool((error <= share * spread + 1e-4).all())


def test_blocks_of_any_size_give_the_same_bytes(tmp_path, monkeypatch):
    for name in ("tiered", "dynamic over adaptive"):
        ids = all_ids(STORES[name])[1:40]
        (tmp_path / name).mkdir()
        spec, tables = trained(STORES[name], tmp_path / name, ids)
        files = []
        for size in (100, 1 << 20):
            monkeypatch.setattr(export_tables, "_BLOCK_BYTES", size)
            monkeypatch.setattr(export_tables, "_START_ROWS", 1 + size // 10)
            frozen(spec, tables, tmp_path / name, "int8")
            files.append((tmp_path / name / table_file(0)).read_bytes())
        assert files[0] == files[1]


def test_weights_that_are_no_numbers_are_refused_by_table(tmp_path):
    spec, tables = trained("dense", tmp_path, torch.arange(5))
    next(iter(tables.table_states()["t"].blocks(1 << 30))).parts["weight"][17, 3] = float("nan")
    with pytest.raises(DataError, match=r"table 't'"):
        frozen(spec, tables, tmp_path, "int8")


@given(st.sets(st.integers(2**63 - 9, 2**63 - 1)), st.none() | st.integers(2**63 - 9, 2**63 - 1))
def test_the_id_of_the_unknown_row_is_nobodys(ids, padding):
    listed = torch.tensor(sorted(ids), dtype=torch.int64)
    unused = export_tables.unused_id(listed, padding)
    taken = ids | {padding}
    assert unused not in taken
    assert all(other in taken for other in range(unused + 1, 2**63))
