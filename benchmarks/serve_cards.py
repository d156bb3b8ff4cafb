"""Six card processes behind one server: are all answers right, with the model whole on each and cut over
all?

    python benchmarks/serve_cards.py --out benchmarks/results/serve-cards.json

Each shape is served twice: a replica on every card, then with so little memory on a card that its tables
are cut over as many as six. Requests of mixed sizes come over HTTP and gRPC at once, and each answer is
compared, bit for bit, with the one that the same backend gave in this process. Cards share the machine's
cores, so the rates say nothing of cards that have their own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from megalith.bench.runner import result, save_result
from megalith.bench.serve.network.answers import Scores, frozen_scores, grpc_scores, http_scores
from megalith.bench.serve.network.models import Arrays, tiled_request, write_shape
from megalith.bench.serve.network.servers import started_server
from megalith.bench.serve.shapes import SHAPES, ServedShape, served_shape
from megalith.bench.serve.weights import ServedWeights
from megalith.export.folder import FrozenModel
from megalith.serve.loadtest.clients import open_client
from megalith.serve.loadtest.loads import LoadResult, closed_loop
from megalith.serve.loadtest.payloads import grpc_payload, http_payload

SAMPLES = (1, 3, 40, 270, 700)
REQUESTS = 20


def main() -> None:
    """Runs it, and says whether every answer was right."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, nargs="+", default=["rm1", "rm2", "rm3"])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--cards", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each protocol")
    parser.add_argument("--out", type=Path)
    settings = parser.parse_args()
    measured = [
        each
        for name in settings.shape
        for each in serve_shape(served_shape(name, settings.rows), settings.cards, settings.seconds)
    ]
    held = all(each["answers"] and not (each["wrong"] or each["failures"]) for each in measured)
    described = {key: value for key, value in vars(settings).items() if key != "out"}
    content = result("serve-cards", described, {"measured": measured, "held": held}, None)
    if settings.out is not None:
        save_result(settings.out, content)
    print(json.dumps(content["results"], indent=1))
    sys.exit(0 if held else 1)


def serve_shape(shape: ServedShape, cards: int, seconds: float) -> list[dict[str, Any]]:
    """A shape with replicas, then cut over all cards."""
    requests = [tiled_request(shape, SAMPLES[seed % len(SAMPLES)], seed) for seed in range(REQUESTS)]
    with tempfile.TemporaryDirectory(prefix="megalith-cards-") as folder:
        model = write_shape(Path(folder) / "model", ServedWeights(shape), "int8")
        frozen = FrozenModel(model)
        right = frozen_scores(model, requests)
        sizes = [table.bytes for table in frozen.manifest.tables]
        # Room for the tables that each of six cards must have; fewer cards may do where these are few.
        memory = -(-len(sizes) // cards) * max(sizes) + frozen.manifest.files["dense.safetensors"].bytes
        found = []
        for mode, options in (
            ("replicas", []),
            ("partitions", ["--card-memory-mb", str(1 + (memory >> 20))]),
        ):
            print(f"{shape.name}, {mode}", file=sys.stderr)
            words = ["-m", "megalith", "serve", str(model), "--cards", str(cards), *options]
            with started_server([*words, "--http", "0", "--grpc", "0", "--json"], "megalith serve") as server:
                url = f"http://127.0.0.1:{server.ports['http']}/v2/status"
                loaded = asyncio.run(ask(server.ports, shape.name, requests, right, seconds))
                with urllib.request.urlopen(url, timeout=60) as answer:
                    status = json.load(answer)["engine"]
            found.append({"shape": shape.name, "mode": mode, **described(status), **summary(loaded)})
        return found


async def ask(
    ports: dict[str, int], name: str, requests: list[Arrays], right: list[Scores], seconds: float
) -> dict[str, LoadResult]:
    """Both protocols at once, 12 requests of each at a time."""
    path = f"/v2/models/{name}/infer"
    payloads = {
        "http": [http_payload(path, each) for each in requests],
        "grpc": [grpc_payload(name, each) for each in requests],
    }
    read = {"http": http_scores, "grpc": grpc_scores}
    clients = {scheme: open_client(scheme, "127.0.0.1", ports[scheme], 64) for scheme in payloads}

    async def load(scheme: str) -> LoadResult:
        def check(place: int, body: bytes) -> bool:
            return read[scheme](body).tobytes() == right[place].tobytes()

        return await closed_loop(clients[scheme], payloads[scheme], 12, seconds, check)

    loads = await asyncio.gather(*(load(scheme) for scheme in payloads))
    for client in clients.values():
        await client.close()
    return dict(zip(payloads, loads, strict=True))


def described(status: dict[str, Any]) -> dict[str, Any]:
    """Where the model lies, and what each card did."""
    [model] = status["models"]
    return {
        "placed": model["mode"],
        "partitions": len(model["partitions"]),
        "tasks_by_card": [card["done_tasks"] for card in status["cards"]],
        "lost_cards": status["lost_cards"],
    }


def summary(loaded: dict[str, LoadResult]) -> dict[str, Any]:
    """Answers of both protocols."""
    return {
        "answers": sum(len(each.latencies) for each in loaded.values()),
        "wrong": sum(each.wrong for each in loaded.values()),
        "failures": sum(sum(each.failures.values()) for each in loaded.values()),
        "rates": {scheme: each.rate for scheme, each in loaded.items()},
        "p99_seconds": {scheme: each.percentile(99) for scheme, each in loaded.items()},
    }


if __name__ == "__main__":
    main()
