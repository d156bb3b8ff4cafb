"""Real processes that speak gloo: `on_ranks(4, function, ...)` runs a function on each, gives the results;
`torchrun(...)` starts two as a user would."""

import multiprocessing
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

# A server that has imported torch once forks each rank: a start takes a tenth of a second, not three.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch.distributed.checkpoint", "megalith.train.trainer"])

_PATIENCE_SECONDS = 120


def on_ranks(world_size, function, *arguments):
    """The results of `function(*arguments)` on every rank of a default process group, by rank."""
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(world_size):
            ours, theirs = _CONTEXT.Pipe(duplex=False)
            process = _CONTEXT.Process(
                target=_run, args=(theirs, rank, world_size, Path(folder) / "meet", function, arguments)
            )
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        try:
            results = [_received(rank, pipe) for rank, pipe in enumerate(pipes)]
        finally:
            for process in processes:
                process.kill()
                process.join()
    failed = [result.text for result in results if isinstance(result, _Raised)]
    if failed:
        raise AssertionError("\n".join(failed))
    return results


def torchrun(*arguments, processes=2):
    """What `torchrun` printed and how it ended; one that hangs fails."""
    return subprocess.run(
        torchrun_command(processes, *arguments),
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=170,
    )


def torchrun_command(processes, *arguments):
    """The command line that starts so many ranks."""
    command = [str(Path(sys.executable).parent / "torchrun"), "--nproc-per-node", str(processes)]
    return [*command, *map(str, arguments)]


def sentences(result):
    """What was said to the user, apart from torchrun's own report."""
    return [line for line in result.stderr.splitlines() if line.startswith("megalith: ")]


class _Raised:
    def __init__(self, text):
        self.text = text


def _received(rank, pipe):
    if not pipe.poll(_PATIENCE_SECONDS):
        return _Raised(f"rank {rank} hangs")
    try:
        return pipe.recv()
    except EOFError:
        return _Raised(f"rank {rank} ended without a result")


def _run(pipe, rank, world_size, meet, function, arguments):
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=world_size)
        result = function(*arguments)
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        result = _Raised(f"rank {rank}: {traceback.format_exc()}")
    pipe.send(result)
