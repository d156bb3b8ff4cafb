"""What is asked of a served model, beside what was measured."""

from __future__ import annotations

import os
from typing import Any

OURS = ("in-process", "http", "grpc")
P99_SECONDS: dict[str, float] = {"rm1": 0.06, "rm2": 0.25, "rm3": 0.06, "dlrm-v2": 0.25, "dlrm-v2-half": 0.06}
"""What LoadGen's Server scenario must keep, by model."""

_IN_PROCESS, _IN_PROCESS_AS_IT_IS = 0.9, 0.8
_BEST_PEER, _PLAIN_PEER = 1.5, 2.0
_FEWER_BYTES, _ONCE_RATE = 5.0, 3.0


def without_client(rate: float, client_cores: float) -> float:
    """The rate with the client's share of the cores given to the server."""
    cores = float(os.cpu_count() or 1)
    return rate * cores / max(cores - client_cores, 0.1 * cores)


def is_plain(peer: str) -> bool:
    """Whether a peer is as it comes, with JSON bodies."""
    return "json" in peer


def ratios(rates: dict[str, Any]) -> dict[str, float]:
    """Ours over the in-process rate, and over the best and the best plain peer."""
    inside = rates["in-process"]["rate"]
    found: dict[str, float] = {}
    for ours in ("http", "grpc"):
        found[f"{ours} / in-process"] = rates[ours]["rate"] / inside
        found[f"{ours} / in-process, without client"] = rates[ours]["rate_without_client"] / inside
    best = max(rates["http"]["rate_without_client"], rates["grpc"]["rate_without_client"])
    for kind, plain in (("best peer", False), ("plain peer", True)):
        others = [
            each["rate_without_client"]
            for name, each in rates.items()
            if name not in OURS and is_plain(name) == plain
        ]
        if others:
            found[f"ours / {kind}"] = best / max(others)
    return found


def goals(measured: dict[str, Any]) -> list[dict[str, Any]]:
    """Each goal of a model with the figure beside it; those of what was not measured are left out."""
    found = measured["ratios"]
    listed = []
    for ours, name in (("http", "HTTP"), ("grpc", "gRPC")):
        key = f"{ours} / in-process"
        listed += [
            _goal(f"{name} over the in-process rate", found[key], _IN_PROCESS_AS_IT_IS),
            _goal(
                f"{name} over the in-process rate, without the client's CPU time",
                found[f"{key}, without client"],
                _IN_PROCESS,
            ),
        ]
    for key, what, asked in (
        ("ours / best peer", "times the rate of the best tuned server", _BEST_PEER),
        ("ours / plain peer", "times the rate of the best plain server", _PLAIN_PEER),
    ):
        if key in found:
            listed.append(_goal(what, found[key], asked))
    loadgen = measured.get("loadgen")
    if loadgen is not None:
        bound, valid = loadgen["p99_bound_seconds"], loadgen["valid"]
        what = "LoadGen's Server scenario, p99 in seconds"
        tail = loadgen["runs"][-1]["p99_seconds"] if valid is None else valid["p99_seconds"]
        listed.append(
            {"goal": what, "asked": bound, "at_most": True, "figure": tail, "met": valid is not None}
        )
    once = measured.get("user_once")
    if once is not None and measured["shape"] == "rm2":
        listed += [
            _goal("user features once: times fewer bytes", once["bytes_ratio"], _FEWER_BYTES),
            _goal("user features once: times the rate of tiled input", once["rate_ratio"], _ONCE_RATE),
        ]
    return listed


def _goal(what: str, figure: float, asked: float) -> dict[str, Any]:
    return {"goal": what, "asked": asked, "at_most": False, "figure": figure, "met": figure >= asked}
