"""Dynamic tables over chunks beside others, batches for them, and what they hold then."""

import itertools

import torch

import megalith as mg
from megalith.checkpoint.state import OptionalValues
from megalith.embeddings.stores.adaptive.store import AdaptiveStore
from stored_rows import rows_by_id

POLICY = mg.AdaptivePolicy(budget="80KiB", chunk=4, end_step=20, warm_up=4, interval=6, gamma=0.95)
ROOMY = mg.AdaptivePolicy(ratio=1, chunk=4, end_step=20, warm_up=4, interval=6)
BATCH, STEPS = 24, 40
COUNTED = {"kind": "count", "count": 2, "counter_bytes": 8192}
SETTINGS = {
    "a": {"admission": COUNTED, "eviction": {"kind": "lfu"}},
    "b": {"eviction": {"kind": "score", "half_life": 10}, "expiry": {"batches": 7, "interval": 4}},
    "c": {},
    "d": {"unknown": "zeros", "eviction": {"kind": "lfu", "halve_every": 5}},
}
SHAPES = {
    "a": {"dim": 16, "features": ("a",), "padding_index": 3},
    "b": {"dim": 8, "features": ("b", "d"), "dtype": "bfloat16", "pooling": "mean"},
    "c": {"dim": 16, "features": ("c",), "pooling": "none"},
    "d": {"dim": 8, "features": ("d",), "pooling": "max"},
}
LENGTHS = {"a": 2, "b": 2, "d": 1, "c": 2, "e": 1}
"""Ids of a sample, in the order in which tables name features."""


def tables(over="adaptive", bound=150, beside=True, beneath=None):
    """`beneath` is what chunks of adaptive tables lie in, memory if it is not given."""
    rows = {"kind": over} if beneath is None else {"kind": over, "over": {"kind": beneath}}
    made = [
        mg.TableSpec(
            name=name,
            store={"kind": "dynamic", "bound": bound, "over": rows, **SETTINGS[name]},
            **SHAPES[name],
        )
        for name in SHAPES
    ]
    if not beside:
        return made
    plain = rows if over == "adaptive" else None
    return [
        *made,
        mg.TableSpec(name="e", rows=500, dim=16, features=("e",), store=plain),
        mg.TableSpec(name="f", dim=16, features=("e",), store={"kind": "dynamic", "bound": 100}),
        mg.TableSpec(name="g", rows=500, dim=2, features=("e",)),
    ]


def make(policy=POLICY, optimizer=None, over="adaptive", memory=None, **given):
    adaptive = policy if over == "adaptive" else None
    beneath = None if memory is None else "tiered"
    return mg.EmbeddingCollection(
        tables(over, beneath=beneath, **given),
        optimizer or mg.Adam(lr=0.05),
        seed=3,
        adaptive=adaptive,
        memory=memory,
    )


def batch(step, features=tuple(LENGTHS)):
    """Ids that are popular for a while, and any 64 bits of dynamic tables."""
    generator = torch.Generator().manual_seed(step)
    values, lengths = [], []
    for feature in features:
        count = LENGTHS[feature]
        ids = (torch.rand(BATCH * count, generator=generator) ** 2 * 400).long()
        if feature != "e":
            ids = ids + 3 * step
            ids = torch.where(ids % 5 == 0, ids % 7, ids * -7046029254386353131)
        values.append(ids)
        lengths += [count] * BATCH
    return torch.cat(values), torch.tensor([0, *itertools.accumulate(lengths)])


def gradients_of(found, step):
    generator = torch.Generator().manual_seed(1000 + step)
    outputs = [found.pooled, *found.sequences.values()]
    return outputs, [torch.randint(-8, 9, out.shape, generator=generator) / 16 for out in outputs]


def train(embeddings, first, last, *, ahead=0, check=None):
    features = embeddings.features
    resolved, outputs = [], []
    for step in range(first, last):
        while len(resolved) <= ahead and step + len(resolved) < last:
            ids = embeddings.exchange(*batch(step + len(resolved), features))
            resolved.append(embeddings.resolve(ids, trains=True, wait=ahead > 0))
        found = embeddings.finish_lookup(embeddings.start_lookup(resolved.pop(0)))
        both = gradients_of(found, step)
        torch.autograd.backward(*both)
        outputs += [out.detach().clone() for out in both[0]]
        if step % 7 == 5:
            with torch.no_grad():
                embeddings(*batch(2000, features))
        if check is not None:
            check()
    return outputs


def contents(embeddings):
    """Every number by table and id, with the columns that live."""
    return rows_by_id(embeddings), embeddings.policy_state()


def same(outputs, others):
    return all(torch.equal(*each) for each in zip(outputs, others, strict=True))


def state_of(embeddings):
    return {
        "tables": embeddings.table_states(),
        "num_steps": embeddings.num_steps,
        "adaptive": OptionalValues(embeddings.policy_state()),
    }


def loaded(embeddings, store, step):
    state = state_of(embeddings)
    store.load(step, state)
    embeddings.num_steps = state["num_steps"]
    embeddings.load_policy_state(state["adaptive"])
    return embeddings


def chunked_places(embeddings):
    """(dynamic store, its table, adaptive store, its table) of each."""
    for store in embeddings.stores.dynamic:
        for number, (inner, own) in enumerate(store.places):
            if isinstance(inner, AdaptiveStore):
                yield store, number, inner, own


def check_rows_are_of_ids(embeddings):
    """No chunk, utility or candidate of a row that no id has, and every id is the row's."""
    for store, number, inner, own in chunked_places(embeddings):
        blocks = list(store.ids.scan(number, 1 << 20))
        rows = torch.cat([torch.empty(0, dtype=torch.int64), *(block.rows.long() for block in blocks)])
        ids = torch.cat([torch.empty(0, dtype=torch.int64), *(block.ids for block in blocks)])
        assert torch.equal(inner.pool.raw_ids[own][rows], ids)
        bound = inner.pool.ranked_rows[own]
        stored = inner.stored.ids(own)
        assert set(stored[stored < bound].tolist()) <= set(rows.tolist())
        assert stored[stored >= bound].tolist() == ([bound] if store.numbers[number].padding != bound else [])
        assert set(inner.sketch.entries(own)[0].tolist()) <= set(rows.tolist())
