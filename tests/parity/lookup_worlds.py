"""Random lookups for the embedding operators: many tables, odd dims, empty bags, duplicates."""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from megalith.core.schema import TableSpec
from megalith.embeddings.descriptors import CollectionLookups
from megalith.ops.optimizer.steps import OPTIMIZER_KINDS, OptimizerStep
from megalith.ops.tensors import STORED_DTYPES

DIMS = (1, 2, 3, 4, 7, 8, 10, 15, 16, 17, 24, 31, 32, 33, 48, 64, 65, 100, 128, 130, 200)
FEW_ROWS = st.integers(1, 12)
FULL_FIRST = {"adagrad", "adam", "rowwise_adam", "lamb", "lars"}


@dataclass
class World:
    """NativeTables, their optimizers' states and one batch."""

    lookups: CollectionLookups
    weights: list[torch.Tensor]
    first: list[torch.Tensor]
    second: list[torch.Tensor]
    steps: torch.Tensor
    values: torch.Tensor
    offsets: torch.Tensor
    sample_weights: torch.Tensor | None
    batch: int

    @property
    def lookup(self):
        return self.values, self.offsets, self.sample_weights, len(self.lookups.features)

    @property
    def rounding(self):
        generator = torch.Generator().manual_seed(7)
        seeds = torch.randint(-(2**62), 2**62, (len(self.weights), 1), generator=generator)
        return torch.cat([seeds, torch.randint(0, 2**33, (len(seeds), 2), generator=generator)], dim=1)

    def gradient(self):
        return torch.randn(self.batch, self.lookups.output_dim, generator=torch.Generator().manual_seed(5))

    def sequence_gradients(self):
        found = []
        for number, table, _ in self.lookups.sequences:
            feature = int(self.lookups.descriptors[number, 5])
            count = int(self.offsets[(feature + 1) * self.batch] - self.offsets[feature * self.batch])
            found.append(torch.randn(count, table.dim, generator=torch.Generator().manual_seed(6)))
        return found

    def copy(self):
        clones = ([tensor.clone() for tensor in one] for one in (self.weights, self.first, self.second))
        return World(self.lookups, *clones, self.steps, *self.lookup[:3], self.batch)


def random_weight(table, generator):
    return torch.randn(table.rows, table.dim, generator=generator).to(getattr(torch, table.dtype))


@st.composite
def worlds(
    draw,
    kinds=OPTIMIZER_KINDS,
    poolings=("sum", "mean", "max", "none"),
    dtypes=STORED_DTYPES,
    max_batch=5,
    row_counts=FEW_ROWS,
):
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    features = [f"f{i}" for i in range(draw(st.integers(1, 3)))]
    tables, first, second, steps = [], [], [], []
    for number in range(draw(st.integers(1, 3))):
        rows = draw(row_counts)
        table = TableSpec(
            name=f"t{number}",
            rows=rows,
            dim=draw(st.sampled_from(DIMS)),
            features=tuple(draw(st.lists(st.sampled_from(features), min_size=1, unique=True))),
            pooling=draw(st.sampled_from(poolings)),
            dtype=str(draw(st.sampled_from(dtypes))).removeprefix("torch."),
            padding_index=draw(st.sampled_from([None, None, 0, rows - 1])),
        )
        kind = draw(st.sampled_from(kinds))
        tables.append(table)
        shape = (table.rows, table.dim) if kind in FULL_FIRST else (table.rows,)
        first.append(torch.rand(shape if kind != "sgd" else (0,), generator=generator))
        full = {
            "adam": (table.rows, table.dim),
            "lamb": (table.rows, table.dim),
            "rowwise_adam": (table.rows,),
        }
        second.append(torch.rand(full.get(kind, (0,)), generator=generator))
        steps.append(
            OptimizerStep(
                kind=OPTIMIZER_KINDS.index(kind),
                lr=0.1,
                eps=1e-3,
                beta1=0.9,
                beta2=0.99,
                rest1=0.1,
                rest2=0.01,
                weight_decay=draw(st.sampled_from([0.0, 0.3])),
                max_gradient=draw(st.sampled_from([0.0, 0.5])),
                first_correction=0.5,
                second_correction=0.25,
                stochastic_rounding=draw(st.sampled_from([0.0, 1.0])),
            )
        )
    lookups = CollectionLookups(tables)
    smallest = {f: min(t.rows for t in tables if f in t.features) for f in lookups.features}
    batch = draw(st.integers(0, max_batch))
    lengths, values = [], []
    for feature in lookups.features:
        for _ in range(batch):
            lengths.append(draw(st.sampled_from([0, 1, 1, 2, 5, 40])))
            drawn = torch.randint(0, smallest[feature], (lengths[-1],), generator=generator)
            values.append(drawn)
    index = draw(st.sampled_from([torch.int32, torch.int64]))
    joined = torch.cat([torch.zeros(0, dtype=torch.int64), *values]).to(index)
    sample_weights = torch.rand(len(joined), generator=generator) if draw(st.booleans()) else None
    weights = [random_weight(table, generator) for table in tables]
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    return World(lookups, weights, first, second, torch.tensor(steps), joined, offsets, sample_weights, batch)
