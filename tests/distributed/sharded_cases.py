"""Real processes that train the same tables twice: sharded over all of them, and whole in each.

Cases are drawn by the parent and many run in one group of processes.
"""

import itertools
import os
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from processes import on_ranks

import megalith as mg
from megalith.sharding.plan import ExchangeConfig, Placement, Shard, ShardingPlan
from megalith.sharding.runtime.collection import ShardedEmbeddingCollection

TOLERANCE = 1e-5


@dataclass
class Step:
    """A global batch, feature-major, and how many of its samples each rank has."""

    values: torch.Tensor
    offsets: torch.Tensor
    sample_weights: torch.Tensor | None
    batches: list[int]
    gradient: torch.Tensor
    features: tuple[str, ...] = ()
    sequence_gradients: dict = field(default_factory=dict)
    """(table, feature) -> [ids of the feature, dim]"""
    unused: list[set] = field(default_factory=list)
    """By rank: outputs that its loss does not depend on, "pooled" or (table, feature)."""

    def of_rank(self, rank):
        return self.part(rank)[1:]

    def part(self, rank):
        """Which ids are the rank's, and what it looks up and gets back."""
        total, first = sum(self.batches), sum(self.batches[:rank])
        features = (len(self.offsets) - 1) // total if total else 0
        pieces, lengths = [], []
        for feature in range(features):
            begin = feature * total + first
            edges = self.offsets[begin : begin + self.batches[rank] + 1]
            pieces.append(torch.arange(int(edges[0]), int(edges[-1])))
            lengths.append(edges.diff())
        chosen = torch.cat(pieces) if pieces else torch.zeros(0, dtype=torch.int64)
        counts = torch.cat(lengths) if lengths else torch.zeros(0, dtype=torch.int64)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
        weights = None if self.sample_weights is None else self.sample_weights[chosen]
        gradient = self.gradient[first : first + self.batches[rank]]
        return chosen, self.values[chosen], offsets, weights, gradient

    def sequence_ranges(self, rank):
        """Which ids of each feature are the rank's."""
        total, first = sum(self.batches), sum(self.batches[:rank])
        ranges = {}
        for number, feature in enumerate(self.features):
            begin = number * total
            edges = self.offsets[begin : begin + total + 1] - self.offsets[begin]
            ranges[feature] = slice(int(edges[first]), int(edges[first + self.batches[rank]]))
        return ranges

    def is_used(self, output, rank):
        return not self.unused or output not in self.unused[rank]

    def gradients(self, outputs, rank):
        """What a rank's outputs get back: pairs of an output and its gradient."""
        ranges, first = self.sequence_ranges(rank), sum(self.batches[:rank])
        own = {name: whole[ranges[name[1]]] for name, whole in self.sequence_gradients.items()}
        own["pooled"] = self.gradient[first : first + self.batches[rank]]
        return [(outputs[name], gradient) for name, gradient in own.items() if self.is_used(name, rank)]

    def gradients_of_all(self, outputs):
        """The same for one process: ranks that do not use an output that others use give it zeros."""
        ranks = range(len(self.batches))
        pairs = []
        for name, output in outputs.items():
            whole = (self.gradient if name == "pooled" else self.sequence_gradients[name]).clone()
            for rank in ranks:
                first = sum(self.batches[:rank])
                samples = slice(first, first + self.batches[rank])
                if not self.is_used(name, rank):
                    whole[samples if name == "pooled" else self.sequence_ranges(rank)[name[1]]] = 0.0
            if any(self.is_used(name, rank) for rank in ranks):
                pairs.append((output, whole))
        return pairs


@dataclass
class Case:
    name: str
    tables: list
    plan: ShardingPlan
    steps: list[Step]
    optimizer: object = field(default_factory=lambda: mg.SGD(lr=0.1))
    table_optimizers: dict = field(default_factory=dict)
    tolerance: float = TOLERANCE
    codec_tolerance: float | None = None
    """Of outputs whose vectors travel in a smaller type."""
    weight_gradients: bool = False
    """Whether sample weights, where there are any, want a gradient."""
    ahead: bool = False
    """Whether the ids of a batch are sent before the one before it is looked up."""
    row_bytes: list[int] | None = None
    """Encoded bytes of a sample's vectors of each worker, forward and backward."""


def split(size, parts):
    """Nearly equal ranges; some may be empty and are left out."""
    edges = [size * part // parts for part in range(parts + 1)]
    return [(a, b) for a, b in itertools.pairwise(edges) if a < b]


def placement(table, kind, world_size, workers_per_node=None, first=0):
    """A table placed as `kind` says, beginning at worker or node `first`."""
    per_node = workers_per_node or world_size
    num_nodes = -(-world_size // per_node)
    node = first % num_nodes
    inside = list(range(node * per_node, min((node + 1) * per_node, world_size)))
    everyone = [(first + w) % world_size for w in range(world_size)]
    rows, columns = (0, table.rows), (0, table.dim)

    def shards(workers, row_ranges, column_ranges):
        cells = [(r, c) for c in column_ranges for r in row_ranges]
        return tuple(Shard(worker=w, rows=r, columns=c) for w, (r, c) in zip(workers, cells, strict=False))

    if kind == "table_wise":
        placed = shards([first % world_size], [rows], [columns])
    elif kind == "data_parallel":
        placed = tuple(Shard(worker=w, rows=rows, columns=columns) for w in range(world_size))
    elif kind == "row_wise":
        placed = shards(everyone, split(table.rows, world_size), [columns])
    elif kind == "column_wise":
        placed = shards(everyone, [rows], split(table.dim, world_size))
    elif kind == "table_row":
        placed = shards(inside, split(table.rows, len(inside)), [columns])
    elif kind == "table_column":
        placed = shards(inside, [rows], split(table.dim, len(inside)))
    else:
        placed = ()
        for number, part in enumerate(split(table.dim, num_nodes)):
            n = (node + number) % num_nodes
            members = list(range(n * per_node, min((n + 1) * per_node, world_size)))
            placed += shards(members, split(table.rows, len(members)), [part])
    return Placement(table=table.name, kind=kind, shards=placed)


def plan_of(tables, kinds, world_size, workers_per_node=None, exchange=None):
    placements = [
        placement(table, kind, world_size, workers_per_node, number)
        for number, (table, kind) in enumerate(zip(tables, kinds, strict=True))
    ]
    return ShardingPlan(
        world_size=world_size,
        workers_per_node=workers_per_node or world_size,
        placements=tuple(placements),
        exchange=exchange or ExchangeConfig(),
    )


def drawn_step(tables, batches, generator, *, max_length=3, uniform=False, weighted=False):
    """A batch with empty bags and repeated ids, unless every bag is to have `max_length` of them."""
    features = list(dict.fromkeys(feature for table in tables for feature in table.features))
    total = sum(batches)
    lengths, values = [], []
    for feature in features:
        rows = min(table.rows for table in tables if feature in table.features)
        count = torch.randint(0, max_length + 1, (total,), generator=generator)
        count = torch.full((total,), max_length) if uniform else count
        lengths.append(count)
        values.append(torch.randint(0, rows, (int(count.sum()),), generator=generator))
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), torch.cat(lengths).cumsum(0)])
    ids = torch.cat(values)
    width = sum(table.output_dim for table in tables)
    weights = torch.rand(len(ids), generator=generator) + 0.5 if weighted else None
    gradient = torch.randn(total, width, generator=generator) * 0.3
    counts = dict(zip(features, map(len, values), strict=True))
    sequences = {
        (table.name, feature): torch.randn(counts[feature], table.dim, generator=generator) * 0.3
        for table in tables
        if table.pooling == "none"
        for feature in table.features
    }
    return Step(ids, offsets, weights, list(batches), gradient, tuple(features), sequences)


def run_cases(world_size, cases, separate=()):
    """Runs all cases in one group of processes; the first that fails ends them all.

    Ranks of `separate` share no memory with others, as if each were on a machine of its own.
    """
    assert all(case.plan.world_size == world_size for case in cases)
    on_ranks(world_size, _check_all, cases, separate)


def _check_all(cases, separate):
    rank = dist.get_rank()
    if rank in separate:
        os.environ["MEGALITH_SHARED_MEMORY"] = "0"
    for case in cases:
        try:
            check(case, rank)
        except Exception as error:
            raise AssertionError(f"{case.name}, rank {rank}") from error


def check(case, rank):
    """Trains sharded and whole; outputs, weights and states must agree."""
    options = {"optimizer": case.optimizer, "seed": 3, "table_optimizers": case.table_optimizers}
    whole = mg.EmbeddingCollection(case.tables, **options, independent=True)
    sharded = ShardedEmbeddingCollection(case.tables, case.plan, **options)
    assert (sharded.features, sharded.output_dim) == (whole.features, whole.output_dim)
    prepared = [own_part(case, step, rank) for step in case.steps]
    sent: list = []
    for number, step in enumerate(case.steps):
        chosen, values, offsets, weights, all_weights = prepared[number]
        if case.ahead:
            # As a pipeline does: the ids of the next batch travel before this one is looked up.
            sent += [sharded.send(*part[1:4]) for part in prepared[number + len(sent) : number + 2]]
            pending = sharded.start_lookup(sharded.resolve(sharded.receive(sent.pop(0)), trains=True))
            outputs = outputs_of(sharded.finish_lookup(pending))
        else:
            outputs = outputs_of(sharded.lookup(values, offsets, weights))
        expected = outputs_of(whole.lookup(step.values, step.offsets, all_weights))
        first = sum(step.batches[:rank])
        samples, ranges = slice(first, first + step.batches[rank]), step.sequence_ranges(rank)
        tolerance = case.codec_tolerance or case.tolerance
        assert outputs.keys() == expected.keys()
        for name, output in outputs.items():
            torch.testing.assert_close(
                output,
                expected[name][samples if name == "pooled" else ranges[name[1]]],
                rtol=tolerance,
                atol=tolerance,
                msg=lambda text, n=number, name=name: f"output {name} of step {n}: {text}",
            )
        torch.autograd.backward(*zip(*step.gradients(outputs, rank), strict=True))
        torch.autograd.backward(*zip(*step.gradients_of_all(expected), strict=True))
        if all_weights is not None and all_weights.grad is None:
            assert weights.grad is None
        elif case.weight_gradients and weights is not None:
            torch.testing.assert_close(
                weights.grad,
                all_weights.grad[chosen],
                rtol=tolerance,
                atol=tolerance,
                msg=lambda text, n=number: f"gradient of weights of step {n}: {text}",
            )
    if case.plan.world_size > 1:
        # One message forward and one backward; another only for weights that want a gradient.
        assert sharded.traffic.calls["vectors"] == sharded.traffic.calls["gradients"] == len(case.steps)
    if not case.weight_gradients:
        assert "gradients of sample weights" not in sharded.traffic.calls
    assert sharded.num_steps == whole.num_steps
    if case.row_bytes is not None:
        own = [step.batches[rank] for step in case.steps]
        others = [sum(step.batches) - step.batches[rank] for step in case.steps]
        elsewhere = sum(case.row_bytes) - case.row_bytes[rank]
        assert sharded.traffic.sent_bytes["vectors"] == sum(others) * case.row_bytes[rank]
        assert sharded.traffic.sent_bytes["gradients"] == sum(own) * elsewhere
    states = sharded.table_states()
    for table in case.tables:
        compare(table.name, states[table.name], whole, case.codec_tolerance or case.tolerance)


def own_part(case, step, rank):
    """Which ids are the rank's, its ids, offsets and weights, and the weights of all."""
    chosen, values, offsets, weights, _ = step.part(rank)
    if not sum(step.batches):
        offsets = torch.zeros(1, dtype=torch.int64)
    all_weights = step.sample_weights
    if case.weight_gradients and weights is not None:
        weights, all_weights = (some.clone().requires_grad_() for some in (weights, all_weights))
    return chosen, values, offsets, weights, all_weights


def outputs_of(lookup):
    return {"pooled": lookup.pooled, **lookup.sequences}


def compare(table, state, whole, tolerance):
    """What this rank holds of a table, weight and optimizer state, against one process."""
    for shard in state.shards:
        for name, expected in whole.shard(table).parts.items():
            rows, columns = slice(*shard.rows), slice(*shard.columns)
            torch.testing.assert_close(
                shard.parts[name],
                expected[rows, columns] if expected.dim() == 2 else expected[rows],
                rtol=tolerance,
                atol=tolerance,
                msg=lambda text, name=name, shard=shard: f"{table}, {name}, {shard.rows}: {text}",
            )
