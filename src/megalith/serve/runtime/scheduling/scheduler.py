"""The queue of an engine and what leaves it: batches, shards of large requests, sparse and dense tasks.

One queue for all cards, ordered by priority and then by age. A request that finds a card with room is sent by
the thread that submits it; nothing waits for a timer. While all cards are at work requests gather, and what
has gathered leaves together as far as it fits `max_batch`. Answers are handed out by the engine's thread.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable

from megalith.serve.failures import (
    BackendFailedError,
    DeadlineError,
    RequestCancelledError,
    RequestError,
    ShuttingDownError,
)
from megalith.serve.request import Answer
from megalith.serve.runtime.cards.card import PARTS_A_VERSION, Card
from megalith.serve.runtime.cards.task import (
    DENSE,
    LOOKUPS,
    WHOLE,
    Entry,
    PooledSource,
    Task,
    TaskResult,
)
from megalith.serve.runtime.scheduling.completion import (
    answer_of,
    collect,
    count_answer,
    count_failure,
    first_refusal,
)
from megalith.serve.runtime.scheduling.request_queue import NEVER, RequestQueue
from megalith.serve.runtime.scheduling.routing import holders, least_loaded, sparse_cards, with_room
from megalith.serve.runtime.scheduling.work import Pending, ServedVersion, TaskState, Work
from megalith.serve.settings import EngineSettings


class Scheduler:
    """Requests from `submit` to their answers. `wake` makes the engine's thread call `due` and `deliver`."""

    def __init__(self, settings: EngineSettings, wake: Callable[[], None]) -> None:
        self.settings, self._wake = settings, wake
        self.lock = threading.Lock()
        self._changed = threading.Condition(self.lock)
        self.cards: list[Card] = []
        self.queue = RequestQueue()
        self.active = 0
        self.service_seconds = 0.01
        """Of a request on a card, lately."""
        self._outbox: deque[tuple[Pending, Answer | RequestError]] = deque()
        self._numbers = itertools.count(1)
        self._orders = itertools.count(1)
        self._clock = itertools.count(1)
        self._hold_until = NEVER
        self._sleeps_until = NEVER

    def next_order(self) -> int:
        """The place of a request among all."""
        return next(self._orders)

    def submit(self, pending: Pending) -> bool:
        """Takes a request on; sends it at once where a card has room. False where its version is no longer
        served. From any thread."""
        with self.lock:
            if pending.version.retired:
                return False
            pending.version.waiting += 1
            self.queue.push(pending)
            self.queue.watch(pending)
            self._dispatch()
            wakes = min(pending.deadline or NEVER, self._hold_until) < self._sleeps_until
        if wakes or self._outbox:
            self._wake()
        return True

    def cancel(self, pending: Pending) -> None:
        """Answers a request with RequestCancelledError, unless it is answered. From any thread."""
        with self.lock:
            self._finish(pending, RequestCancelledError("The request was cancelled."))
        self._wake()

    def take_result(self, card: Card, result: TaskResult) -> None:
        """What a card says of a task; of the engine's thread."""
        with self.lock:
            card.progress = time.monotonic()
            work = card.tasks.pop(result.number, None)
            if work is None:
                return
            card.done_tasks += 1
            card.busy_ns += result.ended - result.began
            state = work.tasks.pop(result.number)
            state.card.load -= sum(entry.samples for entry in state.entries)
            self._changed.notify_all()
            self._completed(work, state, result)
            self._dispatch()

    def lost(self, card: Card) -> None:
        """A card has ended; nothing of it can read or write any more. Its requests are queued again."""
        with self.lock:
            card.alive = False
            self.cards = [each for each in self.cards if each is not card]
            self._changed.notify_all()
            works = list(card.tasks.items())
            card.tasks.clear()
            for number, work in works:
                if work is None:
                    continue
                state = work.tasks.pop(number)
                for pending in work.pendings:
                    pending.room.release()
                card.load -= sum(entry.samples for entry in state.entries)
                self._again(work)
            # Pooled vectors went with its memory, whose descriptor the next card's may get: whoever reads
            # them by now is not believed.
            for work in [work for other in self.cards for work in other.tasks.values() if work]:
                if any(held is card for held, _ in work.pooled.values()):
                    self._again(work)
            self._dispatch()

    def joined(self, cards: list[Card]) -> None:
        """Cards that are ready for tasks."""
        with self.lock:
            self.cards = [*self.cards, *cards]
            self._dispatch()

    def due(self) -> float:
        """Answers requests whose deadline has passed; the next time that this is wanted."""
        now = time.monotonic()
        with self.lock:
            for pending in self.queue.expired(now):
                self._finish(pending, DeadlineError("The deadline passed before there was an answer."))
            if now >= self._hold_until:
                self._hold_until = NEVER
                self._dispatch()
            until = min(self.queue.next_deadline(), self._hold_until)
            self._sleeps_until = until
        return until

    def deliver(self) -> None:
        """Calls `done` of all requests that have an outcome; of the engine's thread."""
        while self._outbox:
            pending, outcome = self._outbox.popleft()
            pending.done(outcome)

    def fail_all(self, failure: RequestError | None = None) -> None:
        """Gives every request that has no answer this failure."""
        with self.lock:
            pendings = self.queue.waiting()
            for card in self.cards:
                pendings |= {one for work in card.tasks.values() if work for one in work.pendings}
            for pending in pendings:
                self._finish(pending, failure or ShuttingDownError("The server is closing."))

    def ask_for_sign(self, card: Card) -> None:
        """Sends a task without requests, which only a card that lives answers."""
        with self.lock:
            if card.alive and not card.tasks:
                number = next(self._numbers)
                card.progress = time.monotonic()
                card.tasks[number] = None
                card.send(Task(number, WHOLE, -1, ()))

    def wait_idle(self, generation: int, gone: list[ServedVersion]) -> None:
        """Waits until no request asks for versions that are gone, and cards of a generation have nothing
        under way; then neither takes more."""
        with self.lock:
            while any(one.waiting for one in gone) or any(
                any(card.tasks.values()) for card in self.cards if card.generation == generation
            ):
                self._changed.wait()
            for version in gone:
                version.retired = True
            for card in self.cards:
                card.retired = card.retired or card.generation == generation

    # What follows runs under the lock.

    def _dispatch(self) -> None:
        behind = self.queue.background()
        while behind is not None and self._start(behind):
            behind = self.queue.background()
        while (head := self.queue.head()) is not None:
            if self.active >= self.settings.active or self._holds(head) or not self._start(head):
                return

    def _holds(self, head: Pending) -> bool:
        """Whether a small batch waits for company, which it does only while cards are at work."""
        if not self.settings.max_delay or not self.active or self.queue.samples >= self.settings.max_batch:
            return False
        until = head.started_ns / 1e9 + self.settings.max_delay
        if time.monotonic() >= until:
            return False
        self._hold_until = min(self._hold_until, until)
        return True

    def _start(self, head: Pending) -> bool:
        version, depth = head.version, self.settings.depth
        cards = holders(self.cards, version)
        if version.spec.partitions:
            chosen = sparse_cards(cards, len(version.spec.partitions), depth, self.settings.degraded)
            if chosen is None or not cards:
                return False
            return self._start_sparse(self._gather(head), chosen)
        free = with_room(cards, depth)
        if not free:
            return False
        work = self._gather(head)
        idle = [card for card in free if not card.tasks]
        shards = min(len(idle), work.samples // self.settings.split)
        if len(work.pendings) > 1 or shards < 2 or self.queue or head.background:
            card = least_loaded(free)
            assert card is not None
            return self._send(work, card, WHOLE, tuple(pending.entry for pending in work.pendings))
        entry, size = work.pendings[0].entry, work.samples
        idle.sort(key=lambda card: card.last_used)
        sent = True
        for shard, card in enumerate(idle[:shards]):
            first, last = size * shard // shards, size * (shard + 1) // shards
            sent = self._send(work, card, WHOLE, (entry._replace(first=first, last=last),)) and sent
        return sent

    def _gather(self, head: Pending) -> Work:
        if head.background:
            pendings = self.queue.take_background()
        else:
            pendings = self.queue.gather(head.version, self.settings.max_batch)
        self.active += len(pendings)
        return Work(head.version, pendings)

    def _start_sparse(self, work: Work, cards: list[Card | None]) -> bool:
        entries = tuple(pending.entry for pending in work.pendings)
        if all(card is None for card in cards):
            work.degraded = True
            return self._start_dense(work)
        for partition, card in enumerate(cards):
            if card is None:
                work.degraded = True
            elif not self._send(work, card, LOOKUPS, entries, partition):
                return False
        return True

    def _start_dense(self, work: Work) -> bool:
        card = least_loaded(holders(self.cards, work.version))
        if card is None:
            self._again(work)
            return False
        return self._send(work, card, DENSE, tuple(pending.entry for pending in work.pendings))

    def _send(
        self, work: Work, card: Card, stage: int, entries: tuple[Entry, ...], partition: int = 0
    ) -> bool:
        """Sends a task; False where the card has no memory for its outputs, and the work starts again."""
        version, number = work.version, next(self._numbers)
        samples = sum(entry.samples for entry in entries)
        part = version.number * PARTS_A_VERSION
        sources: tuple[PooledSource, ...] = ()
        if stage == LOOKUPS:
            part += 1 + partition
            out_at = card.arena.take(samples * version.widths[partition])
        else:
            tasks = len(version.check.tasks)
            out_at = card.arena.take(4 * tasks * samples)
            if out_at is not None:
                placed, at = [], out_at
                for entry in entries:
                    placed.append(entry._replace(out_at=at))
                    at += 4 * tasks * entry.samples
                entries = tuple(placed)
        if out_at is None:
            self._again(work, counts=False)
            return False
        if stage == DENSE:
            lost = PooledSource(-1, 0)
            sources = tuple(
                PooledSource(held[0].number, held[1], held[0].outputs_descriptor) if held else lost
                for held in map(work.pooled.get, range(len(version.spec.partitions)))
            )
        for pending in work.pendings:
            pending.room.hold()
        work.tasks[number] = TaskState(card, stage, entries, out_at, partition)
        if not card.tasks:
            card.progress = time.monotonic()
        card.tasks[number] = work
        card.last_used = next(self._clock)
        card.load += samples
        card.send(Task(number, stage, part, entries, sources, out_at))
        return True

    def _completed(self, work: Work, state: TaskState, result: TaskResult) -> None:
        for pending in work.pendings:
            pending.room.release()
        if work.dead:
            state.card.arena.give_back(state.out_at)
            return
        collect(work, state, result)
        if state.stage == LOOKUPS:
            work.pooled[state.partition] = state.card, state.out_at
        else:
            state.card.arena.give_back(state.out_at)
        if work.tasks:
            return
        refused = first_refusal(work)
        if state.stage == LOOKUPS and not refused:
            self._start_dense(work)
            return
        self._give_pooled_back(work)
        work.version.statistics.executions += 1
        work.dead = True
        self.active -= len(work.pendings)
        for place, pending in enumerate(work.pendings):
            verdict = work.verdicts[place]
            if verdict is not None:
                self._finish(pending, verdict)
            elif state.stage == LOOKUPS:
                # Another of its batch was refused.
                if not pending.finished:
                    self.queue.push(pending)
            elif not pending.finished:
                answer = answer_of(work, place)
                self.service_seconds += 0.05 * ((work.computed - work.began) / 1e9 - self.service_seconds)
                self._finish(pending, answer)

    def _give_pooled_back(self, work: Work) -> None:
        for card, at in work.pooled.values():
            card.arena.give_back(at)
        work.pooled.clear()

    def _again(self, work: Work, counts: bool = True) -> None:
        """Queues the requests of a work once more, where they were."""
        if work.dead:
            return
        work.dead = True
        self._give_pooled_back(work)
        self.active -= len(work.pendings)
        for pending in work.pendings:
            if pending.finished:
                continue
            pending.attempts += counts
            if pending.attempts >= self.settings.attempts:
                sentence = f"The request was tried on {pending.attempts} cards, and all of them were lost."
                self._finish(pending, BackendFailedError(sentence))
                continue
            work.version.statistics.retried += counts
            self.queue.push(pending)

    def _finish(self, pending: Pending, outcome: Answer | RequestError) -> None:
        if pending.finished:
            return
        self.queue.leave(pending)
        pending.finished = True
        pending.version.waiting -= 1
        self._changed.notify_all()
        pending.room.release()
        if pending.background:
            pass
        elif isinstance(outcome, Answer):
            count_answer(pending.version.statistics, outcome, pending.entry.batch)
        else:
            count_failure(pending.version.statistics, outcome, pending)
        self._outbox.append((pending, outcome))
