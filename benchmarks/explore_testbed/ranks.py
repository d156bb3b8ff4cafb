"""The ranks of a testbed as processes in their namespaces, a line of JSON for each command and answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from buildings import Buildings

from megalith.core.errors import MegalithError

_WORKER = Path(__file__).with_name("worker.py")
_LINES_OF_LOG = 5
# Freed memory is kept for the next micro-batch, as allocators of accelerators do it; otherwise every large
# tensor is paid for with fresh pages, and steps differ by how many there were.
_KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(8 << 30)}


@dataclass(frozen=True, slots=True)
class Ranks:
    """The processes of all ranks; `ask` sends them commands."""

    processes: tuple[subprocess.Popen[str], ...]
    log: IO[str]

    def ask(self, command: dict[str, Any]) -> list[Any]:
        """The same command to every rank; their answers in order of rank."""
        line = json.dumps(command) + "\n"
        for rank, process in enumerate(self.processes):
            assert process.stdin is not None
            try:
                process.stdin.write(line)
                process.stdin.flush()
            except BrokenPipeError:
                raise self._died(rank) from None
        return [self._answer(rank) for rank in range(len(self.processes))]

    def _answer(self, rank: int) -> Any:
        answers = self.processes[rank].stdout
        assert answers is not None
        line = answers.readline()
        if not line:
            raise self._died(rank)
        return json.loads(line)

    def _died(self, rank: int) -> MegalithError:
        self.log.flush()
        last = Path(self.log.name).read_text(errors="replace").strip().splitlines()[-_LINES_OF_LOG:]
        return MegalithError(f"Rank {rank} of the testbed ended early; its last lines: {' / '.join(last)}")


@contextmanager
def started_ranks(buildings: Buildings) -> Iterator[Ranks]:
    """One process a rank, ended whatever happens inside."""
    # gloo talks over the building's network only; the rendezvous is a file and needs no network.
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1", **_KEEP_MEMORY}
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "ranks.log").open("w") as log:
        processes = []
        try:
            for rank in range(buildings.ranks):
                worker = [sys.executable, str(_WORKER), str(rank), str(buildings.ranks), f"{folder}/store"]
                processes.append(
                    subprocess.Popen(
                        buildings.command_in_rank(rank, worker),
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=log,
                        text=True,
                        env=environment,
                        # Ctrl-C is for the parent, which ends them in its own time.
                        start_new_session=True,
                    )
                )
            yield Ranks(tuple(processes), log)
        finally:
            for process in processes:
                process.kill()
                process.wait()
