"""Cards as processes: the front's side of the fork server."""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import Any
from weakref import WeakSet

from megalith.core.errors import ServeError
from megalith.serve.runtime.cards.card import Card, CardMaker
from megalith.serve.runtime.cards.fork_server import MESSAGE_BYTES
from megalith.serve.runtime.cards.process_card import ProcessCard
from megalith.serve.runtime.cards.served_part import VersionParts
from megalith.serve.runtime.event_loop import EventLoop
from megalith.serve.runtime.memory.rooms import Rooms

_START_SECONDS, _LOAD_SECONDS = 120, 3600
_THREAD_COUNTS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class ProcessCards(CardMaker):
    """Loads and starts through a fork server; replies come by the engine's thread."""

    def __init__(self, rooms: Rooms, loop: EventLoop, ended: Callable[[], None]) -> None:
        """`ended` is called, by the engine's thread, when the fork server has ended by itself."""
        self._rooms, self._loop, self._ended = rooms, loop, ended
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._replies: dict[int, Future[Any]] = {}
        self._cards: WeakSet[ProcessCard] = WeakSet()
        self._closing = False
        self._launched = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def launch(self) -> None:
        """Starts the fork server; by the engine's thread, whose end would be that of the process too."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE_BYTES)
        rooms = self._rooms.file.read_only_descriptor()
        command = [sys.executable, "-m", "megalith.serve.runtime.cards.fork_server"]
        environment = {
            **os.environ,
            **dict.fromkeys(_THREAD_COUNTS, "1"),
            "MEGALITH_FRONT_PROCESS": str(os.getpid()),
        }
        try:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno()), str(rooms)],
                pass_fds=(theirs.fileno(), rooms),
                stdin=subprocess.DEVNULL,
                env=environment,
            )
        finally:
            theirs.close()
            os.close(rooms)
        self._control = ours
        self._loop.watch(ours.fileno(), self._replied)
        self._launched.set()

    @property
    def process(self) -> int:
        """The process id of the fork server; 0 where there is none."""
        return self._process.pid if self._process else 0

    def load(
        self, number: int, folder: Path, base: int | None, parts: VersionParts, share: float
    ) -> dict[str, int]:
        """In the fork server."""
        self._launched.wait(_START_SECONDS)
        found: dict[str, int] = self.load_soon(number, folder, base, parts, share).result(_LOAD_SECONDS)
        return found

    def load_soon(
        self, number: int, folder: Path, base: int | None, parts: VersionParts, share: float = 1.0
    ) -> Future[Any]:
        """Loads without waiting for it."""
        command = {"number": number, "folder": str(folder.absolute()), "base": base, "parts": asdict(parts)}
        return self._send("load", {**command, "share": share})

    def unload(self, number: int) -> None:
        """In the fork server."""
        self.unload_soon(number).result(_LOAD_SECONDS)

    def unload_soon(self, number: int) -> Future[Any]:
        """Without waiting for it."""
        return self._send("unload", {"number": number})

    def start(self, number: int, place: int, versions: Mapping[int, VersionParts]) -> Card:
        """Forks a card and waits for it."""
        made: Future[Card] = Future()
        self.start_soon(number, place, versions, made)
        return made.result(_START_SECONDS)

    def start_soon(
        self, number: int, place: int, versions: Mapping[int, VersionParts], made: Future[Card]
    ) -> None:
        """Forks a card; `made` has it later."""
        card = ProcessCard(number, place, versions)

        def replied(reply: Future[Any]) -> None:
            try:
                card.began(reply.result())
            except Exception as error:
                card.release()
                made.set_exception(error)
            else:
                self._cards.add(card)
                made.set_result(card)

        command = {"number": number, "place": place, "versions": sorted(versions)}
        self._send("start", command, card.descriptors).add_done_callback(replied)

    def memory(self) -> dict[str, int]:
        """Resident bytes of this process and its children, of shared pages each its share."""
        found = {"front": proportional_bytes(os.getpid()), "server": proportional_bytes(self.process)}
        for card in list(self._cards):
            found[f"card {card.place} ({card.process})"] = proportional_bytes(card.process)
        return found

    def close(self) -> None:
        """Ends the fork server; cards end with it."""
        self._closing = True
        if self._control is not None:
            self._loop.forget(self._control.fileno())
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _send(self, what: str, command: dict[str, Any], descriptors: list[int] | None = None) -> Future[Any]:
        reply: Future[Any] = Future()
        with self._lock:
            number = next(self._ids)
            if self._control is None:
                reply.set_exception(ServeError("The process that starts cards has ended."))
                return reply
            self._replies[number] = reply
            data = json.dumps({"id": number, "do": what, **command}).encode()
            try:
                socket.send_fds(self._control, [data], descriptors or [])
            except OSError as error:
                del self._replies[number]
                reply.set_exception(ServeError(f"The process that starts cards has ended ({error})."))
        return reply

    def _replied(self) -> None:
        control = self._control
        if control is None:
            return
        try:
            data = control.recv(MESSAGE_BYTES)
        except OSError:
            data = b""
        if not data:
            self._lost(control)
            return
        content = json.loads(data)
        with self._lock:
            reply = self._replies.pop(content["id"])
        if "error" in content:
            reply.set_exception(ServeError(content["error"]))
        else:
            reply.set_result(content["result"])

    def _lost(self, control: socket.socket) -> None:
        self._loop.forget(control.fileno())
        with self._lock:
            control.close()
            self._control = None
            replies, self._replies = list(self._replies.values()), {}
        for reply in replies:
            reply.set_exception(ServeError("The process that starts cards has ended."))
        if self._process is not None:
            # Its memory may take a while to be given back; the engine's thread has requests to see to.
            threading.Thread(target=self._process.wait, name="megalith-reaper", daemon=True).start()
        if not self._closing:
            self._ended()


def proportional_bytes(process: int) -> int:
    """Resident bytes of a process, of shared pages its share; 0 where the system does not say."""
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0
    fields = [line.split() for line in text.splitlines() if line.startswith("Pss:")]
    return 1024 * int(fields[0][1]) if fields else 0
