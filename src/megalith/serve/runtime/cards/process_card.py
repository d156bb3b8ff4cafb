"""A card that is a process: its memory, its rings, and its end."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator, Mapping
from contextlib import suppress

from megalith.comm.memory_file import MemoryFile
from megalith.core.errors import ServeError
from megalith.serve.runtime.cards.card import OUTPUT_BYTES, Card
from megalith.serve.runtime.cards.channel import CHANNEL_BYTES, CardChannel
from megalith.serve.runtime.cards.served_part import VersionParts
from megalith.serve.runtime.cards.task import Task, TaskResult

_KILL_SECONDS = 30


class ProcessCard(Card):
    """The front's end of a card process. Made before the process, which gets `descriptors`."""

    def __init__(self, number: int, place: int, versions: Mapping[int, VersionParts]) -> None:
        self._channel_file = MemoryFile(CHANNEL_BYTES, "megalith-rings")
        self._outputs_file = MemoryFile(OUTPUT_BYTES, "megalith-outputs")
        super().__init__(number, place, versions, self._outputs_file.memory)
        self.outputs_descriptor = self._outputs_file.descriptor
        self._task_event = os.eventfd(0, os.EFD_CLOEXEC)
        self.result_event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._channel = CardChannel(self._channel_file.memory, self._task_event, self.result_event)
        self._process = 0
        self.end_event = -1
        """A descriptor that is readable once the process has ended."""
        self.expected_end = False
        self.ending = False
        """It was told to end; `end_event` says when it has."""

    @property
    def descriptors(self) -> list[int]:
        """What the process maps and waits for: rings, outputs, both events."""
        return [
            self._channel_file.descriptor,
            self._outputs_file.descriptor,
            self._task_event,
            self.result_event,
        ]

    @property
    def process(self) -> int:
        """Its process id."""
        return self._process

    def began(self, process: int) -> None:
        """Its process has started."""
        self._process = process
        try:
            self.end_event = os.pidfd_open(process)
        except ProcessLookupError as error:
            raise ServeError(f"Card {self.place} ended as it began; see its messages.") from error

    def send(self, task: Task) -> None:
        """Into the ring."""
        self._channel.send_task(task)

    def results(self) -> Iterator[TaskResult]:
        """What has come since."""
        return self._channel.results()

    def stop(self) -> None:
        """Kills the process, which reads and writes no more once `end_event` tells of its end."""
        self.ending = True
        if self.end_event < 0:
            return
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.end_event, signal.SIGKILL)

    def wait_end(self) -> None:
        """Waits for the end of a process that was told to end."""
        if self.end_event < 0:
            return
        poll = select.poll()
        poll.register(self.end_event, select.POLLIN)
        if not poll.poll(1000 * _KILL_SECONDS):
            raise ServeError(f"Process {self._process} of card {self.place} does not end; end it by hand.")

    def release(self) -> None:
        """Lets go of memory and descriptors, after the end."""
        self._channel.release()
        for descriptor in (self._task_event, self.result_event, self.end_event):
            if descriptor >= 0:
                os.close(descriptor)
        self.end_event = -1
        self._channel_file.close()
        self._outputs_file.close()
