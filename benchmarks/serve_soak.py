"""Ten minutes of a server under faults and updates: is every answer right, and is none lost?

    python benchmarks/serve_soak.py --shape rm1 --seconds 600 --out benchmarks/results/serve-soak.json

Load is at 80% of the highest rate that a closed loop reaches. A card is killed every 30 s, and every 60 s a
new version (other weights) is put into the repository and loaded. Each answer is compared, bit for bit, with
the one that was computed for its version beforehand, by the same backend in this process. Memory of all
processes of the server is read every second; the last quarter is compared with the second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

from megalith.bench.runner import result, save_result
from megalith.bench.serve.network.answers import frozen_scores
from megalith.bench.serve.network.models import tiled_request, write_shape
from megalith.bench.serve.network.servers import RunningPeer, started_server
from megalith.bench.serve.shapes import SHAPES, served_shape
from megalith.bench.serve.weights import ServedWeights
from megalith.serve.loadtest.clients import HttpLoadClient
from megalith.serve.loadtest.loads import LoadResult, closed_loop, open_loop
from megalith.serve.loadtest.payloads import http_payload

REQUESTS, KEPT_VERSIONS = 16, 2


class Versions:
    """Versions of the model in turn, and the right answers of each."""

    def __init__(self, shape: Any, folder: Path, samples: int) -> None:
        self.repository = folder / "models"
        self._held = [folder / f"weights-{seed}" for seed in range(KEPT_VERSIONS)]
        self.requests = [tiled_request(shape, samples, seed) for seed in range(REQUESTS)]
        self._right = []
        for seed, path in enumerate(self._held):
            write_shape(path, ServedWeights(shape, seed), "int8")
            self._right.append([scores.tobytes() for scores in frozen_scores(path, self.requests)])
        self.newest = 0

    def add(self) -> int:
        """Puts the next version into the repository, and takes away the one before the last."""
        self.newest += 1
        target = self.repository / "model" / str(self.newest)
        shutil.copytree(self._held[self.newest % KEPT_VERSIONS], target, copy_function=os.link)
        shutil.rmtree(self.repository / "model" / str(self.newest - 2), ignore_errors=True)
        return self.newest

    def is_right(self, version: str, place: int, scores: bytes) -> bool:
        """Whether these are the scores of a version for a request."""
        return version.isdigit() and self._right[int(version) % KEPT_VERSIONS][place] == scores


class Soak:
    """One run."""

    def __init__(self, settings: argparse.Namespace, server: RunningPeer, versions: Versions) -> None:
        self.settings, self.server, self.versions = settings, server, versions
        self.url = f"http://127.0.0.1:{server.ports['http']}"
        self.answers: Counter[str] = Counter()
        self.killed, self.updates, self.update_seconds = 0, 0, []
        self.resident: list[int] = []
        self.problems: Counter[str] = Counter()

    def check(self, place: int, body: bytes) -> bool:
        """Whether the body of an answer is that of its version."""
        end = body.find(b"}]}") + 3
        head = json.loads(body[:end])
        self.answers[head["model_version"]] += 1
        return self.versions.is_right(head["model_version"], place, body[end:])

    async def run(self) -> dict[str, Any]:
        """Finds the rate, then holds it."""
        payloads = [http_payload("/v2/models/model/infer", each) for each in self.versions.requests]
        client = HttpLoadClient("127.0.0.1", self.server.ports["http"], 512)
        await closed_loop(client, payloads, 4, 2.0, self.check)
        most = (await closed_loop(client, payloads, 16, 10.0, self.check)).rate
        rate = self.settings.share * most
        print(f"closed loop {most:.1f}/s, held {rate:.1f}/s for {self.settings.seconds:g} s", file=sys.stderr)
        steady = await open_loop(client, payloads, rate, min(30.0, self.settings.seconds), 1, self.check)
        disturbing = [
            asyncio.create_task(self._every(self.settings.kill_every, self._kill)),
            asyncio.create_task(self._every(self.settings.update_every, self._update)),
            asyncio.create_task(self._every(1.0, self._measure)),
        ]
        loaded = await open_loop(client, payloads, rate, self.settings.seconds, 2, self.check)
        for task in disturbing:
            task.cancel()
        await client.close()
        return self._summary(most, steady, loaded)

    async def _every(self, seconds: float, act: Any) -> None:
        while True:
            await asyncio.sleep(seconds)
            await asyncio.to_thread(act)

    def _status(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}/v2/status", timeout=60) as response:
            found: dict[str, Any] = json.load(response)
        return found

    def _kill(self) -> None:
        cards = [
            card for card in self._status()["engine"]["cards"] if card["process"] != self.server.process.pid
        ]
        if not cards:
            self.problems["no card process to kill"] += 1
            return
        os.kill(cards[self.killed % len(cards)]["process"], signal.SIGKILL)
        self.killed += 1

    def _update(self) -> None:
        self.versions.add()
        began = time.monotonic()
        request = urllib.request.Request(f"{self.url}/v2/repository/models/model/load", b"", method="POST")
        try:
            urllib.request.urlopen(request, timeout=300).close()
            self.updates += 1
            self.update_seconds.append(time.monotonic() - began)
        except urllib.error.HTTPError as error:
            self.problems[json.load(error)["error"][:200]] += 1

    def _measure(self) -> None:
        self.resident.append(self.server.resident_bytes())

    def _summary(self, most: float, steady: LoadResult, loaded: LoadResult) -> dict[str, Any]:
        quarter = max(1, len(self.resident) // 4)
        early, late = self.resident[quarter : 2 * quarter] or [0], self.resident[-quarter:] or [0]
        return {
            "closed_loop_rate": most,
            "steady": steady.to_dict(),
            "disturbed": loaded.to_dict(),
            "answers_by_version": dict(self.answers),
            "killed_cards": self.killed,
            "updates": self.updates,
            "update_seconds": self.update_seconds,
            "problems": dict(self.problems),
            "wrong_answers": steady.wrong + loaded.wrong,
            "lost_requests": sum(count for status, count in loaded.failures.items() if status != "503"),
            "refused_requests": loaded.failures.get("503", 0),
            "resident_bytes": {"second_quarter": median(early), "last_quarter": median(late)},
            "resident_growth": median(late) / max(1, median(early)),
            "p99_ratio": loaded.percentile(99) / steady.percentile(99),
        }


def main() -> None:
    """Runs it, and says whether it held."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="rm1")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--samples", type=int, default=270)
    parser.add_argument("--cards", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--share", type=float, default=0.8, help="of the closed loop's rate")
    parser.add_argument("--kill-every", type=float, default=30.0)
    parser.add_argument("--update-every", type=float, default=60.0)
    parser.add_argument("--out", type=Path)
    settings = parser.parse_args()
    shape = served_shape(settings.shape, settings.rows)
    with tempfile.TemporaryDirectory(prefix="megalith-soak-") as folder:
        versions = Versions(shape, Path(folder), settings.samples)
        versions.add()
        words = ["-m", "megalith", "serve", str(versions.repository), "--cards", str(settings.cards)]
        with started_server([*words, "--http", "0", "--json"], "megalith serve") as server:
            found = asyncio.run(Soak(settings, server, versions).run())
    held = not (found["wrong_answers"] or found["lost_requests"] or found["problems"])
    described = {key: value for key, value in vars(settings).items() if key != "out"}
    content = result("serve-soak", described, {**found, "held": held}, None)
    if settings.out is not None:
        save_result(settings.out, content)
    print(json.dumps(content["results"], indent=1))
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
