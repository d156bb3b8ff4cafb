"""Our own frozen model, in memory: tables of int8 and the dense part as a program, run by the native backend.

It is called as a server calls it, its checks of a request included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from megalith import __version__
from megalith.bench.serve.shapes import Request, ServedShape
from megalith.bench.serve.weights import HEADER_BYTES, ServedWeights
from megalith.export.backends.base import LoadSettings
from megalith.export.backends.inputs import ScoreRequest
from megalith.export.backends.kernels.native import NativeBackend
from megalith.export.manifest import Contract, FeatureRecord, FrozenTableRecord, ModelManifest
from megalith.export.program import Linear
from megalith.export.trace import trace_model
from megalith.ops import native

DensePrecision = Literal["float32", "int8"]


@dataclass(frozen=True, eq=False)
class FrozenInMemory:
    """A frozen model without a folder, as backends read one."""

    manifest: ModelManifest
    rows: Mapping[str, Tensor]
    dense: Mapping[str, Tensor]

    def table(self, name: str) -> Mapping[str, Tensor]:
        """The rows of a table."""
        return {"rows": self.rows[name]}

    def weights(self) -> Mapping[str, Tensor]:
        """The tensors of the program."""
        return self.dense

    def checks(self) -> Mapping[str, Tensor]:
        """None: nothing was trained."""
        return {}


class Ours:
    """The whole model on the native backend."""

    def __init__(self, weights: ServedWeights, precision: DensePrecision, threads: int) -> None:
        model = freeze(weights, precision)
        backend = NativeBackend()
        # Rows are in memory on huge pages already, where the backend would copy those of a folder to.
        settings = LoadSettings(threads=threads, options={"rows": "file"})
        self.whole = backend.load(model, "whole", settings)
        self.dense_part = backend.load(model, "dense", LoadSettings(threads=threads))

    def __call__(self, request: Request) -> Tensor:
        """Scores [batch, 1]."""
        given = ScoreRequest(dense=request.dense, values=request.values, lengths=request.lengths)
        return self.whole.run(given)["score"].unsqueeze(1)

    def dense(self, dense: Tensor, embedded: Tensor) -> Tensor:
        """The dense part alone: scores [batch, 1]."""
        return self.dense_part.run(ScoreRequest(dense=dense, embedded=embedded))["score"].unsqueeze(1)


def freeze(weights: ServedWeights, precision: DensePrecision) -> FrozenInMemory:
    """The model with rows of int8 and all layers at one precision."""
    shape = weights.shape
    width = len(shape.tables.rows) * shape.dim
    traced = trace_model(weights.model, shape.tables.numbers, width)
    operations = tuple(
        each.model_copy(update={"precision": precision}) if isinstance(each, Linear) else each
        for each in traced.program.operations
    )
    products: Any = "float32" if precision == "float32" else "u8s7"
    manifest = ModelManifest(
        name=shape.name,
        step=0,
        num_dense=shape.tables.numbers,
        features=tuple(FeatureRecord(name=each.name, max_length=each.max_length) for each in shape.features),
        tables=tuple(_record(shape, place) for place in range(len(shape.tables.rows))),
        program=traced.program.model_copy(update={"operations": operations}),
        contract=Contract(products=products, simd=native.simd_level(), versions={"megalith": __version__}),
        files={},
    )
    rows = {f"t{place}": rows for place, rows in enumerate(weights.rows)}
    return FrozenInMemory(manifest, rows, traced.weights)


def _record(shape: ServedShape, place: int) -> FrozenTableRecord:
    rows, row_bytes = shape.tables.rows[place], HEADER_BYTES + shape.dim
    return FrozenTableRecord(
        name=f"t{place}",
        rows=rows,
        dim=shape.dim,
        features=(f"t{place}",),
        precision="int8",
        scale="float16",
        row_bytes=row_bytes,
        file="tables-00000.safetensors",
        bytes=rows * row_bytes,
    )
