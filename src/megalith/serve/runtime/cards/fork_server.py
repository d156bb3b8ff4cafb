"""The process that loads versions and becomes cards: a single thread that forks itself.

Rows lie in private memory on huge pages, which shared memory gets on few systems. Forked cards read the same
pages, so that there is one copy of them all, with the index of listed ids and the packed weights; and a card
is there in milliseconds, since it has nothing to import and nothing to load. This process never computes a
score and never has a second thread, so what it forks is whole.

    {"do": "load", "number": 3, "folder": ..., "base": null, "parts": {...}}
    {"do": "unload", "number": 2}
    {"do": "start", "number": 7, "place": 0, "versions": [3]}     with descriptors
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
import time
from array import array
from mmap import mmap
from pathlib import Path
from typing import Any

from megalith.comm.memory_file import map_descriptor
from megalith.core.errors import MegalithError, ServeError, sentence_of
from megalith.export.backends.base import ModelSource
from megalith.serve.runtime.cards.card import PARTS_A_VERSION
from megalith.serve.runtime.cards.channel import CardChannel
from megalith.serve.runtime.cards.load_pace import LoadPace
from megalith.serve.runtime.cards.served_part import ServedPart, VersionParts, load_parts
from megalith.serve.runtime.cards.version_source import load_source, part_bytes
from megalith.serve.runtime.cards.worker import CardWorker

MESSAGE_BYTES = 1 << 20
_MOST_DESCRIPTORS = 8
_DEATH_SIGNAL = 1
_NATIVE = ("native", "torch")
"""Backends that start no threads when they load."""


class ForkServer:
    """What the process holds."""

    def __init__(self, control: socket.socket, rooms: mmap) -> None:
        self._control, self._rooms = control, rooms
        self._sources: dict[int, ModelSource] = {}
        self._parts: dict[int, list[ServedPart]] = {}
        self._specs: dict[int, VersionParts] = {}

    def serve(self) -> None:
        """Does what it is told until the front ends."""
        while True:
            self.handle(self._receive())

    def handle(self, received: tuple[dict[str, Any], list[int]]) -> None:
        """One command."""
        command, descriptors = received
        reply: dict[str, Any] = {"id": command["id"]}
        try:
            reply["result"] = getattr(self, f"do_{command.pop('do')}")(descriptors, **command)
        except Exception as error:
            reply["error"] = sentence_of(error) or f"{type(error).__name__}: {error}"
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self._control.send(json.dumps(reply).encode())

    def do_load(
        self,
        descriptors: list[int],
        id: int,
        number: int,
        folder: str,
        base: int | None,
        parts: dict[str, Any],
        share: float,
    ) -> dict[str, int]:
        """Loads a version with a share of a core; cards that are to start meanwhile do not wait for it."""
        del descriptors, id
        spec = version_parts(parts)
        before = None if base is None else self._sources[base]
        pace = LoadPace(share, self._wait)
        source = load_source(Path(folder), before, pace)
        self._sources[number], self._specs[number] = source, spec
        if not starts_threads(spec):
            self._parts[number] = load_parts(source, spec)
            pace()
        gc.collect()
        gc.freeze()
        return part_bytes(self._parts.get(number, []))

    def do_unload(self, descriptors: list[int], id: int, number: int) -> None:
        """Frees a version here; its memory goes with the last card that has it."""
        del descriptors, id
        gc.unfreeze()
        for held in (self._sources, self._parts, self._specs):
            held.pop(number, None)
        gc.collect()

    def do_start(self, descriptors: list[int], id: int, number: int, place: int, versions: list[int]) -> int:
        """Forks a card."""
        del id
        process = os.fork()
        if not process:
            try:
                self._become_card(descriptors, number, place, versions)
            except BaseException as error:
                print(f"Card {place}: {sentence_of(error) or repr(error)}", file=sys.stderr, flush=True)
            finally:
                os._exit(1)
        return process

    def _become_card(self, descriptors: list[int], number: int, place: int, versions: list[int]) -> None:
        dies_with_parent()
        self._control.close()
        channel_memory = map_descriptor(descriptors[0], writable=True)
        outputs = map_descriptor(descriptors[1], writable=True)
        for held in (self._sources, self._parts):
            for version in [version for version in held if version not in versions]:
                del held[version]
        for version in versions:
            if version not in self._parts:
                self._parts[version] = load_parts(self._sources[version], self._specs[version])
        parts = {
            version * PARTS_A_VERSION + part: loaded
            for version in versions
            for part, loaded in enumerate(self._parts[version])
        }
        worker = CardWorker(self._rooms, outputs, parts, PeerMemory(os.getppid(), number, outputs))
        channel = CardChannel(channel_memory, descriptors[2], descriptors[3])
        gc.freeze()
        while True:
            for task in channel.tasks():
                channel.send_result(worker.run(task))

    def _wait(self, seconds: float) -> None:
        """Between pieces of a load: starts cards that died meanwhile."""
        until = time.monotonic() + seconds
        while True:
            while (received := receive(self._control, socket.MSG_DONTWAIT)) is not None:
                self.handle(received)
            left = until - time.monotonic()
            if left <= 0:
                return
            select.select([self._control], [], [], left)

    def _receive(self) -> tuple[dict[str, Any], list[int]]:
        received = receive(self._control)
        assert received is not None
        return received


def receive(control: socket.socket, flags: int = 0) -> tuple[dict[str, Any], list[int]] | None:
    """A command with its descriptors, or None where there is none; the end of the front is that of all.

    `socket.recv_fds` leaves its flags out.
    """
    room = socket.CMSG_LEN(_MOST_DESCRIPTORS * 4)
    try:
        data, extra, _, _ = control.recvmsg(MESSAGE_BYTES, room, flags | socket.MSG_CMSG_CLOEXEC)
    except BlockingIOError:
        return None
    if not data:
        os._exit(0)
    descriptors = array("i")
    for level, kind, content in extra:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[: len(content) - len(content) % 4])
    return json.loads(data), list(descriptors)


class PeerMemory:
    """Outputs of other cards, which the front process holds; mapped when they are first needed."""

    _MOST = 64

    def __init__(self, parent: int, own: int, outputs: mmap) -> None:
        del parent
        self._front = int(os.environ["MEGALITH_FRONT_PROCESS"])
        self._own, self._outputs = own, outputs
        self._mapped: dict[int, mmap] = {}

    def __call__(self, card: int, descriptor: int) -> mmap:
        """The memory of a card's outputs, to be read."""
        if card == self._own:
            return self._outputs
        found = self._mapped.get(card)
        if found is None:
            if len(self._mapped) >= self._MOST:
                # Cards that ended long ago.
                self._mapped.clear()
            opened = os.open(Path(f"/proc/{self._front}/fd/{descriptor}"), os.O_RDONLY | os.O_CLOEXEC)
            try:
                found = self._mapped[card] = map_descriptor(opened)
            finally:
                os.close(opened)
        return found


def version_parts(content: dict[str, Any]) -> VersionParts:
    """From JSON."""
    return VersionParts(
        **{
            **content,
            "partitions": tuple(tuple(tables) for tables in content["partitions"]),
            "host": tuple(content["host"]),
        }
    )


def starts_threads(spec: VersionParts) -> bool:
    """Whether a backend of this choice may start threads, so that cards must load it themselves."""
    return any(part.partition(":")[0] not in _NATIVE for part in spec.backend.split("+"))


def dies_with_parent() -> None:
    """Ends this process when its parent ends, however that does; leaves signals to the parent."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    parent = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0):
        raise ServeError(f"A process cannot be tied to its parent: {os.strerror(ctypes.get_errno())}.")
    if os.getppid() != parent or parent == 1:
        os._exit(0)


def main(control: int, rooms: int) -> None:
    """The process; both arguments are descriptors."""
    import torch

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    dies_with_parent()
    torch.set_num_threads(1)
    server = ForkServer(socket.socket(fileno=control), map_descriptor(rooms))
    server.serve()


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]), int(sys.argv[2]))
    except MegalithError as error:
        print(sentence_of(error), file=sys.stderr)
        sys.exit(2)
