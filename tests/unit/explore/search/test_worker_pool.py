"""Calls on forked processes: in order, and no process stays whatever handlers it inherits."""

import multiprocessing
import signal

import pytest

from megalith.explore.search.algorithms.worker_pool import WorkerPool


@pytest.fixture
def deaf_to_sigterm():
    """A process that goes on when it is told to end, as one that saves a checkpoint first does."""
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    yield
    signal.signal(signal.SIGTERM, before)


def _square(number: int) -> int:
    return number * number


def test_results_come_in_the_order_of_arguments():
    with WorkerPool(_square, 2) as pool:
        assert pool.map(range(40)) == [number * number for number in range(40)]
    assert not multiprocessing.active_children()


def test_workers_end_though_their_parent_handles_sigterm(deaf_to_sigterm):
    for _ in range(5):
        with WorkerPool(_square, 2) as pool:
            pool.map(range(40))
    assert not multiprocessing.active_children()
