"""`megalith bench train`: one whole training step of DLRM, beside TorchRec's and one in plain torch.

All candidates have the same layers, start values and batches, so TorchRec's losses are ours.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from megalith.bench.embedding.shapes import NUM_BATCHES
from megalith.bench.memory import check_memory
from megalith.bench.peers.candidates import bytes_needed
from megalith.bench.peers.lookup import OURS, LookupShape
from megalith.bench.runner import result
from megalith.bench.train.candidates import PARTS, MegalithStep, PlainTorchStep, TrainCandidate
from megalith.bench.train.samples import BOTTOM, NUM_DENSE, TOP, TrainSamples, draw_samples
from megalith.bench.train.torchrec_ranks import quiet
from megalith.bench.train.torchrec_step import TorchRecStep
from megalith.bench.turns import take_turns

PEERS = ("torchrec", "torch")
Say = Callable[[str], None]
Step = Callable[[TrainSamples], dict[str, float]]


def bench_train(
    shape: LookupShape,
    peers: Sequence[str],
    repeats: int = 5,
    threads: int | None = None,
    say: Say = lambda _: None,
) -> dict[str, Any]:
    """Times steps of ours and of every peer, and where the time of ours goes."""
    torch.set_num_threads(threads or torch.get_num_threads())
    need = sum(bytes_needed(name, shape) for name in (OURS, *peers))
    check_memory(f"Training on tables of {shape.tables} x {shape.rows:,} rows", need)
    batches = [draw_samples(shape, seed) for seed in range(NUM_BATCHES)]
    with candidates(shape, peers) as trainers:
        say(f"training steps: {shape}")
        steps: dict[str, Step] = {name: trainer.timed for name, trainer in trainers.items()}
        timings = take_turns(steps, batches, repeats)
        ours = trainers[OURS]
        assert isinstance(ours, MegalithStep)
        say("where the time goes")
        parts = take_turns({OURS: ours.timed_parts}, batches, repeats)[OURS]
        losses = {name: trainer.loss for name, trainer in trainers.items()}
        del steps, ours
    totals = {name: timing["total"] for name, timing in timings.items()}
    results = {
        "candidates": {
            name: {**total.to_dict(), "samples_per_second": total.rate(shape.batch), "loss": losses[name]}
            for name, total in totals.items()
        },
        "speed_ratio": {name: totals[name].median / totals[OURS].median for name in totals if name != OURS},
        "parts": {name: parts[name].to_dict() for name in PARTS},
    }
    settings = {
        **asdict(shape),
        "bottom": [*BOTTOM, shape.dim],
        "top": [*TOP, 1],
        "dense_features": NUM_DENSE,
        "peers": list(peers),
        "repeats": repeats,
        "batches": NUM_BATCHES,
        "threads": torch.get_num_threads(),
    }
    return result("train", settings, results, None)


@contextmanager
def candidates(shape: LookupShape, peers: Sequence[str]) -> Iterator[dict[str, TrainCandidate]]:
    """Ours and the peers, ready to train."""
    ours = MegalithStep(shape)
    trainers: dict[str, TrainCandidate] = {OURS: ours}
    with tempfile.TemporaryDirectory() as folder, quiet():
        grouped = "torchrec" in peers
        if grouped:
            rendezvous = (Path(folder) / "group").as_uri()
            torch.distributed.init_process_group("gloo", init_method=rendezvous, rank=0, world_size=1)
        try:
            for name in peers:
                trainers[name] = {"torchrec": TorchRecStep, "torch": PlainTorchStep}[name](shape, ours)
            yield trainers
        finally:
            trainers.clear()
            gc.collect()
            if grouped:
                torch.distributed.destroy_process_group()
