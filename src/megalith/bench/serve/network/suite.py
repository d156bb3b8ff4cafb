"""The suite behind `megalith bench serve`: the same requests to our engine, our server and others, in turns.

Every candidate is asked by one client with so many requests at a time, for some seconds, again and again in
turn. The client runs on the same cores, so its CPU time is measured, and each rate is given twice: as it was,
and as it would be with the client's share of the cores given to the server. Answers of the first turn are
compared with the scores of torch. All peers run the graph that is quickest on onnxruntime here, found first.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from megalith.bench.memory import check_memory
from megalith.bench.runner import result
from megalith.bench.serve.network.answers import (
    Scores,
    answer_check,
    grpc_scores,
    http_scores,
    reference_scores,
)
from megalith.bench.serve.network.goals import P99_SECONDS, goals, is_plain, ratios, without_client
from megalith.bench.serve.network.in_process import EngineCaller
from megalith.bench.serve.network.loadgen import server_scenario
from megalith.bench.serve.network.models import Arrays, tiled_request, user_request, user_tables, write_shape
from megalith.bench.serve.network.onnx_model import BINARY, JSON, graph_seconds, peer_payload, peer_scores
from megalith.bench.serve.network.servers import RunningPeer, started_server
from megalith.bench.serve.shapes import ShapeName, draw_request, served_shape
from megalith.bench.serve.weights import ServedWeights
from megalith.core.errors import MegalithError
from megalith.serve.engine import Engine
from megalith.serve.loadtest.clients import open_client
from megalith.serve.loadtest.loads import Check, LoadResult, closed_loop
from megalith.serve.loadtest.payloads import grpc_payload, http_payload
from megalith.serve.settings import EngineSettings

PEERS = ("fastapi", "litserve", "fastapi-json", "litserve-json")
_REQUESTS = 16
_QUERY_SIZES = (100, 150, 200, 250, 270, 300, 350, 400, 700)
_USER_SHARE = 0.9
Say = Callable[[str], None]
Turn = Callable[[Check | None], LoadResult]


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """What is measured, and for how long."""

    shapes: tuple[ShapeName, ...]
    peers: tuple[str, ...] = PEERS
    samples: int = 270
    rows: int | None = None
    repeats: int = 3
    seconds: float = 5.0
    """Of a turn."""
    cards: int = 2
    concurrency: int = 8
    loadgen: bool = True
    user_once: bool = True


def bench_network(settings: NetworkSettings, say: Say = lambda _: None) -> dict[str, Any]:
    """Every shape, behind every server."""
    measured = [_Shape(name, settings, say).measure() for name in settings.shapes]
    described = {**asdict(settings), "cores": os.cpu_count()}
    return result("serve-network", described, {"measured": measured}, None)


class _Shape:
    """One model behind all servers."""

    def __init__(self, name: ShapeName, settings: NetworkSettings, say: Say) -> None:
        self.settings, self.say = settings, say
        self.shape = served_shape(name, settings.rows)
        table_bytes = self.shape.num_rows * (self.shape.dim + 12)
        # The folder's pages, cards of two servers, and a table of floats in each worker of a peer.
        peers = self.shape.num_rows * 4 * self.shape.dim * settings.cards * len(settings.peers)
        check_memory(f"The model {name} behind its servers", 4 * table_bytes + peers)
        self.ways: dict[str, float] = {}

    def measure(self) -> dict[str, Any]:
        """All of it."""
        settings, shape = self.settings, self.shape
        requests = [tiled_request(shape, settings.samples, seed) for seed in range(_REQUESTS)]
        with ExitStack() as held:
            folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="megalith-serve-")))
            self.say(f"{shape.name}: writing the model, {shape.num_rows:,} rows")
            weights = ServedWeights(shape)
            model = write_shape(folder / "whole", weights, "int8")
            user_side = user_tables(shape, _USER_SHARE)
            shared = (
                write_shape(folder / "user", weights, "int8", user_side, "user")
                if settings.user_once
                else None
            )
            if settings.peers:
                self.ways = graph_seconds(
                    weights, [draw_request(shape, settings.samples, seed) for seed in range(2)]
                )
            right = [reference_scores(weights, request) for request in requests]
            del weights
            found: dict[str, Any] = {"shape": shape.name, "request_bytes": _size(requests[0])}
            found["onnxruntime_seconds"] = self.ways
            found["rates"] = self._rates(held, model, requests, right)
            found["ratios"] = ratios(found["rates"])
            if settings.loadgen:
                found["loadgen"] = self._loadgen(model, found["rates"]["http"]["rate"])
            if shared is not None and user_side:
                found["user_once"] = self._user_once(shared, user_side)
        found["goals"] = goals(found)
        return found

    def _serve(self, folder: Path) -> Sequence[str]:
        return [
            *("-m", "megalith", "serve", str(folder), "--cards", str(self.settings.cards)),
            *("--http", "0", "--grpc", "0", "--json"),
        ]

    def _rates(
        self, held: ExitStack, model: Path, requests: Sequence[Arrays], right: Sequence[Scores]
    ) -> dict[str, Any]:
        settings, name = self.settings, self.shape.name
        turns: dict[str, Turn] = {}
        servers: dict[str, RunningPeer] = {}
        engine = held.enter_context(Engine(EngineSettings(cards=settings.cards)))
        engine.load(model)
        caller = EngineCaller(engine, name, requests)
        turns["in-process"] = lambda check: caller.closed_loop(settings.concurrency, settings.seconds)
        self.say(f"{name}: starting our server")
        ours = held.enter_context(started_server(self._serve(model), "ours"))
        path = f"/v2/models/{name}/infer"
        servers["http"] = servers["grpc"] = ours
        checks = {"http": answer_check(right, http_scores), "grpc": answer_check(right, grpc_scores)}
        turns["http"] = self._turn("http", ours, [http_payload(path, each) for each in requests])
        turns["grpc"] = self._turn("grpc", ours, [grpc_payload(name, each) for each in requests])
        for peer in settings.peers:
            form = JSON if is_plain(peer) else BINARY
            way = min(self.ways, key=self.ways.__getitem__)
            self.say(f"{name}: starting {peer}, tables as {way}")
            module = f"megalith.bench.serve.network.{peer.removesuffix('-json')}_peer"
            command = ["-m", module, name, str(settings.rows or 0), way, form, str(settings.cards)]
            servers[peer] = held.enter_context(started_server(command, peer))
            checks[peer] = answer_check(right, partial(peer_scores, form=form))
            turns[peer] = self._turn("http", servers[peer], [peer_payload(each, form) for each in requests])
        return self._take_turns(turns, servers, checks)

    def _turn(self, scheme: str, server: RunningPeer, payloads: Sequence[bytes]) -> Turn:
        settings = self.settings

        async def run(check: Check | None) -> LoadResult:
            client = open_client(scheme, "127.0.0.1", server.ports[scheme], 256)
            try:
                return await closed_loop(client, payloads, settings.concurrency, settings.seconds, check)
            finally:
                await client.close()

        return lambda check: asyncio.run(run(check))

    def _take_turns(
        self, turns: dict[str, Turn], servers: dict[str, RunningPeer], checks: dict[str, Check]
    ) -> dict[str, Any]:
        taken: dict[str, list[dict[str, float]]] = {name: [] for name in turns}
        for number in range(1 + self.settings.repeats):
            for name, turn in turns.items():
                before = servers[name].cpu_seconds() if name in servers else 0.0
                loaded = turn(None if number else checks.get(name))
                after = servers[name].cpu_seconds() if name in servers else 0.0
                if loaded.failures:
                    self.say(f"{self.shape.name}: {name} failed {dict(loaded.failures)}")
                if loaded.wrong:
                    raise MegalithError(f"{name} gave {loaded.wrong} answers with other scores than torch.")
                if number:
                    client = loaded.client_cpu_seconds / loaded.seconds if name in servers else 0.0
                    taken[name].append(
                        {
                            "rate": loaded.rate,
                            "client_cores": client,
                            "rate_without_client": without_client(loaded.rate, client),
                            "server_cores": (after - before) / loaded.seconds,
                            "p50_seconds": loaded.percentile(50),
                            "p99_seconds": loaded.percentile(99),
                            "failures": float(sum(loaded.failures.values())),
                        }
                    )
        return {
            name: {key: median(each[key] for each in rounds) for key in rounds[0]} | {"rounds": rounds}
            for name, rounds in taken.items()
        }

    def _loadgen(self, model: Path, rate: float) -> dict[str, Any]:
        """The highest share of the closed loop's rate that LoadGen calls valid; queries of 100 to 700."""
        bound = P99_SECONDS[self.shape.name]
        path = f"/v2/models/{self.shape.name}/infer"
        draw = np.random.default_rng(0)
        sizes = draw.choice(_QUERY_SIZES, 2 * _REQUESTS)
        requests = [tiled_request(self.shape, int(size), seed) for seed, size in enumerate(sizes)]
        payloads = [http_payload(path, each) for each in requests]
        scale = self.settings.samples / float(np.mean(sizes))
        runs: list[dict[str, Any]] = []
        with started_server(self._serve(model), "ours") as server:
            for share in (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2):
                # LoadGen judges p99 by no fewer than some hundred queries.
                seconds = max(10.0, 2 * self.settings.seconds, 1000 / (share * rate * scale))
                run = server_scenario(
                    "127.0.0.1", server.ports["http"], payloads, share * rate * scale, bound, seconds
                )
                self.say(f"{self.shape.name}: LoadGen at {run['rate']:.1f}/s: p99 {run['p99_seconds']} s")
                runs.append(run)
                if run["valid"] and not run["failures"]:
                    break
        valid = [run for run in runs if run["valid"] and not run["failures"]]
        return {"p99_bound_seconds": bound, "valid": valid[0] if valid else None, "runs": runs}

    def _user_once(self, folder: Path, user_side: int) -> dict[str, Any]:
        """Bytes and rates of the same requests, with the user's ids in every sample and once."""
        pairs = [
            user_request(self.shape, self.settings.samples, user_side, seed) for seed in range(_REQUESTS)
        ]
        with started_server(self._serve(folder), "ours") as server:
            kinds = {"tiled": [pair[0] for pair in pairs], "once": [pair[1] for pair in pairs]}
            payloads = {
                kind: [http_payload("/v2/models/user/infer", each) for each in requests]
                for kind, requests in kinds.items()
            }
            turns = {kind: self._turn("http", server, each) for kind, each in payloads.items()}
            rates = self._take_turns(turns, dict.fromkeys(turns, server), {})
        sizes = {kind: float(np.mean([len(each) for each in made])) for kind, made in payloads.items()}
        return {
            "user_tables": user_side,
            "bytes": sizes,
            "rates": rates,
            "bytes_ratio": sizes["tiled"] / sizes["once"],
            "rate_ratio": rates["once"]["rate_without_client"] / rates["tiled"]["rate_without_client"],
        }


def _size(arrays: Arrays) -> int:
    return sum(array.nbytes for array in arrays.values())
