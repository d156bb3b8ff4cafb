"""`megalith bench train --ranks N`: a training step over several processes, beside TorchRec's.

Every process runs our trainer's own step (learner, pipeline, plan) and TorchRec's on its part of the same
batches, from the same start values. Sides take turns of a few steps; all ranks begin a turn together, and its
time is that of the slowest. One process with the whole batch takes turns too, for the parallel efficiency.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing
from torch.multiprocessing.spawn import ProcessException

from megalith.bench.embedding.shapes import NUM_BATCHES
from megalith.bench.memory import check_memory
from megalith.bench.peers.candidates import bytes_needed
from megalith.bench.peers.lookup import OURS, LookupShape
from megalith.bench.runner import Timing, result
from megalith.bench.train.rank_plans import ShardingChoice, make_plan
from megalith.bench.train.rank_worker import ALONE, STEPS_A_TURN, RankSettings, run_rank
from megalith.bench.train.samples import BOTTOM, NUM_DENSE, TOP
from megalith.bench.train.torchrec_ranks import KINDS
from megalith.core.errors import ConfigError, MegalithError

PEERS = ("torchrec",)
Say = Callable[[str], None]


def bench_ranks(
    shape: LookupShape,
    ranks: int,
    sharding: ShardingChoice,
    peers: Sequence[str],
    repeats: int = 5,
    threads: int | None = None,
    say: Say = lambda _: None,
) -> dict[str, Any]:
    """Times steps over `ranks` processes of `threads` threads each (one, if not told)."""
    if shape.batch % ranks:
        raise ConfigError(
            f"--batch {shape.batch} does not divide evenly over {ranks} ranks; pass a multiple of it."
        )
    _check_peers(sharding, peers)
    copies = 2 + len(peers)
    check_memory(f"Training on {shape.tables} x {shape.rows:,} rows", copies * bytes_needed(OURS, shape))
    plan = make_plan(shape, ranks, sharding)
    settings = RankSettings(shape, plan, sharding, tuple(peers), repeats, threads or 1)
    say(f"training steps over {ranks} processes, {sharding}: {shape}")
    with tempfile.TemporaryDirectory() as folder:
        _spawn(settings, Path(folder))
        measured = json.loads((Path(folder) / "result.json").read_text(encoding="utf-8"))
    return result("train", _described(settings), summary(settings, measured), None)


def summary(settings: RankSettings, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """What the ranks measured, as one: the time of a step is the slowest rank's."""
    shape = settings.shape
    candidates, timings = {}, {}
    for name in ranks[0]["seconds"]:
        members = [rank for rank in ranks if name in rank["seconds"]]
        slowest = tuple(max(turn) for turn in zip(*(rank["seconds"][name] for rank in members), strict=True))
        cpu = tuple(sum(turn) for turn in zip(*(rank["cpu_seconds"][name] for rank in members), strict=True))
        timings[name] = timing = Timing(slowest, cpu)
        candidates[name] = {
            **timing.to_dict(),
            "samples_per_second": timing.rate(shape.batch),
            "losses": [sum(step) for step in zip(*(rank["losses"][name] for rank in members), strict=True)],
        }
    ours = timings[OURS].median
    sent = {kind: sum(rank["sent_bytes"].get(kind, 0) for rank in ranks) for kind in ranks[0]["sent_bytes"]}
    return {
        "candidates": candidates,
        "speed_ratio": {name: timing.median / ours for name, timing in timings.items() if name != OURS},
        "parallel_efficiency": timings[ALONE].median / (settings.ranks * ours),
        "sent_bytes_a_step": sent,
    }


def _spawn(settings: RankSettings, folder: Path) -> None:
    # Processes that start count threads before they can be told.
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = str(settings.threads)
    try:
        torch.multiprocessing.spawn(run_rank, (settings, folder), nprocs=settings.ranks)
    except ProcessException as error:
        last = str(error).strip().splitlines()[-1]
        raise MegalithError(f"Rank {error.error_index} of the benchmark ended: {last}") from error
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


def _check_peers(sharding: ShardingChoice, peers: Sequence[str]) -> None:
    if "torchrec" in peers and sharding not in KINDS:
        raise ConfigError(
            f"TorchRec does not train {sharding} tables on the CPU; pass --sharding "
            f"{' or '.join(KINDS)}, or --peer none."
        )


def _described(settings: RankSettings) -> dict[str, Any]:
    shape = settings.shape
    return {
        **asdict(shape),
        "bottom": [*BOTTOM, shape.dim],
        "top": [*TOP, 1],
        "dense_features": NUM_DENSE,
        "ranks": settings.ranks,
        "sharding": settings.sharding,
        "peers": list(settings.peers),
        "repeats": settings.repeats,
        "batches": NUM_BATCHES,
        "steps_a_turn": STEPS_A_TURN,
        "threads": settings.threads,
    }
