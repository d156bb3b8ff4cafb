"""Processes that meet in a store which remembers those of earlier attempts."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import torch.distributed as dist

from forked import PATIENCE_SECONDS
from megalith.comm.rendezvous import attempt_store


def test_every_attempt_gets_a_part_of_the_store_that_nobody_used():
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    # A rank of an attempt that never came about has left its token.
    server.set("megalith/token/1", "of a process that is gone")

    def come(rank, world_size):
        patience = timedelta(seconds=PATIENCE_SECONDS)
        client = dist.TCPStore("127.0.0.1", server.port, is_master=False, timeout=patience)
        return attempt_store(client, rank, world_size)

    attempts = []
    for number, world_size in enumerate((3, 2, 1, 3)):
        with ThreadPoolExecutor(3) as threads:
            parts = list(threads.map(come, range(world_size), [world_size] * world_size))
        assert not parts[0].check(["address"])
        parts[-1].set("address", str(number))
        assert all(part.get("address") == str(number).encode() for part in parts)
        attempts.append(parts)
    # What a later attempt wrote has changed nothing for those before it.
    for number, parts in enumerate(attempts):
        assert {part.get("address") for part in parts} == {str(number).encode()}
