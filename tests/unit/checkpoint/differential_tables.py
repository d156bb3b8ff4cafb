"""Collections of every kind of store, trained a little between differential checkpoints."""

import torch

import megalith as mg
from megalith.checkpoint.differential.settings import CheckpointConfig
from megalith.checkpoint.store import CheckpointStore
from megalith.embeddings.stores.settings import TieredMemory
from stored_rows import rows_by_id

ROWS, DIM, FEATURES = 400, 8, ("f", "g")
POLICY = mg.AdaptivePolicy(ratio=2, chunk=4, end_step=20, warm_up=4, interval=3, gamma=0.9)
DYNAMIC = {
    "kind": "dynamic",
    "bound": 120,
    "admission": {"kind": "count", "count": 2, "counter_bytes": 8192},
    "eviction": {"kind": "score", "half_life": 6},
    "expiry": {"batches": 5, "interval": 3},
}
STORES = {
    "dense": "dense",
    "tiered": "tiered",
    "adaptive": "adaptive",
    "adaptive over tiered": {"kind": "adaptive", "over": {"kind": "tiered"}},
    "dynamic": DYNAMIC,
    "dynamic over tiered": {**DYNAMIC, "over": {"kind": "tiered"}},
    "dynamic over adaptive": {**DYNAMIC, "over": {"kind": "adaptive"}},
}
EXACT = CheckpointConfig(differential=True, compact_at=100.0)


class Tables:
    """Two tables in one kind of store, which share a feature, and a counter of steps."""

    def __init__(self, kind, folder, optimizer=None, seed=0):
        store = STORES[kind]
        is_dynamic = kind.startswith("dynamic")
        rows = {} if is_dynamic else {"rows": ROWS}
        tables = [
            mg.TableSpec(name=name, dim=DIM, features=features, pooling="sum", store=store, **rows)
            for name, features in (("t", FEATURES), ("u", FEATURES[1:]))
        ]
        memory = TieredMemory(dram=1 << 14, path=folder) if "tiered" in kind else None
        self.embeddings = mg.EmbeddingCollection(
            tables,
            optimizer or mg.RowWiseAdaGrad(lr=0.1),
            seed=seed,
            memory=memory,
            **({"adaptive": POLICY} if "adaptive" in kind else {}),
        )
        self.step = 0

    def train(self, steps=1):
        """The batches that follow: a function of the step."""
        for _ in range(steps):
            generator = torch.Generator().manual_seed(self.step)
            skewed = torch.rand(2 * 32, generator=generator) ** 3 * ROWS
            values = (skewed.long() + 3 * self.step) % ROWS
            offsets = torch.arange(len(values) + 1)
            output = self.embeddings(values, offsets)
            (output * torch.randn(output.shape, generator=generator)).sum().backward()
            self.step += 1

    def state(self):
        return {
            "step": self.step,
            "num_steps": self.embeddings.num_steps,
            "tables": self.embeddings.table_states(),
            "policy": self.embeddings.policy_state(),
            "dense": torch.full((3,), float(self.step)),
        }

    def load(self, store, step, follow=True):
        state = self.state()
        store.load(step, state)
        self.step, self.embeddings.num_steps = state["step"], state["num_steps"]
        self.embeddings.load_policy_state(state["policy"])
        if follow:
            store.follow(step, self.state())
        return self

    def save(self, store, background=False, **options):
        store.save(self.step, self.state(), {"samples": self.step}, background=background, **options)

    @property
    def rows(self):
        return rows_by_id(self.embeddings)


def differential(folder, config=EXACT, keep=100, **settings):
    return CheckpointStore(folder, keep, config=config.model_copy(update=settings))
