"""A dynamic table in plain words: `IdMapTwin` decides, a table of row numbers in memory trains."""

import torch

import megalith as mg
from megalith.embeddings.stores.dynamic.settings import dynamic_rows, id_table_spec
from megalith.embeddings.stores.dynamic.store import DynamicStore
from megalith.ops.ids.id_map_twin import IdMapTwin
from megalith.ops.stores.start_values import start_values_twin


def dynamic_store(collection):
    (store,) = [store for store in collection.stores.stores if isinstance(store, DynamicStore)]
    return store


class DynamicTwin:
    """Tables of row numbers whose ids a plain map chooses; for tables that all are dynamic."""

    def __init__(self, tables, optimizer, seed, **settings):
        twin = mg.EmbeddingCollection(tables, optimizer, seed, **settings)
        self.store = dynamic_store(twin)
        self.tables, self.numbers = twin.tables, [dynamic_rows(table) for table in twin.tables]
        self.map = IdMapTwin([id_table_spec(t.store, t.rows, seed, t.name) for t in twin.tables])
        inner = [
            table.model_copy(
                update={
                    "rows": numbers.total,
                    "store": None,
                    "padding_index": None if numbers.padding < 0 else numbers.padding,
                }
            )
            for table, numbers in zip(twin.tables, self.numbers, strict=True)
        ]
        # Every lookup has a feature of its own here: one id has other rows in other tables.
        self.lookups = [(n, f) for n, table in enumerate(inner) for f in table.features]
        self.features = twin.features
        renamed = [
            table.model_copy(update={"features": tuple(f"{n} {f}" for f in table.features)})
            for n, table in enumerate(inner)
        ]
        self.inner = mg.EmbeddingCollection(renamed, optimizer, seed, **settings)
        for number, table in enumerate(renamed):
            weight = self.inner.weight(table.name)
            weight.zero_()
            unknown = self.store.unknown_start(number)
            if self.numbers[number].unknown != self.numbers[number].padding:
                weight[self.numbers[number].unknown] = start_values_twin(unknown, torch.tensor([0]))[0]
        self.batch = 0

    def rows(self, values, offsets, *, trains):
        """Rows of a batch as the inner tables take them, with offsets of a feature for each lookup."""
        batch = (len(offsets) - 1) // len(self.features)
        pieces, lengths, lookups, at = [], [], [], 0
        for number, feature in self.lookups:
            place = self.features.index(feature)
            edges = offsets[place * batch : (place + 1) * batch + 1]
            pieces.append(values[edges[0] : edges[-1]])
            lengths.append(edges.diff())
            lookups.append((number, at, at + len(pieces[-1])))
            at += len(pieces[-1])
        spread = torch.cat(pieces)
        padded = torch.zeros(len(spread), dtype=torch.bool)
        asked, ids = [], []
        for number, first, last in lookups:
            index = self.tables[number].padding_index
            own = spread[first:last]
            padded[first:last] = own == index if index is not None else False
            kept = own[~padded[first:last]].tolist()
            asked.append((number, len(ids), len(ids) + len(kept)))
            ids += kept
        if trains:
            self.batch += 1
            expiry = [table.store.expiry for table in self.tables]
            rules = [e for e in expiry if (e.batches, e.seconds, e.score) != (None, None, None)]
            if rules and self.batch % min(e.interval for e in rules) == 0:
                self.map.expire(self.batch)
        found, new, _ = self.map.resolve(asked, ids, self.batch, trains)
        for number, row, id_ in new:
            name = self.tables[number].name
            self.inner.weight(name)[row] = start_values_twin(self.store.starts[number], torch.tensor([id_]))[
                0
            ]
            for state in self.inner.state(name).values():
                state[row] = 0
        rows = torch.empty(len(spread), dtype=torch.int64)
        for (number, first, last), (_, begin, end) in zip(lookups, asked, strict=True):
            numbers = self.numbers[number]
            own = torch.full((last - first,), numbers.padding)
            mapped = torch.tensor(found[begin:end], dtype=torch.int64)
            own[~padded[first:last]] = torch.where(mapped < 0, numbers.unknown, mapped)
            rows[first:last] = own
        return rows, torch.cat([torch.zeros(1, dtype=torch.int64), torch.cat(lengths).cumsum(0)])

    def weights(self, weights, offsets):
        batch = (len(offsets) - 1) // len(self.features)
        ends = offsets[:: max(batch, 1)] if batch else torch.zeros(len(self.features) + 1, dtype=torch.int64)
        places = [self.features.index(feature) for _, feature in self.lookups]
        return torch.cat([weights[ends[place] : ends[place + 1]] for place in places])
