"""What one process of `megalith bench train --ranks N` does: steps of every candidate in turns, timed."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing

from megalith.bench.embedding.shapes import NUM_BATCHES
from megalith.bench.peers.lookup import OURS, LookupShape
from megalith.bench.train.rank_candidates import MegalithRank, RankCandidate, part_of
from megalith.bench.train.rank_plans import ShardingChoice, start_values
from megalith.bench.train.samples import draw_samples
from megalith.bench.train.torchrec_ranks import TorchRecRank, quiet
from megalith.data.batch import Batch
from megalith.sharding.plan import ShardingPlan


@dataclass(frozen=True, slots=True)
class RankSettings:
    """What all processes measure together."""

    shape: LookupShape
    plan: ShardingPlan
    sharding: ShardingChoice
    peers: tuple[str, ...]
    repeats: int
    threads: int

    @property
    def ranks(self) -> int:
        """Number of processes."""
        return self.plan.world_size


ALONE = f"{OURS}, one process"
STEPS_A_TURN = 2 * NUM_BATCHES


def run_rank(rank: int, settings: RankSettings, folder: Path) -> None:
    """Joins the process group, measures, and lets rank 0 write what all ranks measured."""
    torch.set_num_threads(settings.threads)
    rendezvous = (folder / "group").as_uri()
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=settings.ranks)
    try:
        measured = _measure(rank, settings)
        gathered: list[Any] = [None] * settings.ranks
        dist.all_gather_object(gathered, measured)
        if rank == 0:
            (folder / "result.json").write_text(json.dumps(gathered), encoding="utf-8")
    finally:
        dist.destroy_process_group()


def _measure(rank: int, settings: RankSettings) -> dict[str, Any]:
    shape = settings.shape
    samples = [draw_samples(shape, number % NUM_BATCHES) for number in range(STEPS_A_TURN)]
    ours = MegalithRank(shape, settings.plan)
    sides: dict[str, RankCandidate] = {OURS: ours}
    if "torchrec" in settings.peers:
        with quiet():
            sides["torchrec"] = TorchRecRank(
                shape, settings.sharding, settings.ranks, ours.dense, lambda name: start_values(shape, name)
            )
    alone = MegalithRank(shape, None) if rank == 0 else None
    if alone is not None:
        sides[ALONE] = alone
    part = [part_of(batch, shape, rank, settings.ranks) for batch in samples]
    whole = [part_of(batch, shape, 0, 1) for batch in samples]
    # The first batches fill the pipelines, which then hold some at the start and at the end of every turn.
    for name, side in sides.items():
        side.ready(whole if name == ALONE else part)
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    cpu_seconds: dict[str, list[float]] = {name: [] for name in sides}
    names = [OURS, *settings.peers, ALONE]
    order = random.Random(0)
    for number in range(1 + settings.repeats):
        order.shuffle(names)
        for name in names:
            if name not in sides:
                # Those who have no part in a turn wait for the others.
                dist.barrier()
                dist.barrier()
                continue
            clock, cpu = _turn(sides[name], whole if name == ALONE else part)
            if number:
                seconds[name].append(clock)
                cpu_seconds[name].append(cpu)
    # Our loss is a rank's part of that of all; TorchRec's is the mean over the rank's samples.
    shares = dict.fromkeys(settings.peers, 1 / settings.ranks)
    traffic, steps = ours.sharded.traffic, ours.sharded.num_steps
    measured = {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "losses": {
            # Of the first steps: later ones have memorised the few batches.
            name: [loss.item() * shares.get(name, 1) for loss in side.losses[:STEPS_A_TURN]]
            for name, side in sides.items()
        },
        "sent_bytes": {kind: round(sent / steps) for kind, sent in traffic.sent_bytes.items()},
    }
    for candidate in (ours, alone):
        if candidate is not None:
            candidate.close()
    return measured


def _turn(side: RankCandidate, batches: Sequence[Batch]) -> tuple[float, float]:
    """Seconds of a step, by the clock and of the processor, in a turn that all ranks begin together."""
    side.ready(batches)
    dist.barrier()
    start, cpu_start = perf_counter(), process_time()
    side.turn(len(batches))
    clock, cpu = perf_counter() - start, process_time() - cpu_start
    dist.barrier()
    return clock / len(batches), cpu / len(batches)
