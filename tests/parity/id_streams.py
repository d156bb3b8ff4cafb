"""Streams of ids for tests that compare maps of ids: the same steps on each, and what each decides."""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from megalith.ops.ids.changes import LEAVING_REASONS, IdBlock
from megalith.ops.ids.id_map import IdMap
from megalith.ops.ids.id_map_twin import IdMapTwin, mix_twin
from megalith.ops.ids.partitions import id_partitions, rows_of_whole_table
from megalith.ops.ids.policies import IdAdmission, IdEviction, IdExpiry, IdTableSpec

EXTREMES = (0, 1, -1, 2**63 - 1, -(2**63), 2**32, -(2**31))
CROWDED = [id_ for id_ in range(-3000, 3000) if mix_twin(id_) >> 58 in (0, 31, 63)]
"""Ids of three partitions: with a few rows each they compete."""


@dataclass(frozen=True)
class Step:
    """What happens to a map at a batch."""

    kind: str
    """train, evaluate, expire, bound or save."""
    batch: int
    ids: tuple[tuple[int, ...], ...] = ()
    """Of each lookup."""
    times: int = 0
    table: int = 0
    bound: int = 64


@dataclass(frozen=True)
class IdWorld:
    """Tables, and a stream of steps over them."""

    tables: tuple[IdTableSpec, ...]
    lookups: tuple[int, ...]
    """The table of each."""
    lag: int
    steps: tuple[Step, ...]


@st.composite
def id_tables(draw):
    seconds = draw(st.sampled_from([None, None, 5, 300]))
    return IdTableSpec(
        bound=draw(st.integers(64, 300)),
        admission=IdAdmission(
            draw(st.sampled_from(["always", "count", "probability"])),
            count=draw(st.integers(1, 4)),
            probability=draw(st.sampled_from([0.01, 0.3, 0.9, 1.0])),
            counter_bytes=draw(st.sampled_from([4096, 9000])),
        ),
        eviction=IdEviction(
            draw(st.sampled_from(["lru", "lfu", "score"])),
            halve_every=draw(st.sampled_from([0, 1, 3])),
            half_life=draw(st.sampled_from([1, 2, 7])),
        ),
        expiry=IdExpiry(
            batches=draw(st.sampled_from([None, 1, 4, 80])),
            seconds=seconds,
            score=draw(st.sampled_from([None, 0.2, 1.5])),
        ),
        seed=draw(st.integers(-(2**63), 2**63 - 1)),
    )


@st.composite
def id_worlds(draw):
    tables = tuple(draw(st.lists(id_tables(), min_size=1, max_size=3)))
    lookups = tuple(draw(st.lists(st.integers(0, len(tables) - 1), min_size=1, max_size=3)))
    pool = CROWDED[: draw(st.integers(1, len(CROWDED)))]
    ids = st.one_of(st.sampled_from(pool), st.sampled_from(EXTREMES), st.integers(-(2**63), 2**63 - 1))
    kinds = st.sampled_from(["train", "train", "train", "train", "evaluate", "expire", "bound", "save"])
    steps, batch = [], 0
    for kind in draw(st.lists(kinds, min_size=1, max_size=20)):
        batch += draw(st.sampled_from([1, 1, 1, 2, 5, 70, 700]))
        steps.append(
            Step(
                kind,
                batch,
                tuple(tuple(draw(st.lists(ids, max_size=20))) for _ in lookups),
                draw(st.integers(0, 1000)),
                draw(st.integers(0, len(tables) - 1)),
                draw(st.integers(64, 300)),
            )
        )
    return IdWorld(tables, lookups, draw(st.integers(0, 3)), tuple(steps))


def batch_of(world, step):
    """(lookups, values, times) of a batch: values of all lookups one after the other, a gap between them."""
    lookups, values = [], []
    for table, ids in zip(world.lookups, step.ids, strict=True):
        values.append(7)  # belongs to no lookup
        lookups.append((table, len(values), len(values) + len(ids)))
        values += ids
    return lookups, values, [(step.times + position * 3) % 2000 for position in range(len(values))]


class TwinRun:
    """Runs a stream on the twin."""

    def __init__(self, world):
        self.world = world
        self.map = IdMapTwin(world.tables, world.lag)

    def run(self, step):
        """All that the step decided."""
        if step.kind in ("train", "evaluate"):
            lookups, values, times = batch_of(self.world, step)
            return self.map.resolve(lookups, values, step.batch, step.kind == "train", times)
        if step.kind == "expire":
            return self.map.expire(step.batch, step.times)
        if step.kind == "bound":
            return self.map.change_bound(step.table, step.bound)
        return [self.map.scan(table) for table in range(len(self.world.tables))]


class NativeRun:
    """Runs a stream on maps of some partitions each, as one map; `shuffled` batches are in another order."""

    def __init__(self, world, cuts=((0, 64),), threads=1, shuffled=False):
        self.world, self.cuts, self.threads, self.shuffled = world, cuts, threads, shuffled
        self.maps = [IdMap(world.tables, world.lag, cut, threads) for cut in cuts]

    def run(self, step):
        """All that the step decided, in the words of the twin."""
        if step.kind in ("train", "evaluate"):
            return self._resolve(step)
        if step.kind == "expire":
            return self._left([own.expire(step.batch, step.times) for own in self.maps])
        if step.kind == "bound":
            changes = [own.change_bound(step.table, step.bound) for own in self.maps]
            moved = []
            for (_, each), cut in zip(changes, self.cuts, strict=True):
                rows = (rows_of_whole_table(part, cut).tolist() for part in (each.sources, each.targets))
                moved += zip(each.tables.tolist(), each.ids.tolist(), *rows, strict=True)
            return self._left([left for left, _ in changes]), moved
        saved = [self.saved(table) for table in range(len(self.world.tables))]
        self._reload(saved)
        return saved

    def _resolve(self, step):
        lookups, values, times = batch_of(self.world, step)
        rows, results = [-1] * len(values), []
        for own, (first, last) in zip(self.maps, self.cuts, strict=True):
            here = id_partitions(torch.tensor(values, dtype=torch.int64)).tolist()
            kept, ranges = [], []
            for table, begin, end in lookups:
                start = len(kept)
                chosen = [at for at in range(begin, end) if first <= here[at] < last]
                kept += reversed(chosen) if self.shuffled else chosen
                ranges.append((table, start, len(kept)))
            result = own.resolve(
                torch.tensor(ranges[::-1] if self.shuffled else ranges, dtype=torch.int64).view(-1, 3),
                torch.tensor([values[at] for at in kept], dtype=torch.int64),
                step.batch,
                step.kind == "train",
                torch.tensor([times[at] for at in kept], dtype=torch.int64),
            )
            for at, row in zip(kept, rows_of_whole_table(result.rows, (first, last)).tolist(), strict=True):
                rows[at] = row
            results.append(result)
        new = []
        for result, cut in zip(results, self.cuts, strict=True):
            own_rows = rows_of_whole_table(result.new.rows, cut).tolist()
            new += zip(result.new.tables.tolist(), own_rows, result.new.ids.tolist(), strict=True)
        new.sort(key=lambda entry: entry[0])
        return rows, new, self._left([result.evicted for result in results])

    def _left(self, changes):
        left = []
        for each, cut in zip(changes, self.cuts, strict=True):
            rows = rows_of_whole_table(each.rows, cut).tolist()
            reasons = [LEAVING_REASONS[reason] for reason in each.reasons.tolist()]
            left += zip(each.tables.tolist(), each.ids.tolist(), rows, reasons, strict=True)
        return sorted(left, key=lambda entry: entry[0])

    def saved(self, table):
        """Every id with its row, as a map of all partitions has it, and its uses."""
        listed = []
        for own, cut in zip(self.maps, self.cuts, strict=True):
            for block in own.scan(table, block=5):
                rows = rows_of_whole_table(block.rows, cut).tolist()
                others = (block.last.tolist(), block.scores.tolist(), block.times.tolist())
                listed += zip(block.ids.tolist(), rows, *others, strict=True)
        return sorted(listed)

    def _reload(self, saved):
        """Goes on with new maps, cut as before, that loaded what was saved; every id in its row."""
        counters = [[own.counter(table) for own in self.maps] for table in range(len(self.world.tables))]
        tables, batch = self.maps[0].tables, self.maps[0].batch
        self.maps = [IdMap(tables, self.world.lag, cut, self.threads) for cut in self.cuts]
        for number, own in enumerate(self.maps):
            own.resume(batch)
            for table, entries in enumerate(saved):
                # In the order of rows: each id finds the row it had, unless rows below it were free.
                columns = list(zip(*sorted(entries, key=lambda entry: entry[1]), strict=True)) or [()] * 5
                kinds = (torch.int64, torch.int32, torch.int64, torch.float32, torch.int64)
                block = IdBlock(
                    *(torch.tensor(part, dtype=kind) for part, kind in zip(columns, kinds, strict=True))
                )
                _, left = own.load(table, block)
                assert not len(left.ids)
                own.load_counter(table, counters[table][number])
