"""Attempts to start the ranks, in a store that remembers those of earlier attempts."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta

import pytest
import torch.distributed as dist

from forked import PATIENCE_SECONDS, Forked, results_of
from megalith.comm import rendezvous
from megalith.comm.peer_lost import PeerLostError
from megalith.comm.rendezvous import attempt_store


@pytest.fixture
def server():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    # A rank of an attempt that never came about has left its token.
    store.set("megalith/token/1", "of a process that is gone")
    return store


def client_of(port):
    patience = timedelta(seconds=PATIENCE_SECONDS)
    return dist.TCPStore("127.0.0.1", port, is_master=False, timeout=patience)


def test_every_attempt_gets_a_part_of_the_store_that_nobody_used(server):
    def attempt(rank, world_size):
        return attempt_store(client_of(server.port), rank, world_size)

    attempts = []
    for number, world_size in enumerate((3, 2, 1, 3)):
        with ThreadPoolExecutor(3) as threads:
            parts = list(threads.map(attempt, range(world_size), [world_size] * world_size))
        assert not parts[0].check(["address"])
        parts[-1].set("address", str(number))
        assert all(part.get("address") == str(number).encode() for part in parts)
        attempts.append(parts)
    # What a later attempt wrote has changed nothing for those before it.
    for number, parts in enumerate(attempts):
        assert {part.get("address") for part in parts} == {str(number).encode()}


def exchange_addresses(port, rank, world_size, attempt):
    """Each rank leaves its address and reads those of all."""
    part = attempt_store(client_of(port), rank, world_size)
    part.set(f"address/{rank}", f"{attempt}.{rank}")
    return [part.get(f"address/{other}").decode() for other in range(world_size)]


def test_processes_of_an_attempt_read_only_each_others_addresses(server):
    for attempt in range(3):
        with ExitStack() as stack:
            ranks = [
                stack.enter_context(Forked(exchange_addresses, server.port, rank, 2, attempt))
                for rank in range(2)
            ]
            assert results_of(ranks) == [[f"{attempt}.0", f"{attempt}.1"]] * 2


def test_ranks_that_do_not_come_are_named(server, monkeypatch):
    monkeypatch.setattr(rendezvous, "_TIMEOUT_SECONDS", 0.0)
    with pytest.raises(PeerLostError, match=r"timed out waiting for ranks \[1, 2\]"):
        attempt_store(client_of(server.port), 0, 3)
