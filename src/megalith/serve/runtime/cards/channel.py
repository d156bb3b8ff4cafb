"""The two rings between a front process and a card: tasks there, results back."""

from __future__ import annotations

from collections.abc import Iterator
from mmap import mmap

from megalith.comm.ring import SlotRing
from megalith.serve.runtime.cards.task import (
    RESULT_BYTES,
    TASK_BYTES,
    Task,
    TaskResult,
    pack_result,
    pack_task,
    unpack_result,
    unpack_task,
)

SLOTS = 512
"""More than the tasks that an engine has under way."""
CHANNEL_BYTES = SLOTS * (TASK_BYTES + RESULT_BYTES)


class CardChannel:
    """Either end; a card has memory of its own for it, which no other card ever gets."""

    def __init__(self, memory: mmap, task_event: int, result_event: int) -> None:
        self._tasks = SlotRing(memory, 0, TASK_BYTES, SLOTS, task_event)
        self._results = SlotRing(memory, SLOTS * TASK_BYTES, RESULT_BYTES, SLOTS, result_event)

    def send_task(self, task: Task) -> None:
        """Of the front: hands a task over."""
        pack_task(task, self._tasks.next_slot())
        self._tasks.announce()

    def results(self) -> Iterator[TaskResult]:
        """Of the front: what has come."""
        for slot in self._results.read():
            yield unpack_result(slot)

    def tasks(self) -> Iterator[Task]:
        """Of the card: waits for tasks."""
        for slot in self._tasks.read():
            yield unpack_task(slot)

    def send_result(self, result: TaskResult) -> None:
        """Of the card: hands a result over."""
        pack_result(result, self._results.next_slot())
        self._results.announce()

    def release(self) -> None:
        """Lets go of the memory."""
        self._tasks.release()
        self._results.release()
