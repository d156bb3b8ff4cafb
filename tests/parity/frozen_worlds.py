"""Random frozen tables and batches: every format, odd dims, empty bags, listed ids, unequal rows."""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from megalith.ops.frozen.encode_twin import encode_rows_twin
from megalith.ops.frozen.formats import RowFormat
from megalith.ops.frozen.prefix import PrefixFormat, encode_prefix_rows, stored_starts
from megalith.ops.frozen.table import FrozenTable

FORMATS = (
    RowFormat("float32"),
    RowFormat("float16"),
    RowFormat("int8", "float16"),
    RowFormat("int8", "float32"),
    RowFormat("int4", "float16"),
    RowFormat("int4", "float32"),
)
INTEGERS = tuple(form for form in FORMATS if form.is_integer)
DIMS = (1, 2, 3, 5, 8, 15, 16, 17, 31, 32, 33, 48, 64, 65, 96, 100, 128, 130, 200)
INDICES = (torch.int32, torch.int64)


@dataclass
class FrozenWorld:
    """Tables and one batch."""

    tables: list[FrozenTable]
    features: list[str]
    values: torch.Tensor
    offsets: torch.Tensor
    sample_weights: torch.Tensor | None


def random_weights(draw, rows, dim, *, wild):
    """Of one size; if `wild`, of sizes that only scales of float32 hold, some rows constant."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    weights = torch.randn(rows, dim, generator=generator)
    if not wild:
        return weights * draw(st.sampled_from([0.01, 1.0]))
    sizes = draw(
        st.lists(st.sampled_from([0.0, 1e-45, 1e-40, 1e-20, 1e-3, 1.0, 1e30]), min_size=rows, max_size=rows)
    )
    shifts = draw(
        st.lists(st.sampled_from([0.0, -0.0, 1.0, -7e4, 1e-41, 1e37]), min_size=rows, max_size=rows)
    )
    return weights * torch.tensor(sizes)[:, None] + torch.tensor(shifts)[:, None]


@st.composite
def frozen_tables(draw, number, features):
    rows, dim = draw(st.integers(1, 12)), draw(st.sampled_from(DIMS))
    form = draw(st.sampled_from(FORMATS))
    weights = random_weights(draw, rows, dim, wild=form.scale == "float32" and draw(st.booleans()))
    listed, cut = draw(st.booleans()), draw(st.booleans())
    chunk = draw(st.sampled_from([2, 4, 8, 16, dim]))
    starts = None
    if cut and chunk <= dim:
        layout = PrefixFormat(form, dim, chunk)
        chunks = st.integers(0, layout.num_chunks)
        kept = torch.tensor(draw(st.lists(chunks, min_size=rows, max_size=rows)))
        data, bounds = encode_prefix_rows(weights, kept, layout, encode=encode_rows_twin)
        starts = stored_starts(bounds)
    else:
        data, chunk = encode_rows_twin(weights, form), None
    ids = torch.tensor(sorted(draw(st.sets(st.integers(-8, 12), min_size=rows, max_size=rows)))) * 10**17
    return FrozenTable(
        rows=data,
        form=form,
        dim=dim,
        features=tuple(draw(st.lists(st.integers(0, features - 1), min_size=1, max_size=3, unique=True))),
        pooling=draw(st.sampled_from(["sum", "mean", "max"])),
        padding=draw(st.sampled_from([None, None, 0, -(10**17)])),
        chunk=None if starts is None else chunk,
        starts=starts,
        ids=ids if listed else None,
        unknown=draw(st.sampled_from([None, 0, rows - 1])) if listed else None,
        name=f"t{number}",
    )


@st.composite
def frozen_worlds(draw, max_batch=5):
    features = draw(st.integers(1, 3))
    tables = [draw(frozen_tables(number, features)) for number in range(draw(st.integers(1, 3)))]
    batch = draw(st.integers(0, max_batch))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    lengths, values = [], []
    index = torch.int64
    for feature in range(features):
        own = [table for table in tables if feature in table.features]
        limits = [table.num_rows for table in own if table.ids is None]
        lists = [table.ids for table in own if table.ids is not None]
        for _ in range(batch):
            lengths.append(draw(st.sampled_from([0, 0, 1, 1, 2, 7, 8, 9, 90])))
            if limits or not lists:
                drawn = torch.randint(0, min([12, *limits]), (lengths[-1],), generator=generator)
            else:
                drawn = torch.randint(-10, 14, (lengths[-1],), generator=generator) * 10**17
            values.append(drawn)
    joined = torch.cat([torch.zeros(0, dtype=torch.int64), *values])
    if not len(joined) or int(joined.abs().max()) < 100:
        index = draw(st.sampled_from(INDICES))
    offsets = torch.tensor([0, *lengths]).cumsum(0).to(draw(st.sampled_from(INDICES)))
    weights = torch.randn(len(joined), generator=generator) if draw(st.booleans()) else None
    return FrozenWorld(tables, [f"f{n}" for n in range(features)], joined.to(index), offsets, weights)
