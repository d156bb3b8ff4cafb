"""The ordered pipeline: order, errors in order, bounded reading ahead, and a clean end."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from megalith.data.prepare.pipeline import OrderedPipeline


def same(value: int) -> int:
    return value


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_and_numbering_follow_the_input(threads: int) -> None:
    numbered: list[int] = []

    def number_rows(value: int) -> int:
        numbered.append(value)
        return value

    pipeline = OrderedPipeline(iter(range(200)), same, number_rows, lambda value: value * 2, threads)
    assert list(pipeline.results()) == [value * 2 for value in range(200)]
    assert numbered == list(range(200))


@pytest.mark.parametrize("stage", ["items", "parse", "number", "work"])
def test_an_error_comes_after_the_results_before_it(stage: str) -> None:
    def fail(at: str, value: int) -> int:
        if at == stage and value >= 20:
            raise ValueError(f"{value}")
        return value

    items = (fail("items", value) for value in range(100))
    pipeline = OrderedPipeline(
        items,
        lambda value: fail("parse", value),
        lambda value: fail("number", value),
        lambda value: fail("work", value),
        3,
    )
    results: list[int] = []

    def take() -> None:
        for value in pipeline.results():
            results.append(value)  # noqa: PERF402 - what came before the error is kept

    with pytest.raises(ValueError, match=r"^20$"):
        take()
    assert results == list(range(20))


def test_reading_stays_close_to_what_is_taken() -> None:
    read = 0

    def items() -> Iterator[int]:
        nonlocal read
        for value in range(100):
            read += 1
            yield value

    results = OrderedPipeline(items(), same, same, same, 2).results()
    for taken, _ in enumerate(results, start=1):
        assert read <= taken + 2 + 2
    assert read == 100


def test_leaving_early_closes_the_input_and_waits_for_work_under_way() -> None:
    closed, working = threading.Event(), threading.Semaphore(0)

    def items() -> Iterator[int]:
        try:
            yield from range(100)
        finally:
            closed.set()

    running = 0
    lock = threading.Lock()

    def work(value: int) -> int:
        nonlocal running
        with lock:
            running += 1
        working.release()
        with lock:
            running -= 1
        return value

    results = OrderedPipeline(items(), same, same, work, 2).results()
    assert next(results) == 0
    results.close()
    assert running == 0
    assert closed.is_set()


def test_a_read_that_hangs_does_not_keep_the_pipeline_from_ending() -> None:
    hang = threading.Event()

    def items() -> Iterator[int]:
        yield 0
        hang.wait()

    results = OrderedPipeline(items(), same, same, same, 2).results()
    assert next(results) == 0
    results.close()
    hang.set()
