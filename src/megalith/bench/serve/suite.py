"""`megalith bench serve --in-process`: requests scored a second by whole models, ours and others'.

All candidates have the same weights and take turns on the same requests in one process. First the dense parts
run alone, so that FBGEMM's lookups can be joined with those that are quickest here; then whole models.
"""

from __future__ import annotations

import gc
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from megalith.bench.memory import check_memory
from megalith.bench.peers.lookup import OURS
from megalith.bench.runner import Timing, interleave, result
from megalith.bench.serve.dense_peers import (
    DENSE_PEERS,
    FLOAT_PEERS,
    INT8_PEERS,
    DenseRun,
    make_dense,
)
from megalith.bench.serve.shapes import Request, ServedShape, ShapeName, draw_request, served_shape
from megalith.bench.serve.weights import ServedWeights

PEERS = ("fbgemm", "onnxruntime", "openvino", "torchao", "torch")
ASKED = {
    "rm1": {"fbgemm": 1.5, "onnxruntime": 4.0},
    "rm2": {"fbgemm": 1.5, "onnxruntime": 4.0},
    "rm3": {"int8": 1.0, "onnxruntime-float32": 1.7},
    "dlrm-v2-half": {"int8": 1.0, "onnxruntime-float32": 1.7},
    "dlrm-v2": {"int8": 1.0, "onnxruntime-float32": 1.7},
}
"""How many times as quick as these ours is to be."""
_SAMPLES_A_TURN, _MAX_REQUESTS = 2048, 64
_JOINED_DENSE_PARTS = 2
_PRECISIONS = ("int8", "float32")

Say = Callable[[str], None]
Scores = Callable[[Request], Tensor]


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """What is measured, and for how long."""

    shapes: tuple[ShapeName, ...]
    batches: tuple[int, ...]
    peers: tuple[str, ...]
    rows: int | None = None
    """Most rows of a table; None is as the shapes have them."""
    repeats: int = 7
    threads: int = 2


def bench_serve(settings: ServeSettings, say: Say = lambda _: None) -> dict[str, Any]:
    """Measures every shape at every batch size."""
    torch.set_num_threads(settings.threads)
    shapes = [served_shape(name, settings.rows) for name in settings.shapes]
    # A shape that is too large should not cost the results of those before it.
    for shape in shapes:
        check_memory(f"The model {shape.name}", bytes_needed(shape, settings.peers))
    measured = []
    for shape in shapes:
        say(f"{shape.name}: {len(shape.tables.rows)} tables, {shape.num_rows:,} rows of {shape.dim} columns")
        candidates = _Candidates(shape, settings, say)
        for batch in settings.batches:
            say(f"{shape.name}: requests of {batch}")
            measured.append(
                {"shape": _described(shape, candidates), "batch": batch, **candidates.measure(batch)}
            )
        del candidates
        gc.collect()
    described = {
        "shapes": list(settings.shapes),
        "batches": list(settings.batches),
        "peers": list(settings.peers),
        "rows": settings.rows,
        "repeats": settings.repeats,
        "threads": settings.threads,
        "ids": "uniform",
    }
    return result("serve", described, {"measured": measured, "asked": ASKED}, None)


def bytes_needed(shape: ServedShape, peers: Sequence[str]) -> int:
    """About what all candidates of a shape take together."""
    int8 = shape.num_rows * (shape.dim + 4)
    total = int8
    if "fbgemm" in peers:
        total += int8
    if "onnxruntime" in peers:
        total += shape.num_rows * (shape.dim + 8) + 4 * shape.num_rows * shape.dim
    return total + (1 << 30)


class _Candidates:
    """Everything that runs one model, built once for all batch sizes."""

    def __init__(self, shape: ServedShape, settings: ServeSettings, say: Say) -> None:
        self.shape, self.settings = shape, settings
        self.weights = ServedWeights(shape)
        self.skipped: dict[str, str] = {}
        self.dense: dict[str, DenseRun] = {}
        self.whole: dict[str, Scores] = {}
        with _quiet():
            self._make_ours()
            self._make_dense(say)
            self._make_whole(say)

    def _make_ours(self) -> None:
        from megalith.bench.serve.ours import Ours

        for precision in _PRECISIONS:
            ours = Ours(self.weights, precision, self.settings.threads)  # type: ignore[arg-type]
            self.dense[f"{OURS}-{precision}"] = ours.dense
            self.whole[f"{OURS}-{precision}"] = ours

    def _make_dense(self, say: Say) -> None:
        for name in DENSE_PEERS:
            if name.split("-")[0] not in self.settings.peers:
                continue
            say(f"{self.shape.name}: making {name}")
            try:
                self.dense[name] = make_dense(name, self.weights, self.settings.threads)
            except Exception as error:
                # A peer that does not work here is no reason to measure nothing.
                self.skipped[name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]

    def _make_whole(self, say: Say) -> None:
        from megalith.bench.serve.whole_peers import FbgemmLookups, OnnxTables, OnnxWhole

        self.lookups = None
        if "fbgemm" in self.settings.peers:
            say(f"{self.shape.name}: making fbgemm's tables")
            self.lookups = FbgemmLookups(self.weights, self.settings.threads)
        if "onnxruntime" in self.settings.peers:
            say(f"{self.shape.name}: making onnxruntime's tables")
            tables = OnnxTables(self.weights)
            for way in ("float32", "dequantised", "product"):
                made = OnnxWhole(self.weights, tables, way, self.settings.threads)
                self.whole[f"onnxruntime, {way}"] = made

    def measure(self, batch: int) -> dict[str, Any]:
        """All dense parts, then all whole models, on requests of one size."""
        from megalith.bench.serve.weights import pooled
        from megalith.bench.serve.whole_peers import LookupsThenDense

        count = max(2, min(_MAX_REQUESTS, _SAMPLES_A_TURN // batch))
        requests = [draw_request(self.shape, batch, seed) for seed in range(count)]
        inputs = [(request.dense, pooled(self.weights, request)) for request in requests]
        reference = torch.sigmoid(self.weights.model(*inputs[0])).unsqueeze(1)
        dense = self._working({name: _paired(run) for name, run in self.dense.items()}, inputs[0])
        dense_results = self._timed(dense, inputs, reference)
        peers = {name: each for name, each in dense_results.items() if not name.startswith(OURS)}
        whole = dict(self.whole)
        if self.lookups is not None:
            for name in quickest_by_kind(peers):
                whole[f"fbgemm, {name}"] = LookupsThenDense(self.lookups, self.dense[name])
        whole_results = self._timed(self._working(whole, requests[0]), requests, reference)
        return {
            "requests_a_turn": count,
            "dense": dense_results,
            "whole": whole_results,
            "ratios": ratios(whole_results),
            "skipped": dict(self.skipped),
        }

    def _working(self, candidates: Mapping[str, Callable[[Any], Tensor]], item: Any) -> dict[str, Any]:
        """Those that run; why others do not is kept."""
        working = {}
        with _quiet():
            for name, run in candidates.items():
                try:
                    run(item)
                    working[name] = run
                except Exception as error:
                    if name.startswith(OURS):
                        raise
                    self.skipped[name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        return working

    def _timed(
        self, candidates: Mapping[str, Callable[[Any], Tensor]], items: Sequence[Any], reference: Tensor
    ) -> dict[str, Any]:
        def turn(run: Callable[[Any], Tensor]) -> Callable[[], None]:
            def go() -> None:
                for item in items:
                    run(item)

            return go

        differences = {
            name: float((run(items[0]) - reference).abs().max()) for name, run in candidates.items()
        }
        timings = interleave({name: turn(run) for name, run in candidates.items()}, self.settings.repeats)
        return {
            name: _result(timing, len(items), len(reference), differences[name])
            for name, timing in timings.items()
        }


def _paired(run: DenseRun) -> Callable[[tuple[Tensor, Tensor]], Tensor]:
    return lambda pair: run(*pair)


def ratios(whole: Mapping[str, Any]) -> dict[str, float]:
    """What the quickest of each kind of peer takes over what the quickest of ours takes."""
    seconds = {name: each["request_seconds"] for name, each in whole.items()}
    ours = min(taken for name, taken in seconds.items() if name.startswith(OURS))
    joined = [name for name in seconds if name.startswith("fbgemm, ")]
    kinds = {
        "fbgemm": joined,
        "int8": [name for name in joined if name.removeprefix("fbgemm, ") in INT8_PEERS],
        "onnxruntime": [name for name in seconds if name.startswith("onnxruntime, ")],
        "onnxruntime-float32": [name for name in seconds if name == "onnxruntime, float32"],
    }
    return {kind: min(map(seconds.__getitem__, names)) / ours for kind, names in kinds.items() if names}


def quickest_by_kind(results: Mapping[str, Any]) -> list[str]:
    """The two quickest dense parts of float32, and of int8: which of two is quicker may be chance."""
    kinds = [[name for name in results if name in kind] for kind in (FLOAT_PEERS, INT8_PEERS)]
    ordered = [sorted(names, key=lambda name: results[name]["request_seconds"]) for names in kinds]
    return [name for names in ordered for name in names[:_JOINED_DENSE_PARTS]]


def _result(timing: Timing, requests: int, batch: int, difference: float) -> dict[str, Any]:
    return {
        "request_seconds": timing.median / requests,
        "request_cpu_seconds": median(timing.cpu_seconds) / requests,
        "samples_per_second": timing.rate(requests * batch),
        "differs_by": difference,
        **timing.to_dict(),
    }


def _described(shape: ServedShape, candidates: _Candidates) -> dict[str, Any]:
    return {
        "name": shape.name,
        "tables": len(shape.tables.rows),
        "rows": shape.num_rows,
        "dim": shape.dim,
        "ids_a_sample": shape.ids_a_sample,
        "numbers": shape.tables.numbers,
        "dense_flops_a_sample": candidates.weights.layers.flops,
    }


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps what peers warn of while they are made off the screen."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
