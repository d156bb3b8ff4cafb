"""One rank: takes a command a line from standard input, answers with one line of JSON.

    {"do": "parts", ...}   seconds of F, BW, split F, B, W and update of single parts of the model
    {"do": "link", ...}    latency and bandwidth between two ranks, from small and large messages
    {"do": "prepare", ...} a setting: chunks, order of operations, exchanges; and steps that do not count
    {"do": "steps", ...}   training steps: when each began, when this rank was done, how long it computed

What the first two say is all that predictions are made from.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import time
from statistics import mean, median
from typing import Any

import torch
import torch.distributed as dist
from exchange import Exchange, Gloo, Hierarchical, Ring
from model import Chunk, Part, Shape, TransformerChunk, WaitingChunk
from steps import RankStep

Groups = dict[tuple[int, ...], Any]

_PR_SET_PDEATHSIG, _SIGKILL = 1, 9


def measure_parts(shape: Shape, parts: dict[str, Part], repeats: int) -> dict[str, dict[str, float]]:
    """Mean seconds of each operation of each part, with a few micro-batches in flight as in a pipeline.
    The mean, because a step adds up many operations, slow ones among them."""
    return {name: _measure_part(shape, part, repeats) for name, part in parts.items()}


def _measure_part(shape: Shape, part: Part, repeats: int) -> dict[str, float]:
    in_flight = 2
    taken: dict[str, list[float]] = {}
    for split in (False, True):
        chunk = TransformerChunk(shape, part, split=split)
        received = None if part.embedding else torch.randn_like(shape.activation())
        gradient = None if part.head else torch.randn_like(shape.activation())
        for repeat in range(repeats + 1):
            seconds = _one_round(chunk, received, gradient, in_flight, split=split)
            for kind, values in seconds.items() if repeat else ():
                # Layers that put W off are other code from the forward on.
                name = "split F" if split and kind == "F" else kind
                taken.setdefault(name, []).extend(values)
    return {kind: mean(values) for kind, values in taken.items()}


def _one_round(
    chunk: Chunk,
    received: torch.Tensor | None,
    gradient: torch.Tensor | None,
    in_flight: int,
    *,
    split: bool,
) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {"F": [], "B" if split else "BW": [], "update": []}
    if split:
        taken["W"] = []
    clock = time.perf_counter
    for micro_batch in range(in_flight):
        start = clock()
        chunk.forward(micro_batch, received)
        taken["F"].append(clock() - start)
    for micro_batch in range(in_flight):
        start = clock()
        chunk.backward(micro_batch, gradient, weights=not split)
        taken["B" if split else "BW"].append(clock() - start)
    for micro_batch in range(in_flight if split else 0):
        start = clock()
        chunk.backward_weights(micro_batch)
        taken["W"].append(clock() - start)
    start = clock()
    chunk.update()
    taken["update"].append(clock() - start)
    return taken


def measure_link(first: int, second: int, large_bytes: int, repeats: int) -> dict[str, float] | None:
    """Latency: half of a round trip of four bytes. Bandwidth: what more a large message takes than that."""
    rank = dist.get_rank()
    dist.barrier()
    if rank not in (first, second):
        return None
    small, large = torch.zeros(1), torch.zeros(large_bytes // 4)
    other, leads = (second, True) if rank == first else (first, False)
    # Windows grow to what the link holds before anything counts.
    for _ in range(3):
        _exchange(large, other, leads)
    small_seconds = median(_exchange(small, other, leads) for _ in range(repeats))
    large_seconds = median(_exchange(large, other, leads) for _ in range(max(3, repeats // 2)))
    # One large message each way, after each other.
    return {
        "latency_seconds": small_seconds / 2,
        "bytes_per_second": 2 * large_bytes / (large_seconds - small_seconds),
    }


def _exchange(tensor: torch.Tensor, other: int, leads: bool) -> float:
    """Seconds of a message there and one back, receives posted beforehand on both sides."""
    receive: Any = dist.irecv(torch.empty_like(tensor), other, tag=1)
    # The other side's announcement of its receive has passed when this pair of messages is through.
    token = torch.zeros(1)
    for turn in (leads, not leads):
        (dist.send if turn else dist.recv)(token, other, tag=2)
    start = time.monotonic()
    sends: list[Any] = [dist.isend(tensor, other, tag=1)] if leads else []
    receive.wait()
    taken = time.monotonic() - start
    if not leads:
        sends.append(dist.isend(tensor, other, tag=1))
    for send in sends:
        send.wait()
    return taken


def prepare(command: dict[str, Any], groups: Groups) -> RankStep:
    """Builds the chunks and exchanges of a setting, and runs steps that do not count."""
    shape, rank = Shape(**command["shape"]), dist.get_rank()
    mine = command["ranks"][rank]
    torch.manual_seed(rank)
    chunks = [_make_chunk(shape, chunk, mine["split"]) for chunk in mine["chunks"]]
    exchanges: dict[int, Exchange] = {}
    for number, chunk in enumerate(chunks):
        exchange = _make_exchange(command["exchange"], chunk, mine, number, groups)
        if exchange is not None:
            exchanges[number] = exchange
    order = [(kind, chunk, micro_batch) for kind, chunk, micro_batch in mine["order"]]
    step = RankStep(
        shape, mine["placement"], order, chunks, exchanges, command["overlap"], command["margin_seconds"]
    )
    run_steps(step, command["warmup"])
    return step


def run_steps(step: RankStep, steps: int) -> list[tuple[float, float, float]]:
    """Runs steps without garbage collection; when each began and ended, and how long it computed."""
    gc.collect()
    gc.disable()
    moments = [step.run() for _ in range(steps)]
    gc.enable()
    return moments


def _make_chunk(shape: Shape, chunk: dict[str, Any], split: bool) -> Chunk:
    part = Part(**chunk["part"])
    if chunk.get("seconds") is None:
        return TransformerChunk(shape, part, split=split)
    gradient = torch.zeros(chunk["gradient_bytes"] // 4)
    return WaitingChunk(part, gradient, shape.activation(), chunk["seconds"])


def _make_exchange(
    kind: str,
    chunk: Chunk,
    mine: dict[str, Any],
    number: int,
    groups: Groups,
) -> Exchange | None:
    replicas = mine["replicas"]
    if len(replicas) == 1:
        return None
    if kind == "hierarchical":
        return Hierarchical(chunk.gradient, mine["inside"], mine["across"], number)
    if kind == "gloo":
        return Gloo(chunk.gradient, groups[tuple(replicas)])
    return Ring(chunk.gradient, replicas, number, ("reduce", "gather"))


def serve(answers: int) -> None:
    """Answers commands until standard input ends."""
    ranks = list(range(dist.get_world_size()))
    groups: Groups = {tuple(ranks): dist.new_group(ranks)}
    step: RankStep | None = None
    for line in sys.stdin:
        command = json.loads(line)
        answer: Any = None
        if command["do"] == "parts":
            parts = {name: Part(**part) for name, part in command["parts"].items()}
            answer = measure_parts(Shape(**command["shape"]), parts, command["repeats"])
        elif command["do"] == "link":
            answer = measure_link(command["first"], command["second"], command["bytes"], command["repeats"])
        elif command["do"] == "prepare":
            step = prepare(command, groups)
        elif step is not None:
            answer = run_steps(step, command["steps"])
        os.write(answers, (json.dumps(answer) + "\n").encode())


def main(rank: int, ranks: int, store: str) -> None:
    """Joins the process group on a core of its own, and serves."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    # gloo writes to standard output; answers go where it does not.
    answers = os.dup(1)
    os.dup2(2, 1)
    # A rank is a device: it has one core and keeps it.
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    serve(answers)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
