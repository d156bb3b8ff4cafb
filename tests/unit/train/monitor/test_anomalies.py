"""What is wrong with a run is named once, in a sentence with a remedy; what is usual is not."""

from __future__ import annotations

import math
import threading

import torch

from megalith.core.schema import TableSpec
from megalith.data.batch import Batch
from megalith.train.monitor.anomalies import AnomalyLog, LossWatch, NormWatch
from megalith.train.monitor.stalled import TICKS, StallWatch
from megalith.train.monitor.tables import DEAD_REPORTS, TableCounter, TableUse, TableWatch
from megalith.train.pipeline import Pipeline, Stages

TABLES = [
    TableSpec(name="t0", rows=10, dim=2, features=("f0", "f2")),
    TableSpec(name="t1", rows=10, dim=3, features=("f1",)),
]


class Told(list):
    """Anomalies as they were told."""

    @property
    def names(self):
        return [(each.name, each.step) for each in self]


def test_a_loss_that_is_not_finite_is_told_once_until_it_is_finite_again():
    told = Told()
    watch = LossWatch(AnomalyLog(told.append))
    for step, loss in enumerate([0.5, math.nan, math.inf, 0.4, math.inf], start=1):
        watch.see(step, loss)
    assert told.names == [("loss not finite", 2), ("loss not finite", 5)]
    assert "The loss of step 2 is nan: start again with a lower dense.lr" in told[0].message


def test_a_norm_far_above_what_was_usual_is_told_and_does_not_become_usual():
    told = Told()
    watch = NormWatch(AnomalyLog(told.append))
    for step in range(20):
        watch.see(step, 1.0 + step % 3)
    watch.see(20, 150.0)
    for step in range(21, 60):
        watch.see(step, 1e5)
    assert told.names == [("exploding norm", 21)]
    assert "is 1e+05, the median before 2" in told[0].message


def test_a_norm_may_fall_and_grow_while_nothing_is_known_of_it():
    told = Told()
    watch = NormWatch(AnomalyLog(told.append))
    for step, norm in enumerate([1e-6, 1e3, 1.0, 1e-3, 10.0]):
        watch.see(step, norm)
    assert told == []
    watch.see(9, math.inf)
    assert told.names == [("exploding norm", 9)]


def use(first, second, learns=None):
    return TableUse([first, second], learns)


def test_a_table_is_dead_when_no_rank_has_looked_it_up_for_some_reports():
    told = Told()
    watch = TableWatch(TABLES, AnomalyLog(told.append))
    for report in range(DEAD_REPORTS):
        # On the second rank alone t1 is used.
        watch.see(report, [use(5, 0), use(5, 1)])
    assert told == []
    for report in range(2 * DEAD_REPORTS):
        watch.see(report, [use(5, 0), use(5, 0)])
    assert [(each.name, each.table, each.step) for each in told] == [("dead table", "t1", DEAD_REPORTS - 1)]
    assert "megalith data stats" in told[0].message


def test_a_table_that_is_used_but_gets_no_gradient_on_any_rank_is_dead():
    told = Told()
    watch = TableWatch(TABLES, AnomalyLog(told.append))
    for report in range(DEAD_REPORTS):
        watch.see(report, [use(5, 5, [False, True]), use(5, 5, [True, True])])
        # A report without a look at gradients says nothing.
        watch.see(report, [use(5, 5)])
    assert told == []
    for report in range(DEAD_REPORTS):
        watch.see(report, [use(5, 5, [False, True]), use(5, 5, [False, True])])
    assert [(each.name, each.table) for each in told] == [("dead table", "t0")]
    assert "got no gradient" in told[0].message


def batch(lengths):
    """Two samples; `lengths` of the bags of f0, f1 and f2."""
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    return Batch(torch.zeros(2, 1), torch.zeros(int(offsets[-1]), dtype=torch.int64), offsets, torch.zeros(2))


def test_lookups_count_for_the_table_of_each_feature_and_gradients_for_its_columns():
    counter = TableCounter(TABLES, ("f0", "f1", "f2"))
    counter.count(batch([1, 2, 0, 0, 4, 0]))
    counter.count(batch([0, 0, 0, 0, 1, 0]))
    gradient = torch.zeros(2, 7)
    gradient[1, 3] = 1e-30
    counter.see_gradient(gradient)
    assert counter.take() == TableUse([8, 0], [True, False])
    gradient = torch.zeros(2, 7)
    gradient[0, 6] = -1.0
    counter.see_gradient(gradient)
    assert counter.take() == TableUse([0, 0], [False, True])
    assert counter.take().learns is None


class BlockedReader:
    """Gives batches as long as it is let."""

    def __init__(self):
        self.gate, self.asked = threading.Semaphore(0), threading.Semaphore(0)

    def stream(self):
        while True:
            self.asked.release()
            self.gate.acquire()
            yield batch([1] * 6)

    def state_dict(self):
        return {}

    def close(self):
        """Nothing is open."""


def test_a_reader_that_stops_is_told_after_some_ticks_of_one_and_the_same_wait():
    events = []
    watch = StallWatch(lambda: events.append("stalled"), lambda: events.append("batch"))
    reader = BlockedReader()
    pipeline = Pipeline(
        reader, Stages(lambda batch: batch, lambda ids, ahead: None, lambda ids: ids), depth=0
    )
    got = threading.Semaphore(0)

    def train():
        for _ in range(2):
            with watch.waiting():
                next(pipeline)
            got.release()

    trainer = threading.Thread(target=train)
    trainer.start()
    reader.asked.acquire()
    watch.tick()
    reader.gate.release()
    got.acquire()
    # The second wait is another: the tick of the first does not count.
    reader.asked.acquire()
    for _ in range(TICKS):
        watch.tick()
    assert events == ["batch"]
    watch.tick()
    watch.tick()
    assert events == ["batch", "stalled"]
    reader.gate.release()
    trainer.join()
    assert events == ["batch", "stalled", "batch"]
    for _ in range(2 * TICKS):
        # Nobody waits.
        watch.tick()
    assert events == ["batch", "stalled", "batch"]
