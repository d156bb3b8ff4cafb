"""The pipeline: every stage in order, one batch ahead at most, nothing lost on the way."""

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


class Watch:
    """Stages that write down what they see, and on which thread."""

    def __init__(self):
        self.seen = []

    def exchange(self, batch):
        self.seen.append(("exchange", number_of(batch), threading.current_thread().name))
        return number_of(batch)

    def prefetch(self, received):
        self.seen.append(("prefetch", received, threading.current_thread().name))


@pytest.mark.parametrize("overlap", [False, True])
def test_batches_pass_every_stage_in_order(loader, expected, overlap):
    watch = Watch()
    pipeline = Pipeline(loader, Stages(watch.exchange, watch.prefetch), count=20, overlap=overlap)
    got = []
    for prepared in pipeline:
        assert prepared.received == number_of(prepared.batch)
        assert pipeline.position == prepared.position
        # Both stages of this batch are done, and those of the next one at most.
        pipeline.settle()
        assert len(watch.seen) // 2 in (len(got) + 1, len(got) + 2)
        got.append(prepared.received)
    pipeline.close()
    assert got == expected
    assert [entry[:2] for entry in watch.seen] == [(s, n) for n in got for s in ("exchange", "prefetch")]
    names = {entry[2] for entry in watch.seen}
    assert names == ({"megalith-pipeline_0"} if overlap else {threading.main_thread().name})


def test_the_position_is_that_of_the_batch_given_out_not_of_the_one_read_ahead(loader, expected):
    pipeline = Pipeline(loader, Stages(), overlap=True)
    assert [number_of(next(pipeline).batch) for _ in range(3)] == expected[:3]
    pipeline.close()
    assert loader.state_dict()["batch"] == 4
    loader.load_state_dict(pipeline.position)
    assert number_of(next(iter(loader))) == expected[3]


def test_an_error_reaches_the_caller_at_its_batch(loader, expected):
    def exchange(batch):
        if number_of(batch) == expected[2]:
            raise KeyError("of the third batch")

    pipeline = Pipeline(loader, Stages(exchange), overlap=True)
    assert [number_of(next(pipeline).batch) for _ in range(2)] == expected[:2]
    with pytest.raises(KeyError, match="of the third batch"):
        next(pipeline)
    pipeline.abandon()
    assert not any(thread.name.startswith("megalith-loader") for thread in threading.enumerate())
