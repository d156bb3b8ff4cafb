"""Candidates by name: which peers are installed, what each can run, and how much memory it needs."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from megalith.bench.peers.lookup import OURS, LookupShape
from megalith.bench.peers.tables import Fbgemm, Megalith, TorchBags
from megalith.core.errors import ConfigError, nearest

PEERS = ("fbgemm", "torch")
_PACKAGES = {
    "fbgemm": "fbgemm_gpu",
    "torchrec": "torchrec",
    "torch": "torch",
    "mapped": "torch",
    "rocksdb": "rocksdict",
    "onnxruntime": "onnxruntime",
    "openvino": "openvino",
    "torchao": "torchao",
    "fastapi": "fastapi",
    "fastapi-json": "fastapi",
    "litserve": "litserve",
    "litserve-json": "litserve",
}


def choose_peers(wanted: Sequence[str], known: Sequence[str]) -> list[str]:
    """The peers to run: those named, in `a,b` or one by one, or all that are installed where none is."""
    names = [name.strip() for argument in wanted for name in argument.split(",") if name.strip()]
    for name in names:
        if name not in (*known, "none"):
            raise ConfigError(f"--peer {name} is no peer here; {nearest(name, [*known, 'none'])}")
        if name != "none" and find_spec(_PACKAGES[name]) is None:
            raise ConfigError(f"--peer {name} is not installed; run `make bench` once, or leave it out.")
    if names:
        return [name for name in known if name in names]
    return [name for name in known if find_spec(_PACKAGES[name])]


def skipped_peers(wanted: Sequence[str], known: Sequence[str]) -> list[str]:
    """A sentence for each peer that is left out because it is not installed."""
    if wanted:
        return []
    missing = [name for name in known if find_spec(_PACKAGES[name]) is None]
    return [f"{name} is left out: it is not installed; `make bench` installs it." for name in missing]


def unsupported(peer: str, shape: LookupShape) -> str | None:
    """Why a peer cannot run this shape, or None."""
    if peer == "fbgemm" and shape.dim % 4:
        return "not supported"
    if peer == "torch" and shape.dtype != "float32":
        return "not supported"
    return None


def bytes_needed(name: str, shape: LookupShape) -> int:
    """About what a candidate takes: its tables, its optimizer's state, and its gradients."""
    if name == "torch":
        # State as large as the tables, and a gradient for every id before equal ids are added up.
        return 2 * shape.weight_bytes + 2 * shape.num_values * shape.dim * 4 + 2 * shape.output_bytes
    return shape.weight_bytes + 4 * shape.tables * shape.rows + 64 * shape.num_values + 2 * shape.output_bytes


def build(name: str, shape: LookupShape) -> Any:
    """A candidate by name."""
    return {OURS: Megalith, "fbgemm": Fbgemm, "torch": TorchBags}[name](shape)
