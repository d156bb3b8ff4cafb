"""A delta of 1% of the rows, loaded while serving: what it costs in memory and in the tail.

    python benchmarks/serve_delta.py --shape rm1 --out benchmarks/results/serve-delta.json

A model is served at a share of the highest rate that a closed loop reaches, first undisturbed, then while
one delta after the other is loaded without a pause, then undisturbed again. Deltas turn the same 1% of
the rows of every table there and back, so that each is over the version before. Memory is the
proportional share (Pss) of all processes of the server, read all the time. Every answer is compared with
the one that the backend gave for its version in this process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from megalith.bench.runner import result, save_result
from megalith.bench.serve.network.answers import frozen_scores
from megalith.bench.serve.network.models import tiled_request, write_shape
from megalith.bench.serve.network.servers import RunningPeer, started_server
from megalith.bench.serve.shapes import SHAPES, ServedShape, served_shape
from megalith.bench.serve.weights import HEADER_BYTES, ServedWeights
from megalith.export.delta import write_delta
from megalith.serve.loadtest.clients import HttpLoadClient
from megalith.serve.loadtest.loads import LoadResult, closed_loop, open_loop
from megalith.serve.loadtest.payloads import http_payload

REQUESTS = 16
MEMORY_GOAL, TAIL_GOAL = 1.10, 1.3


class Deltas:
    """A model, another with some rows changed, the deltas between them, and the answers of both."""

    def __init__(self, shape: ServedShape, folder: Path, share: float, samples: int) -> None:
        self.requests = [tiled_request(shape, samples, seed) for seed in range(REQUESTS)]
        weights = ServedWeights(shape)
        held = [write_shape(folder / "base", weights, "int8")]
        change_rows(weights, share)
        held.append(write_shape(folder / "changed", weights, "int8"))
        self.right = [frozen_scores(path, self.requests) for path in held]
        self.model = folder / "models" / "model"
        self.model.mkdir(parents=True)
        self._between = [folder / "there", folder / "back"]
        self.bytes = 0
        for number, path in enumerate(self._between):
            delta = write_delta(held[number], held[1 - number], path)
            self.bytes = sum(file.bytes for file in delta.files.values())
        shutil.rmtree(held[1])
        held[0].rename(self.model / "1")
        self.newest = 1

    def add(self) -> None:
        """Puts the next version into the repository; the first one stays, for deltas rest on it."""
        shutil.copytree(self._between[(self.newest - 1) % 2], self.model / str(self.newest + 1))
        self.newest += 1

    def check(self, place: int, body: bytes) -> bool:
        """Whether an answer is that of the version it names."""
        end = body.find(b"}]}") + 3
        version = int(json.loads(body[:end])["model_version"])
        return self.right[(version - 1) % 2][place].tobytes() == body[end:]


def change_rows(weights: ServedWeights, share: float) -> None:
    """Turns over the codes of a share of the rows of every table."""
    draw = np.random.default_rng(0)
    for rows in weights.rows:
        chosen = torch.from_numpy(draw.choice(len(rows), max(1, round(share * len(rows))), replace=False))
        rows[chosen, HEADER_BYTES:] = 255 - rows[chosen, HEADER_BYTES:]


class Run:
    """One server under load."""

    def __init__(self, settings: argparse.Namespace, server: RunningPeer, deltas: Deltas) -> None:
        self.settings, self.server, self.deltas = settings, server, deltas
        self.memory: list[tuple[float, int]] = []
        self.load_seconds: list[float] = []
        self.problems: list[str] = []
        self._loading = False

    async def measure(self) -> dict[str, Any]:
        """Undisturbed, disturbed, undisturbed."""
        payloads = [http_payload("/v2/models/model/infer", each) for each in self.deltas.requests]
        client = HttpLoadClient("127.0.0.1", self.server.ports["http"], 512)
        check = self.deltas.check
        await closed_loop(client, payloads, 4, 1.0, check)
        most = (await closed_loop(client, payloads, 16, 5.0, check)).rate
        rate, seconds = self.settings.share * most, self.settings.seconds
        print(f"closed loop {most:.1f}/s, held {rate:.1f}/s", file=sys.stderr)
        watching = asyncio.create_task(self._watch())
        loads: list[LoadResult] = []
        times: list[tuple[float, float]] = []
        for number, disturbed in enumerate((False, True, False)):
            self._loading = disturbed
            loading = asyncio.create_task(self._load_again_and_again())
            began = time.monotonic()
            loads.append(await open_loop(client, payloads, rate, seconds, number, check))
            times.append((began, time.monotonic()))
            self._loading = False
            await loading
        watching.cancel()
        await client.close()
        return self._summary(most, loads, times)

    async def _load_again_and_again(self) -> None:
        while self._loading:
            self.deltas.add()
            began = time.monotonic()
            await asyncio.to_thread(self._load)
            self.load_seconds.append(time.monotonic() - began)

    def _load(self) -> None:
        url = f"http://127.0.0.1:{self.server.ports['http']}/v2/repository/models/model/load"
        try:
            urllib.request.urlopen(urllib.request.Request(url, b"", method="POST"), timeout=120).close()
        except urllib.error.HTTPError as error:
            self.problems.append(json.load(error)["error"][:200])
            self._loading = False

    async def _watch(self) -> None:
        while True:
            self.memory.append((time.monotonic(), await asyncio.to_thread(self.server.proportional_bytes)))
            await asyncio.sleep(self.settings.memory_every)

    def _summary(
        self, most: float, loads: list[LoadResult], times: list[tuple[float, float]]
    ) -> dict[str, Any]:
        taken = [[size for at, size in self.memory if begin <= at <= end] for begin, end in times]
        before, while_loading, after = loads
        steady = LoadResult(before.offered_rate, latencies=before.latencies + after.latencies)
        memory, tail = max(taken[1]) / median(taken[0]), while_loading.percentile(99) / steady.percentile(99)
        return {
            "closed_loop_rate": most,
            "loads": {
                name: each.to_dict()
                for name, each in zip(("before", "while loading", "after"), loads, strict=True)
            },
            "deltas_loaded": len(self.load_seconds) - len(self.problems),
            "delta_bytes": self.deltas.bytes,
            "load_seconds": self.load_seconds,
            "problems": self.problems,
            "wrong": sum(each.wrong for each in loads),
            "failures": sum(sum(each.failures.values()) for each in loads),
            "memory_bytes": {
                "steady": median(taken[0]),
                "peak": max(taken[1]),
                "after": median(taken[2]),
                "read": len(taken[1]),
            },
            "peak_over_steady": memory,
            "p99_over_steady": tail,
            "goals": {
                "peak memory over steady": {
                    "figure": memory,
                    "asked": MEMORY_GOAL,
                    "met": memory <= MEMORY_GOAL,
                },
                "p99 over steady": {"figure": tail, "asked": TAIL_GOAL, "met": tail <= TAIL_GOAL},
            },
        }


def _goal(figure: float, most: float) -> dict[str, Any]:
    return {"figure": figure, "at_most": most, "met": figure <= most}


def main() -> None:
    """Runs it, and says whether answers were right and goals met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="rm1")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--changed", type=float, default=0.01, help="share of the rows")
    parser.add_argument("--samples", type=int, default=270)
    parser.add_argument("--cards", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each of the three parts")
    parser.add_argument("--share", type=float, default=0.5, help="of the closed loop's rate")
    parser.add_argument("--memory-every", type=float, default=0.05)
    parser.add_argument("--out", type=Path)
    settings = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="megalith-delta-") as folder:
        shape = served_shape(settings.shape, settings.rows)
        deltas = Deltas(shape, Path(folder), settings.changed, settings.samples)
        words = ["-m", "megalith", "serve", str(deltas.model.parent), "--cards", str(settings.cards)]
        with started_server([*words, "--http", "0", "--json"], "megalith serve") as server:
            found = asyncio.run(Run(settings, server, deltas).measure())
    held = not (found["wrong"] or found["failures"] or found["problems"])
    described = {key: value for key, value in vars(settings).items() if key != "out"}
    content = result("serve-delta", described, {**found, "held": held}, None)
    if settings.out is not None:
        save_result(settings.out, content)
    print(json.dumps(content["results"], indent=1))
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
