"""Real processes that speak gloo: `on_ranks(4, function, ...)` runs a function on each, gives the results;
`torchrun(...)` starts two as a user would, `as_torchrun_does(...)` two that need not import anything."""

import os
import sys
import tempfile
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from commands import run
from forked import PATIENCE_SECONDS, Forked, Raised, results_of


def on_ranks(world_size, function, *arguments):
    """The results of `function(*arguments)` on every rank of a default process group, by rank.

    The ranks are forked for this call and killed after it: nothing of one test reaches the next.
    """
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        rendezvous = Path(folder) / "rendezvous"
        ranks = [
            Forked(_rank, rank, world_size, rendezvous, function, arguments, name=f"rank {rank}")
            for rank in range(world_size)
        ]
        for rank in ranks:
            stack.enter_context(rank)
        results = results_of(ranks)
    failed = [
        f"rank {rank}: {result.text}" for rank, result in enumerate(results) if isinstance(result, Raised)
    ]
    if failed:
        raise AssertionError("\n".join(failed))
    return results


def torchrun(*arguments, processes=2):
    """What `torchrun` printed and how it ended; one that hangs fails."""
    return run(torchrun_command(processes, *arguments), env={**os.environ, "OMP_NUM_THREADS": "1"})


class JobEnd(NamedTuple):
    """How the ranks of a job ended, by rank, and what all of them said."""

    codes: list
    stderr: str


def as_torchrun_does(num_ranks, function, *arguments):
    """Runs a function in processes that torchrun might have started: the rank is in the environment, and a
    store outlives them all. One process gets no rank."""
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    job = {
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        ranks = []
        for rank in range(num_ranks):
            output = Path(folder) / str(rank)
            output.mkdir()
            environment = {**job, "RANK": str(rank)} if num_ranks > 1 else {}
            process = Forked(
                _rank_of_job, environment, function, arguments, name=f"rank {rank}", output=output
            )
            ranks.append(stack.enter_context(process))
        codes = [rank.wait() for rank in ranks]
        return JobEnd(codes, "".join(rank.printed()[1] for rank in ranks))


def _rank_of_job(environment, function, arguments):
    os.environ.update(environment)
    function(*arguments)


def torchrun_command(processes, *arguments):
    """The command line that starts so many ranks."""
    command = [str(Path(sys.executable).parent / "torchrun"), "--nproc-per-node", str(processes)]
    return [*command, *map(str, arguments)]


def sentences(result):
    """What was said to the user, apart from torchrun's own report."""
    return [line for line in result.stderr.splitlines() if line.startswith("megalith: ")]


def _rank(rank, world_size, rendezvous, function, arguments):
    import torch.distributed as dist

    dist.init_process_group(
        "gloo",
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=PATIENCE_SECONDS),
    )
    result = function(*arguments)
    dist.barrier()
    dist.destroy_process_group()
    return result
