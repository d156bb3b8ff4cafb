"""Processes that meet in a store which remembers those of earlier attempts."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import torch.distributed as dist

from megalith.comm.rendezvous import attempt_store


def test_every_attempt_gets_a_part_of_the_store_that_nobody_used():
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    # A rank of an attempt that never came about has left its token.
    server.set("megalith/token/1", "of a process that is gone")

    def come(rank, world_size):
        client = dist.TCPStore("127.0.0.1", server.port, is_master=False, timeout=timedelta(seconds=30))
        return attempt_store(client, rank, world_size)

    seen = []
    for world_size in (3, 2, 1, 3):
        with ThreadPoolExecutor(3) as threads:
            parts = list(threads.map(come, range(world_size), [world_size] * world_size))
        assert not parts[0].check(["address"])
        parts[-1].set("address", str(world_size))
        assert all(part.get("address") == str(world_size).encode() for part in parts)
        seen.append(parts)
    assert len(seen) == 4
