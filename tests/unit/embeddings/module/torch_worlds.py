"""Tables of every store, a batch for them, and a model around them."""

import torch
from torch import nn

import megalith as mg

BATCH = 6
STORES = ("dense", "adaptive", "dynamic", "tiered")


def tables(store="dense", **changes):
    given = {"init_scale": 1.0, "store": None if store == "dense" else store} | changes
    rows = {"rows": 50}, {"rows": 40}
    if store == "dynamic":
        given |= {"store": {"kind": "dynamic", "bound": 4096}}
        rows = {}, {}
    return [
        mg.TableSpec(name="a", dim=4, features=("f", "g"), **rows[0], **given),
        mg.TableSpec(name="b", dim=8, features=("g",), pooling="mean", **rows[1], **given),
    ]


def collection(store="dense", optimizer=None, *, path=None, seed=1, **options):
    if store == "adaptive":
        options.setdefault("adaptive", mg.AdaptivePolicy(ratio=1, end_step=100))
    if store == "tiered":
        options["memory"] = mg.TieredMemory(dram="64KiB", path=path)
    return mg.EmbeddingCollection(tables(store), optimizer or mg.AdaGrad(lr=0.1), seed=seed, **options)


def batch(seed=0, size=BATCH):
    """Ids of two features with duplicates and empty bags, and a factor for each id."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 4, (2 * size,), generator=draw)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    values = torch.randint(0, 12, (int(offsets[-1]),), generator=draw)
    return values, offsets, torch.rand(len(values), generator=draw)


def vectors_of(emb):
    """What every id of a batch's range reads now."""
    ids = torch.arange(12).repeat(2)
    mode = emb.training
    with torch.no_grad():
        found = emb.eval()(ids, torch.arange(25))
    emb.train(mode)
    return found.clone()


class Scorer(nn.Module):
    """A model that contains the tables."""

    def __init__(self, emb, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.emb = emb
        self.layers = nn.Sequential(nn.Linear(emb.output_dim, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, values, offsets, weights=None):
        return self.layers(self.emb(values, offsets, weights)).squeeze(1)
