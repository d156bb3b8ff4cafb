"""The pipeline: every stage in order, no further ahead than asked for, nothing lost on the way."""

import threading

import pytest

from megalith.data.dataset import Dataset
from megalith.data.loader import Loader
from megalith.train.pipeline import Pipeline, Stages


def number_of(batch):
    """A number to tell batches by."""
    return float(batch.dense.sum())


@pytest.fixture
def loader(small_data):
    return Loader(Dataset(small_data), ["valid"], 100, shuffle=False, prefetch=1, threads=1)


@pytest.fixture
def expected(loader):
    numbers = [number_of(batch) for batch in loader]
    assert len(set(numbers)) == 20
    loader.set_epoch(0)
    return numbers


class Rows:
    """What a batch resolved to."""

    def __init__(self, number):
        self.number, self.releases = number, 0

    def release(self):
        self.releases += 1


class Watch:
    """Stages that write down what they see, and on which thread."""

    def __init__(self):
        self.seen, self.threads, self.resolved = [], set(), []

    def exchange(self, batch):
        self.threads.add(threading.current_thread().name)
        self.seen.append(("exchange", number_of(batch)))
        return number_of(batch)

    def expect(self, ids, ahead):
        self.seen.append(("expect", ids, ahead))

    def resolve(self, ids):
        self.threads.add(threading.current_thread().name)
        self.seen.append(("resolve", ids))
        self.resolved.append(Rows(ids))
        return self.resolved[-1]

    @property
    def stages(self):
        return Stages(self.exchange, self.expect, self.resolve)

    def all_of(self, stage):
        return [entry[1] for entry in self.seen if entry[0] == stage]


@pytest.mark.parametrize("window", [0, 1, 3, 50])
@pytest.mark.parametrize("depth", [0, 1, 2, 7])
def test_batches_pass_every_stage_in_order(loader, expected, depth, window):
    watch = Watch()
    pipeline = Pipeline(loader, watch.stages, count=20, depth=depth, window=window)
    got = []
    for prepared in pipeline:
        assert prepared.ids == prepared.resolved.number == number_of(prepared.batch)
        assert pipeline.position == prepared.position
        got.append(prepared.ids)
        # Nothing further ahead than was asked for, however long the thread had.
        assert len(watch.all_of("resolve")) <= len(got) + depth
        assert len(watch.all_of("exchange")) <= len(got) + depth + window
    pipeline.close()
    assert got == expected == watch.all_of("resolve") == watch.all_of("exchange")
    assert watch.all_of("expect") == (expected if window else [])
    assert watch.threads == ({"megalith-pipeline_0"} if depth else {threading.main_thread().name})


def test_the_stages_know_how_far_ahead_ids_are(loader, expected):
    watch = Watch()
    pipeline = Pipeline(loader, watch.stages, count=4, window=2)
    next(pipeline)
    first, second, third, _ = expected[:4]
    assert [entry for entry in watch.seen if entry[0] != "exchange"] == [
        ("expect", first, 1),
        ("expect", second, 2),
        ("expect", third, 3),
        ("resolve", first),
    ]
    pipeline.close()


@pytest.mark.parametrize("depth", [1, 3])
def test_settling_lets_rows_leave_and_brings_them_back(loader, expected, depth):
    """Evaluation in the middle of training may need all of the memory."""
    watch = Watch()
    pipeline = Pipeline(loader, watch.stages, depth=depth)
    given = [next(pipeline) for _ in range(2)]
    pipeline.settle()
    ahead = watch.resolved[2:]
    assert [rows.number for rows in ahead] == expected[2 : 2 + depth]
    assert [rows.releases for rows in ahead] == [1] * depth
    given += [next(pipeline) for _ in range(4)]
    assert [prepared.resolved.number for prepared in given] == expected[:6]
    assert not any(prepared.resolved in ahead for prepared in given)
    assert not any(prepared.resolved.releases for prepared in given)
    pipeline.close()


@pytest.mark.parametrize("depth", [0, 2])
def test_the_window_is_known_again_after_settling(loader, expected, depth):
    """Evaluation resolves batches of its own, so those that were told of come later than was said."""
    watch = Watch()
    pipeline = Pipeline(loader, watch.stages, depth=depth, window=3)
    next(pipeline)
    pipeline.settle()
    watch.seen.clear()
    next(pipeline)
    pipeline.settle()
    first = depth + 1
    told = [("expect", expected[first + far], far + 1) for far in range(3)]
    assert [entry for entry in watch.seen if entry[0] == "expect"][:3] == told
    resolved = [] if depth == 0 else [("resolve", number) for number in expected[1:first]]
    assert [entry for entry in watch.seen if entry[0] != "exchange"][: len(resolved) + 3] == resolved + told
    pipeline.close()


def test_settling_does_not_wait_for_ever_where_a_batch_waits_for_room(loader, expected):
    """Rows of one batch fit at a time: the second is resolved when the first is released."""
    room = threading.Semaphore(1)

    class Tight(Rows):
        def release(self):
            room.release()

    def resolve(ids):
        room.acquire()
        return Tight(ids)

    pipeline = Pipeline(loader, Watch().stages._replace(resolve=resolve), depth=3)
    for number in range(6):
        prepared = next(pipeline)
        assert prepared.resolved.number == expected[number]
        prepared.resolved.release()
        if number == 2:
            pipeline.settle()
    pipeline.close()


def test_the_position_is_that_of_the_batch_given_out_not_of_the_one_read_ahead(loader, expected):
    pipeline = Pipeline(loader, Watch().stages, depth=1, window=2)
    assert [number_of(next(pipeline).batch) for _ in range(3)] == expected[:3]
    pipeline.close()
    assert loader.state_dict()["batch"] == 6
    loader.load_state_dict(pipeline.position)
    assert number_of(next(iter(loader))) == expected[3]


def test_an_error_reaches_the_caller_at_its_batch(loader, expected):
    def exchange(batch):
        if number_of(batch) == expected[2]:
            raise KeyError("of the third batch")

    pipeline = Pipeline(loader, Watch().stages._replace(exchange=exchange), depth=1)
    assert [number_of(next(pipeline).batch) for _ in range(2)] == expected[:2]
    with pytest.raises(KeyError, match="of the third batch"):
        next(pipeline)
    pipeline.abandon()
    assert not any(thread.name.startswith("megalith-loader") for thread in threading.enumerate())
