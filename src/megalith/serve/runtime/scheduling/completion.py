"""Results of tasks into answers, and answers into statistics."""

from __future__ import annotations

import time

import numpy as np

from megalith.serve.failures import BackendFailedError, BadRequestError, RequestError
from megalith.serve.request import Answer, Timings
from megalith.serve.runtime.cards.task import FINE, LOOKUPS, REFUSED, TaskResult
from megalith.serve.runtime.scheduling.statistics import VersionStatistics, bucket_of
from megalith.serve.runtime.scheduling.work import Pending, TaskState, Work


def collect(work: Work, state: TaskState, result: TaskResult) -> None:
    """Takes outputs out of the card's memory, and notes what was refused."""
    work.began = min(work.began, result.began) if work.began else result.began
    work.checked_ns = max(work.checked_ns, result.checked - result.began)
    work.computed = max(work.computed, result.computed)
    work.card = state.card.place
    tasks = len(work.version.check.tasks)
    if not work.outputs and state.stage != LOOKUPS:
        work.outputs = [np.empty((tasks, one.entry.batch), np.float32) for one in work.pendings]
    for place, (entry, verdict) in enumerate(zip(state.entries, result.entries, strict=True)):
        if verdict.status != FINE:
            failure = BadRequestError if verdict.status == REFUSED else BackendFailedError
            work.verdicts[place] = failure(verdict.sentence)
        elif state.stage != LOOKUPS:
            count = tasks * entry.samples
            scores = np.frombuffer(state.card.outputs, np.float32, count, entry.out_at)
            work.outputs[place][:, entry.first : entry.last] = scores.reshape(tasks, entry.samples)


def first_refusal(work: Work) -> RequestError | None:
    """Of the requests of a work, the first that was refused."""
    return next((verdict for verdict in work.verdicts if verdict is not None), None)


def answer_of(work: Work, place: int) -> Answer:
    """The answer of one request of a work."""
    pending, version = work.pendings[place], work.version
    wanted = pending.request.outputs
    outputs = {
        task: work.outputs[place][row]
        for row, task in enumerate(version.check.tasks)
        if wanted is None or task in wanted
    }
    timings = Timings(
        queue_ns=work.began - pending.started_ns,
        input_ns=work.checked_ns,
        compute_ns=work.computed - work.began - work.checked_ns,
        output_ns=time.monotonic_ns() - work.computed,
        started_ns=pending.started_ns,
        batch=work.samples,
        card=work.card,
    )
    return Answer(version.model, version.version, pending.request.id, outputs, timings, work.degraded)


def count_answer(statistics: VersionStatistics, answer: Answer, samples: int) -> None:
    """Adds an answer."""
    timings = answer.timings
    total = timings.queue_ns + timings.input_ns + timings.compute_ns + timings.output_ns
    statistics.success += 1
    statistics.samples += samples
    statistics.degraded += answer.degraded
    statistics.total_ns += total
    statistics.queue_ns += timings.queue_ns
    statistics.input_ns += timings.input_ns
    statistics.compute_ns += timings.compute_ns
    statistics.output_ns += timings.output_ns
    statistics.last_inference_ms = time.time_ns() // 1_000_000
    statistics.latencies[bucket_of(total / 1e9)] += 1
    size = 1 << max(0, timings.batch - 1).bit_length()
    batches = statistics.batches.setdefault(size, [0, 0])
    batches[0] += 1
    batches[1] += timings.compute_ns


def count_failure(statistics: VersionStatistics, failure: RequestError, pending: Pending) -> None:
    """Adds a failure."""
    statistics.failures[failure.reason] = statistics.failures.get(failure.reason, 0) + 1
    statistics.fail_ns += time.monotonic_ns() - pending.started_ns
